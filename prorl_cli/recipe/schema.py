"""Every key of a recipe, its meaning and its default. `resolved.<attempt>.json` is this model, whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from prorl_cli.recipe.units import Duration, Size

TINY = "builtin:tiny"
"""The model that `warmstart` makes on the spot."""

ANYTHING = frozenset(["bash", "python", "edit"])
"""Tools with which a policy can do whatever its walls allow; they need a root to do it in."""


class Section(BaseModel):
    """A block of the recipe: frozen, no unknown keys, no silent coercion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class TaskSpec(Section):
    """One source of tasks."""

    domain: str
    """Name under which rewards are reported; with no `handler` its tasks are questions with an answer."""
    source: str
    """`reasoning_gym:NAME`, `procedural:NAME`, or the path of a JSONL file."""
    handler: str | None = None
    """A handler of your own, `package.module:Class`."""
    weight: float = Field(default=1.0, gt=0)
    """How often tasks are drawn from this source, relative to the others."""
    options: dict[str, Any] = {}
    """Passed to the source, such as a generator's difficulty."""


class Agent(Section):
    """The multi-turn loop."""

    renderer: Literal["tiny", "hermes"] = "hermes"
    """How a conversation becomes tokens: `hermes` is the Qwen family's chat template and tool calls."""
    tools: tuple[Literal["calculator", "bash", "python", "edit"], ...] = ("calculator",)
    """Tools the policy may call."""
    system_prompt: str = ""
    """Put before the task when not empty."""
    max_turns: int = Field(default=8, ge=1)
    """Turns of the policy in one episode."""
    max_tokens: int = Field(default=2048, ge=1)
    """Tokens of one whole episode, prompt included."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training; the learner uses the same."""


class Sandbox(Section):
    """Where tool calls run."""

    runtime: Literal["auto", "apptainer", "bwrap", "process"] = "auto"
    """`apptainer` (or `singularity`, where that is installed) runs tools in `image`. `auto` takes bwrap where it works,
    else `process`, which promises no isolation."""
    image: str = ""
    """What boxes are made of: the name of a definition whose image `prorl cache build` has made (math, code, stem, swe,
    or NAME.def beside the recipe); or a path that every rollout node can read, an unpacked folder, or with `runtime:
    apptainer` a SIF file as well. Without one, `bash`, `python` and `edit` find the node's programs, read-only."""
    unsafe: bool = False
    """Let `bash`, `python` and `edit` run without walls (`runtime: process`), where they can do all that you can."""
    tool_timeout: Duration = 10.0
    """Wall clock of one tool call."""
    memory: Size = 2**28
    """Memory of one box."""
    processes: int = Field(default=64, ge=1)
    """Processes of one box."""
    cpu: Duration = 60.0
    """CPU time of one box."""
    disk: Size = 2**30
    """What one box may write to its node's disk."""

    @model_validator(mode="after")
    def _an_image_and_its_runtime_go_together(self) -> Sandbox:
        if self.runtime == "apptainer" and not self.image:
            raise ValueError(
                "`runtime: apptainer` needs `image`: a definition's name (math), a SIF file or an unpacked folder"
            )
        if self.image and self.runtime not in ("apptainer", "bwrap"):
            raise ValueError(f"`image` is for `runtime: apptainer` or `bwrap`, not for {self.runtime!r}")
        return self

    def need_walls(self, tools: Iterable[str]) -> list[str]:
        """Those that may not be served without."""
        return [] if self.unsafe else sorted(ANYTHING.intersection(tools))


class Stage(Section):
    """One stage of the rollout pipeline."""

    slots: int = Field(default=64, ge=1)
    """Episodes in this stage at once, per worker."""
    timeout: Duration = 600.0
    """The stage's clock; it runs only while the stage works."""


class Rollout(Section):
    """How groups are sampled."""

    group_size: int = Field(default=8, ge=2)
    """Episodes per task."""
    groups_per_step: int = Field(default=16, ge=1)
    """Groups with a signal that make one training step."""
    max_staleness: int = Field(default=1, ge=0)
    """Weight versions that a trained token may lag behind."""
    max_resample: float = Field(default=4.0, ge=1)
    """At most this many times `groups_per_step` groups are settled for one step; then it is shorter, or starved."""
    deadline: Duration = 1800.0
    """From a group's admission until its missing members are dropped as late."""
    retries: int = Field(default=2, ge=0)
    """How often a member that failed through no fault of the policy is tried again."""
    init: Stage = Stage()
    """Sandbox and task set-up."""
    run: Stage = Stage()
    """The agent loop."""
    eval: Stage = Stage()
    """Scoring."""


