"""The walk along the step log: take position N, leave weights N; resume from a checkpoint, replay, void, restore.

Blocking and without asyncio; runs in the learner's one training thread. What already stands is never rewritten: a
replayed position is verified by digest, and one that differs opens a new lineage. Called by the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord, ProrlError
from prorl_cli.learner import batch as batches
from prorl_cli.learner.checkpoint import (
    Progress,
    Reference,
    checkpoints_to_keep,
    collect_checkpoints,
    read_checkpoint,
    references,
    save_checkpoint,
)
from prorl_cli.learner.trainer import Diverged, StepNumbers, Trainer
from prorl_cli.learner.verdicts import next_lineage, weights_to_keep
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.spool.evals import evaluations
from prorl_cli.spool.members import current_attempt, read_restore
from prorl_cli.spool.steps import last_position, publish_void, read_step, read_void
from prorl_cli.spool.trajectories import read_trajectory
from prorl_cli.spool.weights import (
    WeightManifest,
    collect_weights,
    latest_weights,
    publish_weights,
    read_weights,
    verify_weights,
)
from prorl_cli.trajectory import StepKind, StepManifest, Trajectory, Void

T = TypeVar("T")

log = logging.getLogger("learner")


class Walk:
    """One learner's way along the positions. `deaths` counts earlier learners that died, by position; `fence` raises
    when this process may publish no more; `halted` is asked between micro-batches."""

    def __init__(
        self,
        run: RunDir,
        recipe: Recipe,
        trainer: Trainer,
        *,
        name: str,
        deaths: Mapping[int, int],
        fence: Callable[[], None] = lambda: None,
        halted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run = run
        self._recipe = recipe
        self._trainer = trainer
        self._name = name
        self._deaths = deaths
        self._fence = fence
        self._halted = halted
        self._row: dict[str, Any] = {}
        self.progress = Progress()

    # ── where to start ────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Go to the newest sound checkpoint; weights 000000 exist. Damaged ones are said and removed."""
        for folder in (self._run.weights, self._run.checkpoints):
            fsio.sweep(folder, 0)
        for step in reversed(self._run.checkpoint_steps()):
            try:
                return self._go_to(step)
            except CorruptRecord as error:
                log.warning("checkpoint %d is damaged and will not be used: %s", step, error)
                fsio.remove_folder(self._run.checkpoint(step))
        return self._go_to(0)

    def _go_to(self, step: int) -> None:
        """Trainer and reference as of checkpoint `step`; 0 is weights 000000 with a fresh optimizer."""
        progress = read_checkpoint(self._run.checkpoint(step)) if step else Progress()
        start = read_weights(self._run, 0)
        if start is None:
            raise ProrlError(f"{self._run.weight(0)} is gone: it is what every replay starts from")
        self._trainer.load(start[0])
        if step:
            self._trainer.restore(self._run.checkpoint(step))
        self._refer(progress.reference)
        self.progress = progress
        log.info("at position %d, the reference is weights %d", step, progress.reference.version)

    def _refer(self, reference: Reference) -> None:
        folder = self._run.weight(reference.version, reference.lineage)
        if trouble := verify_weights(folder):
            raise ProrlError(f"the reference policy cannot be loaded: {'; '.join(trouble)}")
        self._trainer.set_reference(folder)

    # ── one position ──────────────────────────────────────────────────────────────────────────────────────

    def take(self, position: int) -> dict[str, Any]:
        """Do `position`, whose manifest is published, and leave its weights; returns its metrics row.

        After a step that diverged half-way `progress` is back at a checkpoint: the caller goes on from there.
        """
        self._row = {"step": position, "outcome": "step", "replay": position <= latest_weights(self._run)}
        started = time.monotonic()
        if trouble := self._doom(position) or self._attempt(position):
            self._row["outcome"] = "void"
            self._void(position, trouble)
        if self._trainer.dirty:
            self.begin()
            return self._row
        self.progress = msgspec.structs.replace(self.progress, position=position)
        with_clock(self._row, "publish_s", lambda: self._publish(position))
        self._row["step_s"] = time.monotonic() - started
        return self._row

    def _doom(self, position: int) -> str:
        """Why the position was void before anything was tried; a position that once got its weights is not doomed."""
        if void := read_void(self._run, position):
            return void.reason
        died = self._deaths.get(position, 0)
        if self._row["replay"] or died < self._recipe.learner.void_after:
            return ""
        return f"{died} learners died on it"

    def _attempt(self, position: int) -> str:
        """Train or restore; in words what makes the position void, then with nothing changed, or empty."""
        try:
            manifest = read_step(self._run, position)
        except CorruptRecord as error:
            return f"its manifest is damaged: {error}"
        if manifest is None:
            raise ProrlError(f"{self._run.step(position)} was published and is gone")
        return self._restore(manifest) if manifest.kind == StepKind.RESTORE else self._step(manifest)

    def _restore(self, manifest: StepManifest) -> str:
        self._row["outcome"] = "restore"
        try:
            self._go_to(manifest.restore_to)
        except CorruptRecord as error:
            return f"checkpoint {manifest.restore_to} cannot be restored: {error}"
        return ""

    def _step(self, manifest: StepManifest) -> str:
        groups, trouble = with_clock(self._row, "read_s", lambda: self._read(manifest))
        if trouble := trouble or batches.step_trouble(manifest, groups):
            return trouble
        self._row.update(batches.facts(manifest, groups))
        return with_clock(self._row, "train_s", lambda: self._train(manifest, groups))

    def _read(self, manifest: StepManifest) -> tuple[list[list[Trajectory]], str]:
        groups: list[list[Trajectory]] = []
        for refs in manifest.groups:
            groups.append([])
            for ref in refs:
                where = f"record {ref.seq} of {ref.writer}"
                try:
                    trajectory = read_trajectory(self._run, ref)
                except CorruptRecord as error:
                    return [], f"{where} is damaged: {error}"
                if trouble := batches.record_trouble(ref, trajectory, self._trainer.vocab_size):
                    return [], f"{where} cannot be trained on: {trouble}"
                groups[-1].append(trajectory)
        return groups, ""

    def _train(self, manifest: StepManifest, groups: list[list[Trajectory]]) -> str:
        progress = self._after(manifest)
        if progress.reference != self.progress.reference:
            self._refer(progress.reference)
        try:
            stats = self._trainer.train(self._batch(manifest, groups), _numbers(manifest), self._halted)
        except Diverged as error:
            self._refer(self.progress.reference)
            return f"it diverged: {error}"
        self.progress = progress
        self._row.update(asdict(stats))
        return ""

    def _after(self, manifest: StepManifest) -> Progress:
        """The progress with this step's reset of the reference, if it has one: to the weights it starts from."""
        if not manifest.reset_reference:
            return self.progress
        version = manifest.position - 1
        if version not in self._run.weight_folders():
            # a replay passes here after retention took this version: what is in memory is that version
            self._put(version, "")
        reference = Reference(version=version, lineage=self._run.weight_folders()[version])
        log.info("step %d: the reference is now weights %d", manifest.position, version)
        return Progress(
            position=self.progress.position, reference=reference, resets=(*self.progress.resets, manifest.position)
        )

    def _batch(self, manifest: StepManifest, groups: list[list[Trajectory]]) -> batches.Batch:
        return batches.build_batch(
            groups,
            updates=manifest.updates,
            temperature=self._recipe.agent.temperature,
            shuffle=f"{self._recipe.seed}-{manifest.position}" if self._recipe.learner.shuffle_rewards else None,
        )

    def _void(self, position: int, reason: str) -> None:
        self._fence()
        void = publish_void(self._run, Void(position=position, reason=reason, published_by=self._name))
        self._row["reason"] = void.reason
        log.warning("position %d is void: %s", position, void.reason)

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────

    def _publish(self, position: int) -> None:
        """Leave weights `position`: publish them, or verify what stands; collected ones are not made again."""
        lineage = self._run.weight_folders().get(position)
        if lineage is None:
            if position > latest_weights(self._run):
                self._put(position, "")
            return
        if self._standing(position) == self._trainer.digests():
            log.info("weights %d: the replay gave the same", position)
            return
        fresh = next_lineage(lineage)
        log.warning("weights %d: the replay differs from what stands: published as lineage %s", position, fresh)
        self._put(position, fresh)

    def _standing(self, position: int) -> dict[str, str]:
        try:
            found = read_weights(self._run, position)
        except CorruptRecord as error:
            log.warning("weights %d are damaged: %s", position, error)
            return {}
        return found[1].tensors if found else {}

    def _put(self, version: int, lineage: str) -> WeightManifest:
        self._fence()
        write = self._fenced(self._trainer.export)
        return publish_weights(self._run, version, write, lineage=lineage, written_by=self._name)

    def _fenced(self, write: Callable[[Path], T]) -> Callable[[Path], T]:
        """`write`, which may take minutes, and then another look whether this process may still publish."""

        def written(folder: Path) -> T:
            made = write(folder)
            self._fence()
            return made

        return written

    # ── what stays ────────────────────────────────────────────────────────────────────────────────────────

    def tidy(self, loaded: set[int]) -> None:
        """After a position: the checkpoint if it is due, then retention. `loaded` are versions in live endpoints."""
        if self.progress.position % self._recipe.checkpoint.every == 0:
            self.checkpoint()
        self._fence()
        pinned = {self.progress.reference.version, *references(self._run)}
        keep = weights_to_keep(
            latest_weights(self._run), self._recipe.rollout.max_staleness, loaded, pinned, evaluations(self._run)
        )
        if gone := collect_weights(self._run, keep):
            log.info("weights no longer needed: %s", gone)

    def checkpoint(self) -> None:
        """Save where we stand unless it is saved already or is a beginning, and let old checkpoints go."""
        position = self.progress.position
        if not position or self._trainer.dirty or position in self._run.checkpoint_steps():
            return
        self._fence()
        save_checkpoint(self._run, self.progress, self._fenced(self._trainer.save))
        log.info("checkpoint %d", position)
        keep = checkpoints_to_keep(self._run.checkpoint_steps(), self._recipe.checkpoint.keep, self._restores())
        collect_checkpoints(self._run, keep)

    def _restores(self) -> dict[int, int]:
        """Positions of `restore` above the oldest checkpoint and where each goes back to; one that this attempt was
        told to begin with counts as the next position."""
        end = last_position(self._run) + 1
        found = {}
        for position in range(min(self._run.checkpoint_steps()), end):
            try:
                manifest = read_step(self._run, position)
            except CorruptRecord:
                continue
            if manifest is not None and manifest.kind == StepKind.RESTORE:
                found[position] = manifest.restore_to
        ordered = read_restore(self._run, current_attempt(self._run))
        return found if ordered is None else {**found, end: ordered}


def _numbers(manifest: StepManifest) -> StepNumbers:
    return StepNumbers(
        learning_rate=manifest.learning_rate, kl_beta=manifest.kl_beta, clip_low=manifest.clip_low,
        clip_high=manifest.clip_high, is_cap=manifest.is_cap,
    )  # fmt: skip


def with_clock(row: dict[str, Any], name: str, act: Callable[[], T]) -> T:
    """What `act` returns; its seconds go into `row[name]`."""
    started = time.monotonic()
    try:
        return act()
    finally:
        row[name] = time.monotonic() - started
