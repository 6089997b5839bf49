"""The frozen records that travel between prorl's processes, and the checks at their door.

Coordinator → worker: `GroupRequest`, `Cancel`, `Drain`. Worker → coordinator and learner: `Trajectory`.
Coordinator → learner: `StepManifest`. Token arrays are raw little-endian bytes inside the record
(uint32 ids, uint8 mask, float32 logprobs), never lists.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from enum import StrEnum
from itertools import compress
from typing import Any, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that travels: frozen, keyword-only, no unknown fields."""


class Purpose(StrEnum):
    """Why a group is rolled out."""

    TRAIN = "train"
    EVAL = "eval"


class StopReason(StrEnum):
    """How an episode ended. All of these are the policy's doing and are scored."""

    ANSWERED = "answered"
    """The policy ended its turn without a tool call."""
    MAX_TURNS = "max_turns"
    """The turn budget ran out while the policy still called tools."""
    MAX_TOKENS = "max_tokens"
    """The token budget ran out (the answer is truncated)."""
    RUN_TIMEOUT = "limit:run"
    """The RUN stage's clock ran out."""
    LIMIT_MEMORY = "limit:memory"
    """The policy's box went over its memory."""
    LIMIT_PROCESSES = "limit:processes"
    """The policy's box went over its number of processes."""
    LIMIT_CPU = "limit:cpu"
    """The policy's box went over its CPU seconds."""
    LIMIT_DISK = "limit:disk"
    """The policy's box went over what it may write."""
    BOX_KILLED = "box_killed"
    """The policy's own action ended its box."""
    NONE = "none"
    """The episode did not run to an end: see `error_class`."""


class ErrorClass(StrEnum):
    """Evidence from outside the box that a rollout failed for reasons that are not the policy's."""

    INIT = "init"
    """The INIT stage failed: the task or its box could not be set up."""
    SANDBOX = "sandbox"
    """A box died or could not start, through no action of the policy."""
    ENGINE = "engine"
    """No engine answered, or what it answered was unusable."""
    VERIFIER = "verifier"
    """The task's verifier raised or hung."""
    TASK = "task"
    """The task's handler raised."""
    WORKER = "worker"
    """The rollout worker died with the member unfinished (written by the coordinator's count, never by a worker)."""
    CANCELLED = "cancelled"
    """The coordinator withdrew the request."""
    INTERNAL = "internal"
    """A defect of prorl."""


class TaskRef(Record):
    """Which task: item `index` of recipe task number `task` (its position in `recipe.tasks`)."""

    task: int
    domain: str
    index: int


class GroupRequest(Record, tag="group"):
    """Roll out `members` of one group; one trajectory each.

    `group` is the admission counter (train) or `eval_version * 1_000_000 + item` (eval). `tries[i]` belongs
    to `members[i]`. Leases of a train group carry `min_version`; an eval group is served by exactly that version.
    """

    group: int
    purpose: Purpose
    task: TaskRef
    members: tuple[int, ...]
    tries: tuple[int, ...]
    min_version: int
    seed: int


class Cancel(Record, tag="cancel"):
    """Withdraw members of a group; a finished one is kept and a running one ends within two seconds."""

    group: int
    purpose: Purpose
    members: tuple[int, ...]
    reason: str


class Drain(Record, tag="drain"):
    """Start nothing new; finish what runs within `deadline_s` seconds of reading this."""

    deadline_s: float
    reason: str


Request = GroupRequest | Cancel | Drain


class VersionSpan(Record):
    """Tokens `start:end` of the sequence were authored under weight `version`."""

    version: int
    start: int
    end: int


