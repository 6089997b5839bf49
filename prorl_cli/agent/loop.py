"""`run_episode`: the multi-turn loop. Tokens in, tokens out, tool calls between; ends for one reason of `StopReason`.

Bad behaviour of the policy is never an error: a malformed call is answered in words and the episode goes on; a
limit ends it, scored. What is not the policy's doing is an `InfraError`. The episode's box stays for whoever made its
tools, who looks into it or closes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from prorl_cli.agent.recovery import Result
from prorl_cli.agent.render import Call, Message, Renderer, Turn
from prorl_cli.agent.sequence import Authored, SequenceBuilder
from prorl_cli.agent.toolbox import Refusal, ToolBox
from prorl_cli.errors import InfraError
from prorl_cli.trajectory import ErrorClass, Sequence, StopReason, ToolCall


class Policy(Protocol):
    """Whoever writes the turns. `session` names the episode; at most `max_tokens` come back."""

    async def generate(self, session: str, prompt_ids: list[int], max_tokens: int, seed: int) -> Authored: ...


class Timer(Protocol):
    """What `asyncio.timeout` returns."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...
    def expired(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one episode may use."""

    max_turns: int
    max_tokens: int
    """Of the whole episode, prompt and tool outputs included."""
    seconds: float | None = None
    """The RUN stage's clock; None = no limit here."""
    timer: Callable[[float | None], Timer] = asyncio.timeout
    """Makes that clock; a worker's stands still while the episode queues for an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What came of it. `answer` is the last turn's text when the policy ended the episode itself, else empty.
    `sequences` is empty when the policy wrote nothing; seconds are wall clock of model and of tools."""

    sequences: tuple[Sequence, ...]
    tool_calls: tuple[ToolCall, ...]
    stop_reason: StopReason
    answer: str
    llm_s: float
    tool_s: float


async def run_episode(
    policy: Policy,
    renderer: Renderer,
    prompt: Seq[Message],
    tools: ToolBox,
    limits: Limits,
    seed: int,
    *,
    session: str = "",
) -> Episode:
    """Run one episode to its end. `seed` decides every turn's sampling; `session` (default: the seed) is what engines
    are chosen by. `InfraError` when the machinery fails."""
    episode = _Running(policy, renderer, tools, limits, seed, session or str(seed))
    clock = limits.timer(limits.seconds)
    try:
        async with clock:
            stop = await episode.turns(prompt)
    except TimeoutError:
        if not clock.expired():
            raise
        stop = StopReason.RUN_TIMEOUT
    return episode.ended(stop)


class _Running:
    def __init__(
        self, policy: Policy, renderer: Renderer, tools: ToolBox, limits: Limits, seed: int, session: str
    ) -> None:
        self._policy, self._renderer, self._tools, self._limits = policy, renderer, tools, limits
        self._seed, self._session = seed, session
        self._sequence = SequenceBuilder(())
        self._calls: list[ToolCall] = []
        self._answer = ""
        self._llm_s = self._tool_s = 0.0

    async def turns(self, prompt: Seq[Message]) -> StopReason:
        self._sequence = SequenceBuilder(self._renderer.start(prompt, self._tools.tools))
        for number in range(self._limits.max_turns):
            written = await self._author(number)
            if written is None or written[-1] not in self._renderer.stop_ids:
                return StopReason.MAX_TOKENS
            turn = self._renderer.parse(written)
            if turn.call is None and not turn.malformed:
                self._answer = turn.text
                return StopReason.ANSWERED
            result = await self._act(number, turn)
            if (stop := stopped_by(result)) is not None:
                return stop
            self._sequence.insert(self._renderer.extend(result.output, written[-1]))
        return StopReason.MAX_TURNS

    async def _author(self, number: int) -> Seq[int] | None:
        """One authored turn, appended; None when no token is left for it."""
        room = self._limits.max_tokens - len(self._sequence)
        if room < 1:
            return None
        started = time.monotonic()
        try:
            piece = await self._policy.generate(
                self._session, list(self._sequence.ids), room, turn_seed(self._seed, number)
            )
        finally:
            self._llm_s += time.monotonic() - started
        if len(piece.token_ids) > room:
            raise InfraError(ErrorClass.ENGINE, f"{len(piece.token_ids)} tokens where {room} were allowed")
        self._sequence.author(piece)
        return piece.token_ids

    async def _act(self, number: int, turn: Turn) -> Result:
        """Run the turn's call, or say why it is none; recorded either way."""
        started, lost_s = time.monotonic(), self._tools.box.lost_s
        call = turn.call or Call(tool="", arguments={})
        try:
            result = await self._tools.call(call) if turn.call else Refusal(output=f"error: {turn.malformed}")
        finally:
            seconds = time.monotonic() - started - (self._tools.box.lost_s - lost_s)
            self._tool_s += seconds
        arguments = call.shown if turn.call else turn.text
        self._calls.append(
            ToolCall(
                turn=number,
                tool=call.tool,
                arguments=arguments,
                output=result.output,
                outcome=result.outcome,
                seconds=seconds,
            )
        )
        return result

    def ended(self, stop: StopReason) -> Episode:
        return Episode(
            sequences=self._sequence.build(),
            tool_calls=tuple(self._calls),
            stop_reason=stop,
            answer=self._answer,
            llm_s=self._llm_s,
            tool_s=self._tool_s,
        )


def stopped_by(result: Result) -> StopReason | None:
    """The reason to end the episode after a tool's outcome, if there is one."""
    if result.outcome == "dead":
        return StopReason.BOX_KILLED
    return StopReason(result.outcome) if result.outcome.startswith("limit:") else None


def turn_seed(seed: int, turn: int) -> int:
    """A 31-bit sampling seed of one turn."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=4).digest(), "big") >> 1
