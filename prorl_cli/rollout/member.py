"""One member at the worker: from its request to a job for the pipeline, and from the result to its record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from prorl_cli.agent import EnginePolicy, Limits, Sampling, ToolBox
from prorl_cli.recipe import Recipe
from prorl_cli.rollout.clock import Clocks
from prorl_cli.rollout.parts import Parts
from prorl_cli.rollout.pipeline import HUNG_SHARE, Key, Result
from prorl_cli.rollout.queues import QueueingLeases, QueueingVerifiers, TimedPolicy
from prorl_cli.tasks import Job
from prorl_cli.trajectory import GroupRequest, Purpose, StopReason, ToolCall, Trajectory
from prorl_cli.wire import Client

EVAL_TEMPERATURE = 1.0
"""Pass@1 is of the policy as it is, whatever it explores with."""


def member_seed(seed: int, member: int, tried: int) -> int:
    """The 63-bit seed of one try: a pure function of the request's seed, so that a retry is a new sample and a
    request read twice is the same one. The agent loop derives each turn's seed from it."""
    digest = hashlib.blake2b(f"{seed}/{member}/{tried}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(slots=True)
class Member:
    """Member `key.member` of `request`."""

    key: Key
    request: GroupRequest
    recipe: Recipe
    parts: Parts
    client: Client
    policy: EnginePolicy | None = None
    tools: ToolBox | None = None

    @property
    def session(self) -> str:
        """The trajectory's id."""
        return f"{self.key.purpose}-{self.key.group}-{self.key.member}-{self.key.tried}"

    @property
    def temperature(self) -> float:
        """What its turns are sampled at."""
        return EVAL_TEMPERATURE if self.key.purpose is Purpose.EVAL else self.recipe.agent.temperature

    async def prepare(self, clocks: Clocks) -> Job:
        """The job of this member."""
        request, recipe, parts = self.request, self.recipe, self.parts
        item = await parts.items.get(request.task, request.purpose is Purpose.EVAL)
        self.policy = EnginePolicy(self.client, QueueingLeases(parts.leases, clocks), self._sampling())
        agent = recipe.agent
        self.tools = ToolBox(parts.boxes, agent.tools, recipe.sandbox.tool_timeout, clocks.recovering)
        return Job(
            ref=request.task,
            item=item,
            seed=member_seed(request.seed, self.key.member, self.key.tried),
            session=self.session,
            policy=TimedPolicy(self.policy, clocks),
            renderer=parts.renderer,
            tools=self.tools,
            eval_s=recipe.rollout.eval.timeout,
            limits=Limits(
                max_turns=agent.max_turns,
                max_tokens=agent.max_tokens,
                seconds=recipe.rollout.run.timeout,
                timer=clocks.start,
            ),
            verifiers=QueueingVerifiers(parts.verifiers, parts.free, clocks),
            system_prompt=agent.system_prompt,
        )

    def _sampling(self) -> Sampling:
        """Train groups want `min_version` or newer, an evaluation exactly its version."""
        request = self.request
        return Sampling(
            temperature=self.temperature,
            stop_ids=self.parts.renderer.stop_ids,
            min_version=request.min_version,
            version=request.min_version if request.purpose is Purpose.EVAL else None,
            deadline_s=HUNG_SHARE * self.recipe.rollout.run.timeout,
        )

    def record(self, result: Result, worker: str) -> Trajectory:
        """What is stored: a failure keeps the episode that it had, and its reward says nothing."""
        episode, score = result.episode, result.score
        return Trajectory(
            group=self.key.group,
            member=self.key.member,
            tried=self.key.tried,
            purpose=self.key.purpose,
            task=self.request.task,
            sequences=episode.sequences if episode else (),
            sampling={"temperature": self.temperature},
            tool_calls=tuple(map(_storable, episode.tool_calls)) if episode else (),
            reward=score.reward if score else 0.0,
            reward_parts=score.parts if score else {},
            stop_reason=episode.stop_reason if episode and score else StopReason.NONE,
            error_class=result.error_class,
            error=result.error,
            timings=result.timings,
            engine=self.policy.engine if self.policy else "",
            image=self.parts.boxes.image,
            worker=worker,
            answer=_text(episode.answer) if episode else "",
            verdict=_text(score.verdict) if score else "",
            replays=self.tools.box.replays if self.tools else 0,
            diverged=self.tools.box.diverged if self.tools else False,
        )


def _storable(call: ToolCall) -> ToolCall:
    return msgspec.structs.replace(
        call, tool=_text(call.tool), arguments=_text(call.arguments), output=_text(call.output)
    )


def _text(text: str) -> str:
    """A policy can write half of a surrogate pair (`\\ud800` in a call's JSON), which no record can hold."""
    return text.encode("utf-8", "replace").decode()
