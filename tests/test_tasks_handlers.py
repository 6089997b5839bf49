"""Handlers: the generic one over real boxes and verifiers, and a user's own by import path."""

import asyncio
import sys

import pytest

from prorl_cli.agent import Limits, ToolBox, load_renderer
from prorl_cli.agent.tiny import CALL, END, ENDCALL, encode
from prorl_cli.errors import UserError
from prorl_cli.recipe import Sandbox, TaskSpec
from prorl_cli.sandbox import open_boxes
from prorl_cli.tasks import Handler, Job, QuestionAnswer, Verifiers, load_handler, open_source, tested
from prorl_cli.trajectory import StopReason, TaskRef
from tests.agent_parts import ScriptedPolicy

SOURCES = {
    "reasoning_gym:chain_sum": {"min_terms": 2, "max_terms": 4, "max_digits": 2},
    "reasoning_gym:basic_arithmetic": {"min_terms": 2, "max_terms": 3, "max_digits": 2},
    "procedural:purchase": {"difficulty": 2},
}


def spec(**fields):
    return TaskSpec.model_validate({"domain": "math", "source": "procedural:purchase", **fields})


def job_of(item, turns, boxes, verifiers, **fields):
    tools = ToolBox(boxes, ["calculator"], 5.0)
    limits = Limits(max_turns=3, max_tokens=400)
    return Job(
        ref=TaskRef(task=0, domain="math", index=0), item=item, seed=1, session="s", policy=ScriptedPolicy(turns),
        renderer=load_renderer("tiny", None), tools=tools, limits=limits, verifiers=verifiers,
        **fields,
    )  # fmt: skip


async def stages(handler, job):
    await handler.init(job)
    episode = await handler.run(job)
    return episode, await handler.eval(job, episode)


def test_the_calculator_solves_every_quickstart_task_in_a_real_box(tmp_path):
    """The expression that a source gives, through the tiny format, a real box and the item's own verifier."""

    async def scenario():
        boxes = await open_boxes(Sandbox(runtime="process"), scratch=tmp_path)
        try:
            async with Verifiers() as verifiers:
                for name, options in SOURCES.items():
                    await solve(open_source(spec(source=name, options=options), 1), boxes, verifiers)
        finally:
            await boxes.close()

    async def solve(source, boxes, verifiers):
        handler = load_handler(spec())
        items = [item for index in range(12) if (item := source.item(index, False)).payload["expression"]]
        assert len(items) > 8
        for item in items:
            call = [CALL, *encode(item.payload["expression"]), ENDCALL]
            job = job_of(item, [call, [*encode(item.answer), END]], boxes, verifiers)
            episode, score = await stages(handler, job)
            assert score.reward == 1.0
            assert episode.tool_calls[0].output == item.answer

    asyncio.run(scenario())


def test_wrong_answers_and_episodes_without_one_are_worth_nothing():
    async def scenario():
        item = open_source(spec(), 1).item(0, False)
        async with Verifiers() as verifiers:
            wrong = await stages(QuestionAnswer(spec()), job_of(item, [[*encode("1"), END]], None, verifiers))
            endless = await stages(QuestionAnswer(spec()), job_of(item, [encode("1" * 999)], None, verifiers))
        return wrong, endless

    (wrong, low), (endless, none) = asyncio.run(scenario())
    assert (wrong.stop_reason, low.reward) == (StopReason.ANSWERED, 0.0)
    assert (endless.stop_reason, none.reward) == (StopReason.MAX_TOKENS, 0.0)


def test_the_system_prompt_comes_before_the_question():
    item = open_source(spec(), 1).item(0, False)
    job = job_of(item, [], None, None, system_prompt="Use the tool.")
    assert QuestionAnswer(spec()).prompt(job) == [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": item.question},
    ]


USERS_OWN = '''
from prorl_cli.tasks import Handler, QuestionAnswer, Score

class Chemistry(QuestionAnswer):
    """Scores length in a process of its own, and keeps a note of failures."""

    async def init(self, job):
        job.state["hint"] = self.spec.options["hint"]

    async def eval(self, job, episode):
        return Score(reward=await job.verifiers.call("my_lab.checks:length", text=episode.answer) / 10, parts={"n": 1.0})

    def eval_error(self, job, error):
        job.state["failed"] = str(error)

class Half(Handler):
    async def init(self, job): ...

class Blocking(QuestionAnswer):
    def eval(self, job, episode): ...

class Picky(QuestionAnswer):
    def __init__(self, spec):
        super().__init__(spec)
        raise ValueError("options.hint is missing")

not_a_class = 3
'''


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A run's snapshot of a user's code; forgotten by this process afterwards."""
    folder = tmp_path / "code"
    (folder / "my_lab").mkdir(parents=True)
    (folder / "my_lab" / "__init__.py").write_text("")
    (folder / "my_lab" / "tasks.py").write_text(USERS_OWN)
    (folder / "my_lab" / "checks.py").write_text("def length(text):\n    return len(text)\n")
    (folder / "my_lab" / "broken.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "my_lab"]:
        del sys.modules[name]


def test_a_users_handler_and_verifier_come_from_the_runs_code_folder(code):
    handler = load_handler(spec(handler="my_lab.tasks:Chemistry", options={"hint": "H2O"}), code)
    item = open_source(spec(), 1).item(0, False)

    async def scenario():
        async with Verifiers(code=code) as verifiers:
            job = job_of(item, [[*encode("1234567"), END]], None, verifiers)
            return job, await stages(handler, job)

    job, (_, score) = asyncio.run(scenario())
    assert (score.reward, score.parts, job.state) == (0.7, {"n": 1.0}, {"hint": "H2O"})
    handler.eval_error(job, ValueError("no"))
    assert job.state["failed"] == "no"


@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        ("my_lab.tasks", "must read package.module:Class"),
        ("my-lab:Class", "must read package.module:Class"),
        ("my_lab.gone:Class", r"my_lab\.gone cannot be imported from .*code and Python's path"),
        ("my_lab.broken:Class", "nowhere_to_be_found"),
        ("my_lab.tasks:Gone", "not a class that extends"),
        ("my_lab.tasks:not_a_class", "not a class that extends"),
        ("builtins:int", "not a class that extends"),
        ("my_lab.tasks:Half", "lacks async def eval, async def run"),
        ("my_lab.tasks:Blocking", r"Blocking\.eval must be `async def`"),
        ("my_lab.tasks:Picky", r"options\.hint is missing"),
    ],
)
def test_a_handler_that_cannot_serve_is_refused_in_words(code, handler, complaint):
    with pytest.raises(UserError, match=complaint):
        load_handler(spec(handler=handler), code)


def test_a_domain_is_a_label_of_questions_and_answers_unless_its_tasks_may_have_tests():
    assert isinstance(load_handler(spec(domain="sums")), QuestionAnswer)
    assert isinstance(load_handler(spec(domain="swe", handler="prorl_cli.tasks:QuestionAnswer")), Handler)
    assert isinstance(load_handler(spec(domain="swe")), tested.Tested)
