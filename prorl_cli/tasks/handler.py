"""What a domain does with one episode: `Handler`, for prorl's own domains and for yours.

    class Chemistry(QuestionAnswer):
        async def eval(self, job, episode):
            return Score(reward=await job.verifiers.call("my_lab.checks:formula", given=episode.answer), parts={})

A handler is made once a worker and serves many jobs at once: what belongs to one job lives in `job.state`. Slow or
risky code goes through `job.verifiers.call`; whatever a stage raises fails that member, never the worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from prorl_cli.agent import Episode, Limits, Policy, Renderer, ToolBox
from prorl_cli.recipe import TaskSpec
from prorl_cli.tasks.source import Item
from prorl_cli.tasks.verifiers import Verifiers
from prorl_cli.trajectory import TaskRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reward of an episode and what it is made of, both finite; `verdict` says in words what it is for."""

    reward: float
    parts: dict[str, float] = field(default_factory=dict)
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One member of a group, with all that its three stages need."""

    ref: TaskRef
    item: Item
    seed: int
    session: str
    """Names the episode: engines are chosen by it."""
    policy: Policy
    renderer: Renderer
    tools: ToolBox
    limits: Limits
    verifiers: Verifiers
    eval_s: float = 600.0
    """EVAL's clock."""
    system_prompt: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    """The handler's own, from one stage to the next."""


class Handler(ABC):
    """Three stages and a callback for each one's failure. Made as `Class(spec)` from the recipe's task."""

    keeps_box = False
    """EVAL looks into the episode's box, which is closed after RUN otherwise."""
    serves: tuple[str, ...] = ()
    """Tools that its boxes must have besides the policy's own."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec

    def unfit(self, item: Item, eval_s: float, tools: Collection[str]) -> str:
        """Why no policy with those tools could earn anything by `item` within EVAL's clock, in words; empty where
        nothing speaks against it. Asked of every row of a file before a run begins."""
        return ""

    @abstractmethod
    async def init(self, job: Job) -> None:
        """INIT: set up what the episode needs. The hidden answer must not become visible to the policy."""

    @abstractmethod
    async def run(self, job: Job) -> Episode:
        """RUN: let the policy act, usually by `agent.run_episode`."""

    @abstractmethod
    async def eval(self, job: Job, episode: Episode) -> Score:
        """EVAL: score what came of it. The episode's box is gone, unless `keeps_box`."""

    def init_error(self, job: Job, error: BaseException) -> None:  # noqa: B027 - optional
        """INIT raised, timed out or was cancelled; release what it had set up. Nothing else of the job will run."""

    def run_error(self, job: Job, error: BaseException) -> None:  # noqa: B027 - optional
        """The same for RUN."""

    def eval_error(self, job: Job, error: BaseException) -> None:  # noqa: B027 - optional
        """The same for EVAL."""
