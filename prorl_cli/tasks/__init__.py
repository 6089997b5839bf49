"""The domains: where tasks come from, what one episode of them does, and how it is scored."""

from prorl_cli.tasks.handler import Handler, Job, Score
from prorl_cli.tasks.open import load_handler, open_source
from prorl_cli.tasks.question_answer import QuestionAnswer
from prorl_cli.tasks.source import Item, Source
from prorl_cli.tasks.tested import Tested
from prorl_cli.tasks.verifiers import Verifiers

__all__ = [
    "Handler",
    "Item",
    "Job",
    "QuestionAnswer",
    "Score",
    "Source",
    "Tested",
    "Verifiers",
    "load_handler",
    "open_source",
]
