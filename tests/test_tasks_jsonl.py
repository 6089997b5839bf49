"""JSONL sources: every bad line named, splits that cannot overlap, epochs that show every row once."""

import json
import re

import pytest

from prorl_cli.errors import UserError
from prorl_cli.recipe import TaskSpec
from prorl_cli.tasks import open_source


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def source(path, seed=1, **options):
    return open_source(TaskSpec(domain="math", source=str(path), options=options), seed)


def rows(count, start=0):
    return [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(start, start + count)]


def test_every_key_reaches_the_item(tmp_path):
    row = {"question": "x^2 = 2", "answer": "\\sqrt{2}", "verifier": "math", "id": 7, "extra": {"topic": "roots"}}
    held = {"question": "2 + 2", "answer": 4}
    path = write(tmp_path / "a.jsonl", [row])
    tasks = source(path, held_out=str(write(tmp_path / "b.jsonl", [held])))
    item = tasks.item(0, False)
    assert (item.question, item.answer) == ("x^2 = 2", "\\sqrt{2}")
    assert item.payload == {"verifier": "math", "expression": None, "id": "7", "extra": {"topic": "roots"}}
    assert (tasks.item(0, True).answer, tasks.item(0, True).payload["verifier"]) == ("4", "exact")


def test_train_and_held_out_share_no_question_and_lose_none(tmp_path):
    path = write(tmp_path / "a.jsonl", rows(500) + rows(100) + [{"question": "What  is 3 + 1?", "answer": 4}])
    tasks = source(path)
    held_out = [tasks.item(index, True).question for index in range(tasks.held_out_size)]
    train = [tasks.item(index, False).question for index in range(500 - tasks.held_out_size)]
    assert 60 < len(held_out) < 140
    assert not set(held_out) & set(train)
    assert sorted(held_out + train) == sorted(row["question"] for row in rows(500))


def test_a_held_out_file_takes_its_questions_from_train(tmp_path):
    write(tmp_path / "test.jsonl", rows(50))
    tasks = source(write(tmp_path / "train.jsonl", rows(100, start=25)), held_out="test.jsonl")
    assert tasks.held_out_size == 50
    assert [tasks.item(index, True).answer for index in range(50)] == [str(n + 1) for n in range(50)]
    assert {int(tasks.item(index, False).answer) for index in range(75)} == set(range(51, 126))


def test_each_epoch_shows_every_row_once_in_an_order_of_its_own(tmp_path):
    path = write(tmp_path / "a.jsonl", rows(60))
    tasks, again = source(path), source(path)
    size = 60 - tasks.held_out_size
    epochs = [[tasks.item(epoch * size + n, False).question for n in range(size)] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    assert [again.item(n, False).question for n in reversed(range(size))] == epochs[0][::-1]
    assert [source(path, seed=2).item(n, False).question for n in range(size)] != epochs[0]


BAD = [
    ("not json", "Expecting value"),
    ("[1]", "expected an object with question and answer, got list"),
    ('{"answer": "1"}', "question must be text, got None"),
    ('{"question": "  ", "answer": "1"}', "question must be text"),
    ('{"question": "q"}', "answer must be text or a number, got None"),
    ('{"question": "q", "answer": true}', "answer must be text or a number"),
    ('{"question": "q", "answer": "1", "verifer": "math"}', "unknown key 'verifer'"),
    ('{"question": "q", "answer": "1", "verifier": "maths"}', "verifier must be one of exact, number, math"),
    ('{"question": "q", "answer": "many", "verifier": "number"}', "the answer 'many' is none"),
    ('{"question": "q", "answer": "1", "extra": 3}', "extra must be an object"),
    ('{"question": "\\ud800", "answer": "1"}', "surrogates not allowed"),
    ("[" * 20000, "recursion"),
]


def test_all_bad_lines_are_reported_at_once_with_file_and_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    good = json.dumps(rows(1)[0])
    path.write_text("\n".join(f"{good}\n\n{line}" for line, _ in BAD))
    with pytest.raises(UserError) as caught:
        source(path)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == len(BAD)
    for number, (line, (_, complaint)) in enumerate(zip(lines, BAD, strict=True)):
        assert line.startswith(f"{path}:{3 * number + 3}: ")
        assert re.search(re.escape(complaint), line)


def test_bytes_that_are_no_text_are_reported_by_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"question": "q", "answer": "1"}\r\n\xff\xfe\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: .*decode"):
        source(tmp_path / "a.jsonl")


def test_a_thousand_bad_lines_do_not_flood(tmp_path):
    (tmp_path / "a.jsonl").write_text("x\n" * 1000)
    with pytest.raises(UserError, match="980 more"):
        source(tmp_path / "a.jsonl")


def test_empty_missing_and_misused_files_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match="holds no task"):
        source(tmp_path / "empty.jsonl")
    with pytest.raises(UserError, match="cannot read the tasks"):
        source(tmp_path)
    path = write(tmp_path / "a.jsonl", rows(3))
    with pytest.raises(UserError, match=r"cannot read the tasks in .*gone\.jsonl"):
        source(path, held_out="gone.jsonl")
    with pytest.raises(UserError, match="has no option shuffle"):
        source(path, shuffle=True)
    with pytest.raises(UserError, match=r"path of a JSONL file; got 0\.2"):
        source(path, held_out=0.2)


def test_a_file_too_short_to_split_serves_the_side_it_has(tmp_path):
    tasks = source(write(tmp_path / "a.jsonl", rows(1)))
    side, other = (True, False) if tasks.held_out_size else (False, True)
    assert tasks.item(5, side).answer == "1"
    with pytest.raises(UserError, match=r"see options\.held_out"):
        tasks.item(0, other)
