"""`Tested`: the policy works in a box, and tests that it never sees say what its work is worth.

INIT puts the task's files into the box, RUN lets the policy act, EVAL takes out what it changed where it may, closes
its box, opens a fresh one of the same image, puts the same files, the work and only then the hidden tests there, and
runs them (`patch`, `grading`). The reward is 1 when every test passed, else 0. Serves the domains `code` and `swe`; a
task of theirs without tests is a question with an answer.
"""

from __future__ import annotations

from collections.abc import Collection

from prorl_cli.agent import Episode
from prorl_cli.errors import UserError
from prorl_cli.recipe import ANYTHING
from prorl_cli.tasks.grading import Graded, Grading
from prorl_cli.tasks.handler import Job, Score
from prorl_cli.tasks.patch import Patch, Refused, from_answer, from_box
from prorl_cli.tasks.placing import place_texts
from prorl_cli.tasks.question_answer import QuestionAnswer
from prorl_cli.tasks.source import Item
from prorl_cli.tasks.tested_row import TestedTask
from prorl_cli.trajectory import StopReason

GRADED = (StopReason.ANSWERED, StopReason.MAX_TURNS, StopReason.MAX_TOKENS)
"""Ends after which the work is looked at; otherwise the policy has lost its box, or time."""

SET_UP_S = 20.0
"""What EVAL's clock must leave besides the tests' own time: for two boxes."""


class Tested(QuestionAnswer):
    """The handler."""

    keeps_box = True
    serves = ("edit",)  # which makes it a box with programs in it

    def unfit(self, item: Item, eval_s: float, tools: Collection[str]) -> str:
        """Tests need their time, and files somebody who changes them."""
        task = tested(item)
        if task and task.tests.timeout + SET_UP_S > eval_s:
            return (
                f"its tests may take {task.tests.timeout:g} s: rollout.eval.timeout must be {SET_UP_S:g} s more at "
                f"least, and is {eval_s:g} s"
            )
        if task and task.editable and ANYTHING.isdisjoint(tools):
            return f"its files are to be changed: agent.tools must have one of {', '.join(sorted(ANYTHING))}"
        return ""

    async def init(self, job: Job) -> None:
        """The box, with the task's files in it."""
        task = tested(job.item)
        if task is None:
            return
        tools = [tool.name for tool in job.tools.tools]
        if why := self.unfit(job.item, job.eval_s, tools):  # `resume` may have set another clock
            raise UserError(f"{job.item.title}: {why}")
        if job.tools.tools:
            await job.tools.box.open()
            await place_texts(job.tools.box, task.folder, task.files)

    async def run(self, job: Job) -> Episode:
        """A question with an answer needs its box no more."""
        episode = await super().run(job)
        if tested(job.item) is None:
            await job.tools.close()
        return episode

    async def eval(self, job: Job, episode: Episode) -> Score:
        """See the module's own page."""
        task = tested(job.item)
        if task is None:
            return await super().eval(job, episode)
        try:
            return await _graded(job, task, episode)
        except Refused as refusal:
            return Score(reward=0.0, parts={"tests": 0.0}, verdict=str(refusal))


def tested(item: Item) -> TestedTask | None:
    """None for a question with an answer."""
    return item.payload.get("tested")


async def _graded(job: Job, task: TestedTask, episode: Episode) -> Score:
    try:
        patch = await _work(job, task, episode)
    finally:
        await job.tools.close()
    fresh = job.tools.box.another()
    try:
        return scored(await Grading(task, fresh).grade(patch), patch)
    finally:
        await fresh.close()


async def _work(job: Job, task: TestedTask, episode: Episode) -> Patch:
    if episode.stop_reason not in GRADED:
        raise Refused(f"the episode ended by {episode.stop_reason}")
    if not task.answer_file:
        return await from_box(task, job.tools.box)
    if episode.stop_reason is not StopReason.ANSWERED:
        raise Refused(f"there is no answer: the episode ended by {episode.stop_reason}")
    return from_answer(task, episode.answer)


def scored(graded: Graded, patch: Patch) -> Score:
    """All or nothing; the parts say how near it was, and how many files were left out."""
    verdict = f"{graded.passed} of {graded.tests} tests passed"
    if graded.complaint:
        verdict += f"; {graded.complaint}"
    if patch.dropped:
        verdict += f"; {patch.dropped} files not graded ({', '.join(patch.examples) or 'links and the like'})"
    parts = {"tests": graded.passed / graded.tests, "dropped": float(patch.dropped)}
    return Score(reward=float(graded.passed == graded.tests), parts=parts, verdict=verdict)
