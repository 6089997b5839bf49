"""What the tiny model is shown: transcripts of the recipe's own train items, some of them wrong on purpose.

    <bos><user>What is 1 + 2?<end><assistant><call>1 + 2<endcall><result>3<endresult>3<end>

A model that never errs leaves reinforcement learning nothing to do; one that errs at random knows the form and has
room to gain. Refuses held-out items. Called by the training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from prorl_cli.agent import TinyRenderer
from prorl_cli.agent.tiny import CALL, END, ENDCALL, encode
from prorl_cli.errors import UserError
from prorl_cli.recipe import Recipe
from prorl_cli.sandbox.boxed.tool_run import failed
from prorl_cli.sandbox.boxed.tools import ToolError
from prorl_cli.sandbox.boxed.tools import calculator as tool
from prorl_cli.tasks import Item, open_source

MAX_UNFIT = 1000
"""Questions in a row that are too long before the tasks are called unfit for the tiny model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Shares of transcripts: an answer without a call, a call with a wrong digit, an answer copied with one."""

    guess: float
    miscall: float = 0.0
    miscopy: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """`ids` of one episode; `authored` says which of them the policy wrote (equal lengths)."""

    ids: tuple[int, ...]
    authored: tuple[bool, ...]

    @property
    def prompt(self) -> int:
        """Tokens before the first authored one."""
        return self.authored.index(True)


class _Writer:
    """Collects tokens and who wrote them."""

    def __init__(self, prompt: list[int]) -> None:
        self._ids, self._authored = list(prompt), [False] * len(prompt)

    def add(self, ids: list[int], authored: bool) -> None:
        self._ids += ids
        self._authored += [authored] * len(ids)

    def transcript(self) -> Transcript:
        return Transcript(ids=tuple(self._ids), authored=tuple(self._authored))


def transcript(item: Item, system_prompt: str, noise: Noise, draw: Random) -> Transcript:
    """One episode over `item`; an item without an expression can only be guessed."""
    renderer = TinyRenderer()
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    writer = _Writer(renderer.start([*system, {"role": "user", "content": item.question}], []))
    expression = item.payload.get("expression")
    if draw.random() < noise.guess or expression is None:
        writer.add([*encode(wrong_guess(item.answer, draw)), END], True)
        return writer.transcript()
    if draw.random() < noise.miscall:
        expression = with_wrong_digit(expression, draw)
    writer.add([CALL, *encode(expression), ENDCALL], True)
    output, understood = calculate(expression)
    writer.add(renderer.extend(output), False)
    answer = output if understood else wrong_guess(item.answer, draw)
    if understood and draw.random() < noise.miscopy:
        answer = with_wrong_digit(answer, draw)
    writer.add([*encode(answer), END], True)
    return writer.transcript()


def calculate(expression: str) -> tuple[str, bool]:
    """What the calculator's box would print, and whether it understood."""
    try:
        return tool.run({"expression": expression}), True
    except ToolError as error:
        return str(failed(str(error))["output"]), False


def with_wrong_digit(text: str, draw: Random) -> str:
    """`text` with one digit changed, never into a leading zero (no number is written so); unchanged without digits."""
    places = [place for place, character in enumerate(text) if character in "0123456789"]
    if not places:
        return text
    place = draw.choice(places)
    leads = not text[:place][-1:].isdigit() and text[place + 1 : place + 2].isdigit()
    wrong = draw.choice([digit for digit in "0123456789"[leads:] if digit != text[place]])
    return text[:place] + wrong + text[place + 1 :]


def wrong_guess(answer: str, draw: Random) -> str:
    """Another number of a similar size; an answer that is no integer has a digit changed, if it has any."""
    try:
        value = int(answer)
    except ValueError:
        return with_wrong_digit(answer, draw)
    size = max(1, abs(value))
    return str(value + draw.choice((-1, 1)) * draw.randint(1, size + 9))


def stream(recipe: Recipe) -> Callable[[Noise], Transcript]:
    """A function that gives the next transcript; tasks are drawn by weight, each source's items in their order."""
    seed = recipe.warmstart.seed
    sources = [open_source(task, seed) for task in recipe.tasks]
    weights = [task.weight for task in recipe.tasks]
    drawn = [0] * len(sources)
    draw = Random(seed)

    def following(noise: Noise) -> Transcript:
        for _ in range(MAX_UNFIT):
            number = draw.choices(range(len(sources)), weights)[0]
            item = sources[number].item(drawn[number], held_out=False)
            drawn[number] += 1
            found = transcript(item, recipe.agent.system_prompt, noise, draw)
            if len(found.ids) <= recipe.agent.max_tokens:
                return found
        raise UserError(
            f"the tasks are too long for the tiny model: {MAX_UNFIT} episodes in a row were over agent.max_tokens "
            f"({recipe.agent.max_tokens})"
        )

    return following
