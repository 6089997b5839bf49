"""A world in memory for the coordinator's pure machine: files, workers, a learner, deaths, restarts and rivals.

Every choice comes from a finite stream of integers, so that hypothesis can shrink a history; once the stream is
exhausted nothing goes wrong any more and the run must end.
"""

from dataclasses import dataclass, field

from prorl_cli.coordinator.machine import Facts, Machine, Origin
from prorl_cli.recipe import Recipe
from prorl_cli.spool.log import Row
from prorl_cli.spool.trajectories import Entry
from prorl_cli.trajectory import Cancel, ErrorClass, GroupRequest, Purpose, StopReason

ERRORS = (ErrorClass.ENGINE, ErrorClass.SANDBOX, ErrorClass.VERIFIER, ErrorClass.INIT)


def make_recipe(**changes):
    plain = {
        "name": "world", "model": "builtin:tiny",
        "tasks": [{"domain": "sums", "source": "procedural:sums"},
                  {"domain": "chains", "source": "procedural:chains", "weight": 2.0}],
        "rollout": {"group_size": 3, "groups_per_step": 2, "max_staleness": 1, "retries": 1, "deadline": "50s",
                    "max_resample": 4.0, "run": {"slots": 7}},
        "learner": {"steps": 4},
        "agent": {"renderer": "tiny", "max_tokens": 64},
    }  # fmt: skip
    for section, values in changes.items():
        plain[section] = {**plain[section], **values} if isinstance(plain.get(section), dict) else values
    return Recipe.model_validate(plain, strict=False)


def make_entry(writer, seq, request, member, *, tried=None, reward=0.0, oldest=0, error_class=None, **more):
    tried = request.tries[request.members.index(member)] if tried is None else tried
    return Entry(
        writer=writer, seq=seq, group=request.group, member=member, tried=tried, purpose=request.purpose,
        task=request.task.task, reward=0.0 if error_class else reward, tokens=9, authored=5, oldest=oldest,
        newest=oldest, stop_reason=StopReason.NONE if error_class else StopReason.ANSWERED, error_class=error_class,
        seconds=1.0, row=Row(seq, 1, 0, 9, b""), **more,
    )  # fmt: skip


def mixed(world, request, member):
    """Random rewards; in calm, ones that always differ within a group."""
    value = world.choose(2)
    return float(member % 2 if world.calm else value)


@dataclass
class Worker:
    name: str
    log: list = field(default_factory=list)
    running: dict = field(default_factory=dict)


@dataclass
class Coordinator:
    machine: Machine
    name: str
    read: dict = field(default_factory=dict)