class Engine(Section):
    """The policy servers."""

    kind: Literal["embedded", "vllm"] = "embedded"
    """`embedded` serves small models from this machine's CPU; `vllm` starts a vLLM server for each engine."""
    max_model_len: int = Field(default=2048, ge=8)
    """Longest sequence served, tokens."""
    slots: int = Field(default=64, ge=1)
    """Sequences decoded at once by one engine."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of one embedded engine."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that share one vLLM engine."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type that vLLM computes in; `auto` is vLLM's choice."""
    enforce_eager: bool = False
    """vLLM without compilation and CUDA graphs: starts sooner, decodes slower."""
    vllm_args: tuple[str, ...] = ()
    """Further options of vLLM's server for this site, as `--gpu-memory-utilization=0.8`."""


class Learner(Section):
    """Numbers of one training step, and what computes it."""

    backend: Literal["torch", "deepspeed"] = "torch"
    """`torch`: one process on the CPU. `deepspeed`: as many ranks as `cluster.learner` has GPUs, or nodes without."""
    zero: int = Field(default=0, ge=0, le=3)
    """DeepSpeed's ZeRO stage: optimizer state (1), gradients too (2), weights too (3) are spread over the ranks."""
    steps: int = Field(default=100, ge=0)
    """Training steps of the run."""
    lr: float = Field(default=1e-6, gt=0)
    """AdamW learning rate after warm-up."""
    lr_warmup: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""
    betas: tuple[float, float] = Field(default=(0.9, 0.95), strict=False)
    """AdamW moments."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW decoupled weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping."""
    updates: int = Field(default=1, ge=1)
    """Optimizer updates of one step, each on its own share of the groups (no record is used twice)."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower side of the ratio clip."""
    clip_high: float = Field(default=0.28, gt=0)
    """Upper side of the ratio clip (DAPO's clip-higher)."""
    kl_beta: float = Field(default=1e-3, ge=0)
    """Weight of the k3 KL to the reference."""
    is_cap: float = Field(default=2.0, gt=0)
    """Truncation of the importance weight π_old/π_engine."""
    micro_batch_tokens: int = Field(default=8192, ge=64)
    """Padded tokens of one forward pass."""
    void_after: int = Field(default=3, ge=1)
    """Learner deaths on one step before it is voided."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of the learner."""
    shuffle_rewards: bool = False
    """Control experiment: permutes rewards within every step, so that nothing can be learned."""

    @model_validator(mode="after")
    def _zero_needs_deepspeed(self) -> Learner:
        if self.zero and self.backend != "deepspeed":
            raise ValueError(f"zero: {self.zero} needs `backend: deepspeed`")
        return self


class Eval(Section):
    """Pass@1 on held-out tasks of the same sources, T = 1."""

    n: int = Field(default=0, ge=0)
    """Held-out tasks; 0 = no evaluation."""
    every: int = Field(default=0, ge=0)
    """Steps between evaluations; before the first and after the last step always."""