class Sequence(Record):
    """One append-only token sequence of an episode: prompt, authored turns and tool outputs in order.

    `token_ids` uint32[T], `loss_mask` uint8[T] (1 = the policy authored it), `logprobs` float32[T] under the
    distribution actually sampled from (0 where the mask is 0); little-endian. `spans` cover exactly the
    authored tokens.
    """

    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    spans: tuple[VersionSpan, ...]

    @classmethod
    def pack(cls, ids: Seq[int], mask: Seq[int], logprobs: Seq[float], spans: Iterable[VersionSpan]) -> Sequence:
        """Pack plain lists of equal length."""
        return cls(
            token_ids=array("I", ids).tobytes(),
            loss_mask=bytes(mask),
            logprobs=array("f", logprobs).tobytes(),
            spans=tuple(spans),
        )

    def __len__(self) -> int:
        return len(self.loss_mask)

    @property
    def ids(self) -> list[int]:
        """Token ids as ints."""
        return array("I", self.token_ids).tolist()

    @property
    def mask(self) -> list[int]:
        """Loss mask as ints."""
        return list(self.loss_mask)

    @property
    def logprob_values(self) -> list[float]:
        """Logprobs as floats."""
        return array("f", self.logprobs).tolist()

    @property
    def authored(self) -> int:
        """Number of tokens the policy authored."""
        return self.loss_mask.count(1)


class ToolCall(Record):
    """One tool call of an episode and what came of it (`ok`, `error`, `timeout`, `limit:…`)."""

    turn: int
    tool: str
    arguments: str
    output: str
    outcome: str
    seconds: float


class Timings(Record):
    """Seconds an episode spent: waiting for slots, in each stage, within RUN in model and tools, and, in no stage, on
    boxes that died and their replays."""

    queue: float = 0.0
    init: float = 0.0
    run: float = 0.0
    llm: float = 0.0
    tool: float = 0.0
    eval: float = 0.0
    replay: float = 0.0


class Trajectory(Record):
    """One finished member of a group. `error_class` is set exactly when the rollout failed; then `reward` is 0
    and never used. `verdict` says in words what the reward is for, where the task's handler said so. `replays` counts
    the fresh boxes in which the calls were repeated after a box had died; it is `diverged` when one of them then gave
    another output than the policy had been told."""

    group: int
    member: int
    tried: int
    purpose: Purpose
    task: TaskRef
    sequences: tuple[Sequence, ...]
    sampling: dict[str, float]
    tool_calls: tuple[ToolCall, ...]
    reward: float
    reward_parts: dict[str, float]
    stop_reason: StopReason
    error_class: ErrorClass | None = None
    error: str = ""
    timings: Timings = Timings()
    engine: str = ""
    image: str = ""
    worker: str = ""
    answer: str = ""
    verdict: str = ""
    replays: int = 0
    diverged: bool = False

    @property
    def id(self) -> str:
        """Human-readable identity, unique in a run."""
        return f"{self.purpose}-{self.group}-{self.member}-{self.tried}"

    @property
    def versions(self) -> tuple[int, int]:
        """Oldest and newest weight version among authored tokens; (-1, -1) when there are none."""
        seen = [span.version for sequence in self.sequences for span in sequence.spans]
        return (min(seen), max(seen)) if seen else (-1, -1)

    @property
    def tokens(self) -> int:
        """All tokens of all sequences."""
        return sum(len(s) for s in self.sequences)

    @property
    def authored(self) -> int:
        """Tokens the policy authored."""
        return sum(s.authored for s in self.sequences)


class RecordRef(Record):
    """Where a trajectory lies: record `seq` of the log that `writer` (a worker incarnation) wrote."""

    writer: str
    seq: int
    group: int
    member: int


class Dropped(Record):
    """A group, or members of it, that left the queue without being trained on, and why."""

    group: int
    reason: str
    members: tuple[int, ...] = ()


class StepKind(StrEnum):
    """What a position of the step log holds."""

    STEP = "step"
    RESTORE = "restore"