class World:
    def __init__(self, recipe, choices, *, reward=None, faults=True):
        self.recipe, self.faults = recipe, faults
        self._choices = iter(choices)
        self.calm = False
        self.reward = reward or mixed
        self.now, self.names = 100.0, 0
        self.requests, self.manifests, self.evaluations = [], [], {}
        self.weights, self.outcome = 0, None
        self.workers, self.dead = {}, {}
        self.attempt = 1
        self.spawn(), self.spawn()
        self.coordinators = [self.start()]

    def choose(self, n):
        """0 … n-1; always 0, the calm choice, when the stream has run out."""
        value = next(self._choices, None)
        self.calm = value is None
        return 0 if value is None else value % n

    # ── actors ──

    def spawn(self):
        self.names += 1
        name = f"rollout-n{self.names}-{self.attempt}-{self.names:08x}"
        self.workers[name] = Worker(name)

    def start(self):
        self.names += 1
        name = f"coordinator-n-{self.attempt}-{self.names:08x}"
        logs = {**self.dead, **self.workers}
        read = {worker: len(w.log) for worker, w in logs.items()}
        entries = [entry for w in logs.values() for entry in w.log]
        last = self.manifests[-1] if self.manifests else None
        origin = Origin(name=name, attempt=self.attempt, last=last, requests=list(self.requests), entries=entries,
                        evaluated=frozenset(self.evaluations))  # fmt: skip
        return Coordinator(Machine(self.recipe, origin), name, read)

    def restart(self, coordinator):
        self.coordinators[self.coordinators.index(coordinator)] = self.start()

    def facts(self, machine):
        gone = frozenset(name for name in machine.load() if name not in self.workers)
        return Facts(now=self.now, weights=self.weights, alive=frozenset(self.workers), gone=gone)

    def tick(self, coordinator):
        """Read, decide and carry out, dying between any two acts if the stream says so."""
        machine = coordinator.machine
        if len(self.manifests) > machine.batcher.position:
            return self.restart(coordinator)
        for name, worker in {**self.dead, **self.workers}.items():
            for entry in worker.log[coordinator.read.get(name, 0) :]:
                machine.take(entry)
            coordinator.read[name] = len(worker.log)
        decision = machine.decide(self.facts(machine))
        self.check_admissions(machine, decision)
        for worker, request in decision.sends:
            if self.faults and self.choose(40) == 39:
                return self.restart(coordinator)
            self.deliver(worker, request)
        if self.faults and self.choose(40) == 39:
            return self.restart(coordinator)
        if decision.evaluation:
            self.evaluations.setdefault(decision.evaluation.version, decision.evaluation)
            machine.evaluated()
        if decision.step:
            self.publish(coordinator, decision.step)
        if decision.outcome:
            self.outcome = decision.outcome
        assert decision.publishes or decision.waiting
        return decision

    def publish(self, coordinator, manifest):
        if len(self.manifests) >= manifest.position:
            return self.restart(coordinator)
        self.check_manifest(manifest)
        self.manifests.append(manifest)
        if self.faults and self.choose(10) == 9:
            return self.restart(coordinator)
        return coordinator.machine.published(manifest)

    def deliver(self, name, request):
        self.requests.append((name, request))
        worker = self.workers.get(name)
        if worker is None:
            return
        for index, member in enumerate(request.members):
            key = (request.purpose, request.group, member)
            if isinstance(request, Cancel):
                if found := worker.running.pop(key, None):
                    self.append(worker, found, member, error_class=ErrorClass.CANCELLED)
            else:
                assert request.min_version <= self.weights
                single = GroupRequest(**{f: getattr(request, f) for f in request.__struct_fields__}
                                      | {"members": (member,), "tries": (request.tries[index],)})  # fmt: skip
                worker.running[key] = single

    def append(self, worker, request, member, **result):
        worker.log.append(make_entry(worker.name, len(worker.log), request, member, **result))

    def finish(self):
        """One running member of one worker ends: well, in an error, twice, or written by a worker that then dies."""
        running = [(w, key) for w in self.workers.values() for key in w.running]
        if not running:
            return
        worker, key = running[self.choose(len(running))]
        request, member = worker.running.pop(key), key[2]
        if self.faults and self.choose(8) == 7:
            self.append(worker, request, member, error_class=ERRORS[self.choose(len(ERRORS))])
            return
        oldest = request.min_version if key[0] == Purpose.EVAL else self.weights - self.choose(
            self.weights - request.min_version + 1)  # fmt: skip
        result = {"reward": self.reward(self, request, member), "oldest": oldest}
        self.append(worker, request, member, **result)
        if self.faults and self.choose(12) == 11:
            self.append(worker, request, member, **result)

    def die(self, name):
        self.dead[name] = self.workers.pop(name)
        self.dead[name].running.clear()
        self.spawn()

    def resume(self):
        """A new attempt: every process is new."""
        self.attempt += 1
        for name in list(self.workers):
            self.die(name)
        self.coordinators = [self.start()]

    def train(self):
        if self.weights < len(self.manifests):
            self.weights += 1

    def step(self):
        """One random act."""
        act = self.choose(20)
        if act in (0, 1, 2, 3, 4, 5, 6):
            self.finish()
        elif act in (7, 8):
            self.train()
        elif self.faults and act == 9:
            self.die(list(self.workers)[self.choose(len(self.workers))])
        elif self.faults and act == 10:
            self.now += 20
        elif self.faults and act == 11:
            self.restart(self.coordinators[0])
        elif self.faults and act == 12 and len(self.coordinators) == 1:
            self.coordinators.append(self.start())
        elif self.faults and act == 13 and len(self.coordinators) == 2:
            del self.coordinators[0]
        elif self.faults and act == 14:
            self.resume()
        if self.calm:
            self.train()
            self.now += 0.5
        self.now += 0.01
        for coordinator in list(self.coordinators):
            if self.outcome is None:
                self.tick(coordinator)

    def run(self, limit=20_000):
        for _ in range(limit):
            if self.outcome is not None:
                return self
            self.step()
        raise AssertionError(f"no end: {self.coordinators[0].machine.decide(self.facts(self.coordinators[0].machine))}")

    # ── what must always hold ──

    def check_admissions(self, machine, decision):
        batcher, rollout = machine.batcher, self.recipe.rollout
        known = {request.group for _, request in self.requests if is_train(request)}
        new = {request.group for _, request in decision.sends if is_train(request)} - known
        if new and max(new) >= max(known, default=-1):
            lead = self.weights - batcher.position + rollout.max_staleness + 1
            assert batcher.counted <= lead * rollout.groups_per_step

    def check_manifest(self, manifest):
        assert manifest.position == len(self.manifests) + 1
        assert self.weights >= manifest.position - 1
        assert manifest.position <= self.recipe.learner.steps
        allowed = manifest.position - 1 - self.recipe.rollout.max_staleness
        for ref in manifest.records:
            entry = self.entry(ref)
            assert entry.oldest >= allowed
            assert entry.error_class is None
            assert (entry.group, entry.member) == (ref.group, ref.member)
        for refs in manifest.groups:
            assert len({ref.group for ref in refs}) == 1
            assert len({self.entry(ref).reward for ref in refs}) > 1
        order = [refs[0].group for refs in manifest.groups]
        assert order == sorted(order)
        assert len(order) <= self.recipe.rollout.groups_per_step

    def entry(self, ref):
        return {**self.dead, **self.workers}[ref.writer].log[ref.seq]

    def check_account(self):
        check_account(self.manifests, {name: worker.log for name, worker in {**self.dead, **self.workers}.items()})


