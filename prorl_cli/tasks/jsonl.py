"""Tasks from a JSONL file: one JSON object a line, blank lines allowed.

    {"question": "What is 6 * 7?", "answer": "42"}
    {"question": "Solve x^2 = 2 for x > 0.", "answer": "\\\\sqrt{2}", "verifier": "math", "id": "sqrt-2"}

| key        | value                                                                                     |
|------------|-------------------------------------------------------------------------------------------|
| `question` | text, not blank                                                                           |
| `answer`   | text or a number                                                                          |
| `verifier` | `exact` (the default; white space aside), `number` (equal in value), `math` (math-verify) |
| `id`       | text or a number, handed on as `item.payload["id"]`                                       |
| `extra`    | an object, handed to your own handler as `item.payload["extra"]`                          |

A line with `tests` is a task graded by them: see `tasks.tested_row`.

Every bad line is reported, with file and line, in one error. Held out is one question in five, chosen by its text,
or the whole file that `options: {held_out: other.jsonl}` names (relative to the source's folder). A question that is
repeated counts once, and a train question that is held out as well is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from prorl_cli.errors import UserError
from prorl_cli.tasks.answers import as_number
from prorl_cli.tasks.source import Item, Options, digest, is_held_out, normalized
from prorl_cli.tasks.tested_row import KEYS as TESTED_KEYS
from prorl_cli.tasks.tested_row import tested_item

KEYS = ("question", "answer", "id", "verifier", "extra")
VERIFIERS = ("exact", "number", "math")
MAX_REPORTED = 20
"""Bad lines named in one error."""


class Jsonl:
    """Rows of a file, each epoch of the train side in a new order. `UserError` names every bad line."""

    def __init__(self, path: Path, options: Options, seed: int) -> None:
        if unknown := sorted(options.keys() - {"held_out"}):
            raise UserError(f"{path}: a JSONL source has no option {', '.join(unknown)}: it has held_out (a file)")
        self._path, self._seed = path, seed
        rows = read_items(path)
        named = options.get("held_out")
        if named is None:
            self._held_out = [item for item in rows if is_held_out(item.question)]
        elif isinstance(named, str):
            self._held_out = read_items(path.parent / named)
        else:
            raise UserError(f"{path}: options.held_out is the path of a JSONL file; got {named!r}")
        taken = {normalized(item.question) for item in self._held_out}
        self._epoch, self._epoch_order = -1, list[int]()
        self._train = [item for item in rows if normalized(item.question) not in taken]

    @property
    def held_out_size(self) -> int | None:
        """See `Source.held_out_size`."""
        return len(self._held_out)

    @property
    def rows(self) -> Sequence[Item]:
        """See `Source.rows`."""
        return [*self._train, *self._held_out]

    def item(self, index: int, held_out: bool) -> Item:
        """Held out: row `index` in the file's order; train: every row once an epoch. Both start over at the end."""
        side, name = (self._held_out, "held-out") if held_out else (self._train, "train")
        if not side:
            raise UserError(f"{self._path} has no {name} question: it is too short; see options.held_out")
        epoch, position = divmod(index, len(side))
        return side[position if held_out else self._order(epoch)[position]]

    def _order(self, epoch: int) -> list[int]:
        if epoch != self._epoch:
            self._epoch, self._epoch_order = epoch, list(range(len(self._train)))
            Random(digest("epoch", self._seed, epoch)).shuffle(self._epoch_order)
        return self._epoch_order


def read_items(path: Path) -> list[Item]:
    """Every different question of a file, in its order; `UserError` names all bad lines at once."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read the tasks in {path}: {error.strerror}") from None
    found: dict[str, Item] = {}
    mistakes = []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                item = _item(json.loads(line.decode("utf-8-sig")))
                found.setdefault(normalized(item.question), item)
        except (ValueError, RecursionError) as error:
            mistakes.append(f"{path}:{number}: {error}")
    if mistakes:
        more = f"\n… and {len(mistakes) - MAX_REPORTED} more" if len(mistakes) > MAX_REPORTED else ""
        raise UserError("bad tasks:\n" + "\n".join(mistakes[:MAX_REPORTED]) + more)
    if not found:
        raise UserError(f"{path} holds no task")
    return list(found.values())


def _item(row: Any) -> Item:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with question and answer, got {type(row).__name__}")
    keys = TESTED_KEYS if "tests" in row else KEYS
    if unknown := sorted(row.keys() - set(keys)):
        raise ValueError(f"unknown key {', '.join(map(repr, unknown))}: the keys are {', '.join(keys)}")
    json.dumps(row, ensure_ascii=False).encode("utf-8")  # a ValueError for half of a surrogate pair
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question must be text, got {question!r}")
    return tested_item(row) if "tests" in row else _answered(question, row)


def _answered(question: str, row: dict[str, Any]) -> Item:
    answer, verifier = row.get("answer"), row.get("verifier", "exact")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ValueError(f"answer must be text or a number, got {answer!r}")
    if verifier not in VERIFIERS:
        raise ValueError(f"verifier must be one of {', '.join(VERIFIERS)}, got {verifier!r}")
    if verifier == "number" and as_number(str(answer)) is None:
        raise ValueError(f"verifier is number but the answer {answer!r} is none")
    if not isinstance(row.get("extra", {}), dict):
        raise ValueError(f"extra must be an object, got {row['extra']!r}")
    payload = {"verifier": verifier, "expression": None, "id": str(row.get("id", "")), "extra": row.get("extra", {})}
    return Item(question=question, answer=str(answer), payload=payload)
