"""The domains: where tasks come from, what one episode of them does, and how it is scored."""

from prorl_cli.tasks.open import open_source
from prorl_cli.tasks.source import Item, Source

__all__ = ["Item", "Source", "open_source"]
