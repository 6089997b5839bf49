"""Handlers that the worker's tests name in their recipes."""

import asyncio
import time

from prorl_cli.tasks import QuestionAnswer, Score


class Hanging(QuestionAnswer):
    """Its verifier never returns."""

    async def eval(self, job, episode):
        return Score(reward=await job.verifiers.call("tests.rollout_handlers:hang"))


class Unsound(QuestionAnswer):
    """Gives a record that cannot be stored."""

    async def eval(self, job, episode):
        return Score(reward=0.0, parts={"\ud800": 1.0})


class Boxed(QuestionAnswer):
    """Opens its box, and then keeps the policy waiting for ever."""

    async def run(self, job):
        await job.tools.box.open()
        await job.policy.generate(job.session, [0, 4], 50, 1)
        await asyncio.Event().wait()


def hang():
    time.sleep(3600)
