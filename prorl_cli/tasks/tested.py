"""`Tested`: the policy works in a box, and tests that it never sees say what its work is worth.

INIT puts the task's files into the box, RUN lets the policy act, EVAL takes out what it changed where it may, closes
its box, opens a fresh one of the same image, puts the same files, the work and only then the hidden tests there, and
runs them (`patch`, `grading`). The reward is 1 when every test passed, else 0. Serves the domains `code` and `swe`; a
task of theirs without tests is a question with an answer.
"""

from __future__ import annotations

from prorl_cli.agent import Episode, run_episode
from prorl_cli.errors import UserError
from prorl_cli.tasks.grading import Graded, Grading
from prorl_cli.tasks.handler import Job, Score
from prorl_cli.tasks.patch import Patch, Refused, from_answer, from_box
from prorl_cli.tasks.question_answer import QuestionAnswer
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

    async def init(self, job: Job) -> None:
        """The box, with the task's files in it."""
        task = task_of(job)
        if task is None:
            return
        if task.tests.timeout + SET_UP_S > job.eval_s:
            raise UserError(
                f"the tests of task {task.id or job.ref.index} may take {task.tests.timeout:g} s: "
                f"rollout.eval.timeout must be {SET_UP_S:g} s more at least, and is {job.eval_s:g} s"
            )
        if job.tools.tools:
            await job.tools.box.open()
            await job.tools.box.put_all(task.folder, task.start())

    async def run(self, job: Job) -> Episode:
        """One episode over the item's question; its box is kept."""
        return await run_episode(
            job.policy, job.renderer, self.prompt(job), job.tools, job.limits, job.seed,
            session=job.session, keep_box=task_of(job) is not None,
        )  # fmt: skip

    async def eval(self, job: Job, episode: Episode) -> Score:
        """See the module's own page."""
        task = task_of(job)
        if task is None:
            return await super().eval(job, episode)
        try:
            return await _graded(job, task, episode)
        except Refused as refusal:
            return Score(reward=0.0, parts={"tests": 0.0}, verdict=str(refusal))


def task_of(job: Job) -> TestedTask | None:
    """None for a question with an answer."""
    return job.item.payload.get("tested")


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
        return await from_box(task, job.tools.box) if job.tools.tools else Patch(files={})
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
