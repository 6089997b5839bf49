"""A policy that writes what it is told to, and boxes that answer what they are told to."""

import asyncio
import itertools
from dataclasses import dataclass, field

from prorl_cli.agent import run_episode
from prorl_cli.trajectory import VersionSpan


@dataclass
class Written:
    """What `engine.client.Generation` looks like to the loop."""

    token_ids: list
    logprobs: list
    spans: tuple
    finish_reason: str = "stop"


def written(ids, version=0, cuts=()):
    """A generation of `ids`; `cuts` are positions at which the weight version grows by one."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(ids)}), len(ids)]
    spans = [
        VersionSpan(version=version + number, start=start, end=end)
        for number, (start, end) in enumerate(itertools.pairwise(bounds))
        if end > start
    ]
    return Written(list(ids), [-0.5 - (token % 7) / 10 for token in ids], tuple(spans))


@dataclass
class ScriptedPolicy:
    """Turn k is `turns[k]`, cut to what is allowed; remembers every prompt it was given."""

    turns: list
    prompts: list = field(default_factory=list)
    said: list = field(default_factory=list)
    seeds: list = field(default_factory=list)

    async def generate(self, session, prompt_ids, max_tokens, seed):
        turn = self.turns[len(self.prompts)]
        self.prompts.append(list(prompt_ids))
        self.seeds.append(seed)
        if isinstance(turn, BaseException):
            raise turn
        if callable(turn):
            await turn()
        piece = turn if isinstance(turn, Written) else written(turn)
        if len(piece.token_ids) > max_tokens:
            piece = written(piece.token_ids[:max_tokens])
        self.said.append(piece)
        return piece


@dataclass
class Result:
    output: str
    outcome: str = "ok"
    seconds: float = 0.0


@dataclass
class Boxes:
    """A factory whose boxes answer `results` in turn (a callable is awaited, an exception raised)."""

    results: list
    started: int = 0
    closed: int = 0
    calls: list = field(default_factory=list)

    async def start(self):
        self.started += 1
        return self

    async def call(self, tool, arguments, timeout_s):
        self.calls.append((tool, arguments))
        result = self.results[min(len(self.calls), len(self.results)) - 1]
        if isinstance(result, BaseException):
            raise result
        return await result() if callable(result) else result

    async def close(self):
        await asyncio.sleep(0)
        self.closed += 1


async def whole_episode(policy, renderer, prompt, tools, limits, seed):
    """As a worker has it: whatever becomes of the episode, its box is closed."""
    try:
        return await run_episode(policy, renderer, prompt, tools, limits, seed)
    finally:
        await tools.close()