class Checkpoint(Section):
    """What a restart goes back to."""

    every: int = Field(default=20, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(default=3, ge=1)
    """Checkpoints kept."""


class Warmstart(Section):
    """Supervised start of the tiny built-in model (`model: builtin:tiny`)."""

    steps: int = Field(default=800, ge=1)
    """Supervised steps."""
    batch: int = Field(default=32, ge=1)
    """Transcripts a step."""
    lr: float = Field(default=2e-3, gt=0)
    """Peak learning rate, cosine."""
    hidden: int = Field(default=128, ge=32, multiple_of=32)
    """Model width; heads are 32 wide."""
    intermediate: int = Field(default=256, ge=1)
    """Width inside the model's feed-forward layers."""
    layers: int = Field(default=2, ge=1)
    """Model depth."""
    clean: float = Field(default=0.7, ge=0, le=1)
    """Share of the steps, the first ones, whose transcripts are without mistakes."""
    guess: float = Field(default=0.35, ge=0, le=1)
    """Of the later transcripts: share that answers wrongly without calling the tool."""
    miscall: float = Field(default=0.25, ge=0, le=1)
    """Of the others: share that calls the tool with a wrong digit."""
    miscopy: float = Field(default=0.1, ge=0, le=1)
    """Of the others: share that copies the tool's output with a wrong digit."""
    seed: int = 0
    """Seed of weights and transcripts."""


class Component(Section):
    """Nodes of one role, and what Slurm is asked for on each of them."""

    nodes: int = Field(default=1, ge=1)
    """Nodes; locally, processes of this role."""
    partition: str = ""
    """Slurm partition; empty = the cluster's default."""
    cpus: int = Field(default=0, ge=0)
    """CPU cores a node; 0 = not asked for (with `exclusive`, all)."""
    memory: Size = 0
    """Memory a node, as `64GiB`; 0B = not asked for."""
    gpus: int = Field(default=0, ge=0)
    """GPUs a node."""
    gpu_type: str = ""
    """Type of the GPUs where the site wants one, as `h100` (case matters to Slurm)."""
    constraint: str = ""
    """Node features, in Slurm's own grammar."""
    account: str = ""
    """Instead of `cluster.account`."""
    qos: str = ""
    """Instead of `cluster.qos`."""
    reservation: str = ""
    """A reservation to run in."""
    exclusive: bool = False
    """Whole nodes, shared with no other job."""
    image: str = ""
    """An Apptainer image in which this role's own processes run; empty = on the node itself."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch for this component, as `--switches=1`."""


class Control(Component):
    """The node of coordinator and router, where they do not share the first rollout node (`topology: satellites`)."""

    cpus: int = Field(default=2, ge=0)
    """CPU cores."""


class Cluster(Section):
    """Where the roles run."""

    executor: Literal["local", "slurm"] = "local"
    """`local` runs every role as a process of this machine, `slurm` as one job of many nodes."""
    topology: Literal["hetjob", "satellites", "single"] = "hetjob"
    """`hetjob`: one heterogeneous job, all nodes start together. `satellites`: rollout nodes are jobs of their own that
    join and leave. `single`: one plain job, roles by node, for clusters without heterogeneous jobs; every node is asked
    for as `cluster.learner` says."""
    account: str = ""
    """Slurm account; empty = the user's default."""
    qos: str = ""
    """Slurm quality of service; empty = the account's default."""
    time: Duration = 0.0
    """Time limit of one job, as `24h`; 0s = the partition's own."""
    chain: int = Field(default=0, ge=0)
    """How many further jobs may go on where a time limit ended the one before; each is queued while its predecessor
    runs."""
    drain: Duration = 120.0
    """How long before the time limit running episodes stop and a checkpoint is written."""
    requeue: bool = True
    """Whether Slurm may put the job back into the queue when a node dies."""
    gpu_option: Literal["gres", "gpus-per-node"] = "gres"
    """How this site wants GPUs asked for."""
    setup: str = ""
    """Shell lines run on every node first: `module load …`, `source venv/bin/activate`."""
    interface: str = ""
    """Network interface that roles listen on, as `ib0`; empty = the one that leads to the first node."""
    templates: str = ""
    """A folder of your own whose files replace those of `slurm_templates/`."""
    mail: str = ""
    """Address told when the job ends or fails."""
    licenses: str = ""
    """Slurm licenses of the job."""
    restarts: int = Field(default=5, ge=0)
    """How often one role may be restarted in ten minutes before the run gives up."""
    control: Control = Control()
    """Coordinator and router; only with `topology: satellites`."""
    rollout: Component = Component()
    """Rollout workers, one a node."""
    engine: Component = Component()
    """Policy servers."""
    learner: Component = Component()
    """The learner: one rank a GPU, or one a node without GPUs."""


class Recipe(Section):
    """One training run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Names the run's directory."""
    seed: int = 0
    """Seed of everything drawn at random."""
    model: str
    """Folder of a Hugging Face model, or `builtin:tiny`, made on the spot."""
    tasks: tuple[TaskSpec, ...] = Field(min_length=1)
    """Where tasks come from."""
    agent: Agent = Agent()
    sandbox: Sandbox = Sandbox()
    rollout: Rollout = Rollout()
    engine: Engine = Engine()
    learner: Learner = Learner()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    warmstart: Warmstart = Warmstart()
    cluster: Cluster = Cluster()

    @model_validator(mode="after")
    def _the_tiny_model_speaks_tiny(self) -> Recipe:
        if self.model == TINY and self.agent.renderer != "tiny":
            raise ValueError(f"the model `{TINY}` speaks only `agent.renderer: tiny`, not {self.agent.renderer!r}")
        return self

    @model_validator(mode="after")
    def _tools_that_can_do_anything_have_walls(self) -> Recipe:
        mighty = self.sandbox.need_walls(self.agent.tools)
        if mighty and self.sandbox.runtime == "process":
            raise ValueError(
                f"`sandbox.runtime: process` has no walls, and {', '.join(mighty)} can do all that you can: take "
                "another runtime, or say `sandbox.unsafe: true`"
            )
        return self

    @model_validator(mode="after")
    def _episodes_fit_the_engine(self) -> Recipe:
        if self.agent.max_tokens > self.engine.max_model_len:
            raise ValueError(
                f"agent.max_tokens ({self.agent.max_tokens}) is over engine.max_model_len "
                f"({self.engine.max_model_len}): an episode must fit the engine"
            )
        return self