class StepManifest(Record):
    """Position N of the step log: the exact records of one training step and every number of it.

    `groups` lists per group the records used. `frontier` is the first admission counter not yet settled after
    this step. `offsets` gives per trajectory log how many records were accounted for. A `restore` names the
    checkpoint it goes back to and trains on nothing.
    """

    position: int
    kind: StepKind
    groups: tuple[tuple[RecordRef, ...], ...] = ()
    dropped: tuple[Dropped, ...] = ()
    frontier: int = 0
    offsets: dict[str, int] = {}
    learning_rate: float = 0.0
    kl_beta: float = 0.0
    clip_low: float = 0.0
    clip_high: float = 0.0
    is_cap: float = 0.0
    updates: int = 1
    reset_reference: bool = False
    restore_to: int = -1
    policy_state: dict[str, Any] = {}
    published_by: str = ""

    @property
    def records(self) -> tuple[RecordRef, ...]:
        """All records of the step, in training order."""
        return tuple(ref for group in self.groups for ref in group)


class Void(Record):
    """The verdict that position N changes nothing: its records are named by its manifest, the weights stay."""

    position: int
    reason: str
    published_by: str = ""


def check_trajectory(trajectory: Trajectory, vocab_size: int) -> list[str]:
    """Everything wrong with a trajectory's tokens, in words; empty when it may be stored or trained on."""
    if trajectory.error_class is not None:
        return []
    found = [] if math.isfinite(trajectory.reward) else [f"reward is {trajectory.reward}"]
    for number, sequence in enumerate(trajectory.sequences):
        found += [f"sequence {number}: {text}" for text in check_sequence(sequence, vocab_size)]
    return found


def check_sequence(sequence: Sequence, vocab_size: int) -> list[str]:
    """Equal lengths, ids inside the vocabulary, finite logprobs and version spans exactly on authored tokens."""
    length = len(sequence.loss_mask)
    if len(sequence.token_ids) != 4 * length or len(sequence.logprobs) != 4 * length:
        return [f"{len(sequence.token_ids) // 4} ids, {length} mask, {len(sequence.logprobs) // 4} logprobs"]
    found = []
    if not _all_below(sequence.token_ids, vocab_size):
        found.append(f"token id {max(sequence.ids)} outside the vocabulary of {vocab_size}")
    if sequence.loss_mask.translate(None, b"\0\1"):
        found.append("mask holds a value other than 0 and 1")
    if not _are_logprobs(sequence):
        found.append("an authored token's logprob is not finite or is positive")
    if not _spans_cover(sequence.spans, sequence.loss_mask):
        found.append("version spans do not cover exactly the authored tokens")
    return found


# Every token passes here on write and on read, so these checks look at whole arrays at a time.


def _all_below(token_ids: bytes, bound: int) -> bool:
    """Whether every uint32 is below `bound`: neither it nor its sum with 2**31 - bound reaches the top bit."""
    if bound > 1 << 31:
        return bound > 0xFFFFFFFF or max(array("I", token_ids), default=0) < bound
    room = int.from_bytes(((1 << 31) - bound).to_bytes(4, "little") * (len(token_ids) // 4), "little")
    if not token_ids[3::4].isascii():
        return False
    return (int.from_bytes(token_ids, "little") + room).to_bytes(len(token_ids), "little")[3::4].isascii()


_PLAINLY_FINE = bytes([*range(0x3A), *range(0x80, 0xFF)])
"""Highest bytes of the float32s in (-1.7e38, 4.8e-4): whatever has another one is looked at closely."""


def _are_logprobs(sequence: Sequence) -> bool:
    if not sequence.logprobs[3::4].translate(None, _PLAINLY_FINE):
        return True
    authored = compress(sequence.logprob_values, sequence.loss_mask)
    return all(math.isfinite(value) and value <= 1e-3 for value in authored)


def _spans_cover(spans: tuple[VersionSpan, ...], mask: bytes) -> bool:
    covered = bytearray(len(mask))
    for span in spans:
        if not 0 <= span.start < span.end <= len(mask) or covered.count(1, span.start, span.end):
            return False
        covered[span.start : span.end] = b"\1" * (span.end - span.start)
    return covered == mask
