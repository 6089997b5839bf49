"""What a worker prepares once: items, handlers, renderer, boxes, verifiers, leases. Closed together at its end."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.agent import Renderer, load_renderer
from prorl_cli.role import Role
from prorl_cli.rollout.boxes import opened_boxes
from prorl_cli.router.client import LeaseClient
from prorl_cli.sandbox import BoxFactory
from prorl_cli.spool.weights import latest_weights, read_weights
from prorl_cli.tasks import Handler, Item, Source, Verifiers, load_handler, open_source
from prorl_cli.trajectory import TaskRef

ITEMS = 256
"""Items remembered: all members of a group have the same one, and some sources take long to make it."""
VERIFIERS_MOST = 8
"""Verifier processes hold their libraries, 100 MB and more each."""
WEIGHTS_POLL_S = 0.5


class Items:
    """The items of the recipe's tasks, made in a thread, one at a time, and remembered for a while."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources
        self._known: OrderedDict[tuple[int, int, bool], asyncio.Task[Item]] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    async def get(self, ref: TaskRef, held_out: bool) -> Item:
        """The item that `ref` names; what its source raises is raised to everyone who waits for it."""
        key = (ref.task, ref.index, held_out)
        if key not in self._known or (self._known[key].done() and self._known[key].exception()):
            self._known[key] = asyncio.create_task(self._make(*key))
        self._known.move_to_end(key)
        while len(self._known) > ITEMS:
            self._known.popitem(last=False)
        return await asyncio.shield(self._known[key])

    async def _make(self, task: int, index: int, held_out: bool) -> Item:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._sources[task].item, index, held_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """`handlers` are in the recipe's order; `free` counts idle verifiers; `vocab_size` is the model's."""

    items: Items
    handlers: tuple[Handler, ...]
    renderer: Renderer
    vocab_size: int
    boxes: BoxFactory
    verifiers: Verifiers
    free: asyncio.Semaphore
    leases: LeaseClient


@asynccontextmanager
async def open_parts(role: Role, weights: Path) -> AsyncIterator[Parts]:
    """Everything warm; `UserError` says what the recipe asks for and this machine lacks. `weights` is any version's
    folder: they share tokenizer and vocabulary."""
    recipe = role.recipe
    count = max(1, min(VERIFIERS_MOST, recipe.rollout.eval.slots, (os.cpu_count() or 2) // 2))
    async with AsyncExitStack() as stack:
        handlers = tuple(load_handler(spec, role.run.code) for spec in recipe.tasks)
        serve = dict.fromkeys((*recipe.agent.tools, *(tool for handler in handlers for tool in handler.serves)))
        boxes = await stack.enter_async_context(opened_boxes(recipe.sandbox, tuple(serve)))
        verifiers = Verifiers(count=count, deadline_s=recipe.rollout.eval.timeout, code=role.run.code)
        await stack.enter_async_context(verifiers)
        leases = LeaseClient(role)
        stack.push_async_callback(leases.close)
        yield Parts(
            items=Items([open_source(spec, recipe.seed) for spec in recipe.tasks]),
            handlers=handlers,
            renderer=load_renderer(recipe.agent.renderer, weights),
            vocab_size=json.loads((weights / "config.json").read_text())["vocab_size"],
            boxes=boxes,
            verifiers=verifiers,
            free=asyncio.Semaphore(count),
            leases=leases,
        )


async def first_weights(role: Role) -> Path | None:
    """The newest weights' folder, as soon as there is one; None when told to stop before."""
    with role.waiting("the first weights"):
        while not role.stopping.is_set():
            found = await asyncio.to_thread(_newest, role)
            if found is not None:
                return found
            await role.nap(WEIGHTS_POLL_S)
    return None


def _newest(role: Role) -> Path | None:
    version = latest_weights(role.run)
    found = read_weights(role.run, version) if version >= 0 else None
    return found[0] if found else None