def check_account(manifests, logs):
    """Every finished record of a settled group is trained on once or named as dropped; nothing is trained on twice;
    positions are contiguous; offsets never pass a record that is still to be settled. `logs`: entries by writer."""
    assert [manifest.position for manifest in manifests] == list(range(1, len(manifests) + 1))
    used = [ref for manifest in manifests for ref in manifest.records]
    records = {(ref.writer, ref.seq) for ref in used}
    assert len(records) == len({(ref.group, ref.member) for ref in used}) == len(used)
    if not manifests:
        return
    dropped = [dropped for manifest in manifests for dropped in manifest.dropped]
    whole = {drop.group for drop in dropped if not drop.members}
    named = {(drop.group, member) for drop in dropped for member in drop.members}
    last = manifests[-1]
    for writer, log in logs.items():
        finished = [e for e in log if e.purpose == Purpose.TRAIN and e.error_class is None and e.group < last.frontier]
        for entry in finished:
            if entry.seq < last.policy_state["seen"].get(writer, 0):
                is_named = entry.group in whole or (entry.group, entry.member) in named
                assert (writer, entry.seq) in records or is_named, entry
        before = [e for e in log if e.seq < last.offsets.get(writer, 0)]
        assert all(e.group < last.frontier for e in before if e.purpose == Purpose.TRAIN)
    frontiers = [manifest.frontier for manifest in manifests]
    assert frontiers == sorted(frontiers)
    assert {ref.group for ref in used} | whole >= set(range(last.frontier))


def is_train(request):
    return isinstance(request, GroupRequest) and request.purpose == Purpose.TRAIN
