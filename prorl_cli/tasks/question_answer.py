"""`QuestionAnswer`: a question, tools if the policy wants them, an answer, the item's own verifier.

The answer is taken from the final turn (see `tasks.answers`). An episode that the policy did not end with an answer
is worth 0. Serves every domain that names no handler of its own; a handler of yours may extend it.
"""

from __future__ import annotations

from collections.abc import Collection

from prorl_cli.agent import Episode, Message, run_episode
from prorl_cli.tasks.answers import extract_answer
from prorl_cli.tasks.handler import Handler, Job, Score
from prorl_cli.tasks.source import Item
from prorl_cli.trajectory import StopReason


class QuestionAnswer(Handler):
    """The generic handler."""

    def unfit(self, item: Item, eval_s: float, tools: Collection[str]) -> str:
        """A task that is graded by tests has no answer."""
        return "it has tests: only the domains code and swe grade them" if "tested" in item.payload else ""

    async def init(self, job: Job) -> None:
        """Nothing to set up: the box opens with the first tool call."""

    async def run(self, job: Job) -> Episode:
        """One episode over the item's question."""
        return await run_episode(
            job.policy, job.renderer, self.prompt(job), job.tools, job.limits, job.seed, session=job.session
        )

    async def eval(self, job: Job, episode: Episode) -> Score:
        """The verifier's reward for the final turn's answer."""
        if episode.stop_reason != StopReason.ANSWERED:
            return Score(reward=0.0)
        reward = await job.verifiers.score(job.item, extract_answer(episode.answer))
        return Score(reward=reward, parts={"answer": reward})

    def prompt(self, job: Job) -> list[Message]:
        """The recipe's system prompt, if any, and the question."""
        system = [{"role": "system", "content": job.system_prompt}] if job.system_prompt else []
        return [*system, {"role": "user", "content": job.item.question}]
