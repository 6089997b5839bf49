"""A prepared run directory for the learner's tests: a tiny random Llama, synthetic records, published manifests."""

import functools
import hashlib
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from prorl_cli.learner.torch_trainer import TorchTrainer
from prorl_cli.learner.walk import Walk
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import claim_attempt
from prorl_cli.spool.steps import publish_step
from prorl_cli.spool.trajectories import TrajectoryWriter
from prorl_cli.spool.weights import publish_weights, read_weights
from prorl_cli.trajectory import (
    Purpose,
    RecordRef,
    Sequence,
    StepKind,
    StepManifest,
    StopReason,
    TaskRef,
    Trajectory,
    VersionSpan,
)
from prorl_cli.wire import certificate

VOCAB = 48
WORKER = "rollout-n-1-00000001"


def recipe(*, kl_beta=0.01, checkpoint=None, void_after=3, max_staleness=1, **learner):
    return Recipe.model_validate(
        {
            "name": "t", "model": "builtin:tiny", "seed": 3, "agent": {"renderer": "tiny"},
            "tasks": ({"domain": "d", "source": "procedural:chain"},),
            "rollout": {"group_size": 4, "max_staleness": max_staleness},
            "learner": {"lr": 1e-3, "kl_beta": kl_beta, "void_after": void_after, "micro_batch_tokens": 128, **learner},
            "checkpoint": checkpoint or {"every": 3, "keep": 2},
        }
    )  # fmt: skip


def write_model(folder: Path, seed=0, dtype=torch.float32, **changes):
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }  # fmt: skip
    config = LlamaConfig(**{**shape, **changes})
    model = LlamaForCausalLM(config).to(dtype)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"not": "read by the learner"}')
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return {
        name: hashlib.sha256(tensor.view(torch.uint8).numpy()).hexdigest()
        for name, tensor in model.state_dict().items()
    }


def make_run(root: Path, the_recipe=None, **model) -> RunDir:
    the_recipe = the_recipe or recipe()
    run = RunDir(root)
    run.create()
    run.secure(*certificate.make())
    attempt = claim_attempt(run, {})
    run.resolved(attempt).write_text(the_recipe.model_dump_json())
    publish_weights(run, 0, functools.partial(write_model, **model))
    return run


def trajectory(group, member, *, version, seed=0, reward=None, **changes):
    draw = random.Random(f"{seed}-{group}-{member}")
    prompt, tool = draw.randint(3, 6), draw.randint(1, 4)
    first, second = draw.randint(2, 6), draw.randint(1, 8)
    mask = [0] * prompt + [1] * first + [0] * tool + [1] * second
    ids = [draw.randrange(VOCAB) for _ in mask]
    logprobs = [-draw.uniform(2.0, 5.0) * bit for bit in mask]
    spans = [(prompt, prompt + first), (prompt + first + tool, len(mask))]
    fields = {
        "group": group, "member": member, "tried": 0, "purpose": Purpose.TRAIN,
        "task": TaskRef(task=0, domain="even" if group % 2 == 0 else "odd", index=group),
        "sequences": (Sequence.pack(ids, mask, logprobs, [VersionSpan(version=version, start=a, end=b) for a, b in spans]),),
        "sampling": {"temperature": 1.0}, "tool_calls": (), "reward": float(draw.random() < 0.5 if reward is None else reward),
        "reward_parts": {}, "stop_reason": StopReason.ANSWERED, **changes,
    }  # fmt: skip
    return Trajectory(**fields)


class Spool:
    """Writes records and the manifests over them."""

    def __init__(self, run: RunDir, worker=WORKER):
        self.run, self.worker = run, worker
        self.writer = TrajectoryWriter(run, worker, VOCAB)
        self.position = 0
        self.group = 0

    def add(self, record) -> RecordRef:
        return RecordRef(writer=self.worker, seq=self.writer.append(record), group=record.group, member=record.member)

    def step(self, *, groups=3, members=4, records=None, **numbers):
        """Publish the next position over fresh records, or over those given (a list of groups of trajectories)."""
        self.position += 1
        version = max(0, self.position - 2)
        if records is None:
            records = [[trajectory(self.group + g, m, version=version) for m in range(members)] for g in range(groups)]
            self.group += groups
        refs = tuple(tuple(self.add(record) for record in group) for group in records)
        self.writer.commit()
        given = {"learning_rate": 1e-3, "kl_beta": 0.01, "clip_low": 0.2, "clip_high": 0.28, "is_cap": 2.0, **numbers}
        return publish_step(self.run, StepManifest(position=self.position, kind=StepKind.STEP, groups=refs, **given))

    def restore(self, checkpoint):
        self.position += 1
        return publish_step(
            self.run, StepManifest(position=self.position, kind=StepKind.RESTORE, restore_to=checkpoint)
        )


def make_walk(run: RunDir, *, deaths=None, name="learner-n-1-00000001", **options) -> Walk:
    the_recipe = Recipe.model_validate_json(run.resolved(1).read_text())
    return Walk(run, the_recipe, TorchTrainer(the_recipe), name=name, deaths=deaths or {}, **options)


def walk_to(walk: Walk, last: int, loaded=frozenset()) -> list[dict]:
    """From wherever `walk` stands to position `last`, tidying after each."""
    rows = []
    while walk.progress.position < last:
        rows.append(walk.take(walk.progress.position + 1))
        walk.tidy(set(loaded))
    return rows


def tensors(run: RunDir, version: int) -> dict[str, str]:
    """Digests by name of a published version, newest lineage."""
    return read_weights(run, version)[1].tensors


@functools.cache
def plan(steps=12):
    """What the undisturbed long run is made of: resets, a restore, two updates a step, all in one."""
    return tuple({"reset_reference": n in (4, 9), "updates": 1 + n % 2} for n in range(1, steps + 1))
