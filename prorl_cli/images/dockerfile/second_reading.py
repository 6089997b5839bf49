"""spython's parser reads the same file: what it understands differently is not translated.

It is given one plain line an instruction, which is where it reads well, and launches nothing. Called by `importing`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prorl_cli.images.dockerfile.context import inside
from prorl_cli.images.dockerfile.reading import Problem
from prorl_cli.images.dockerfile.stages import Copy, Folder, Run, Stage, Step, Variable
from prorl_cli.images.dockerfile.words import INHERITED


def disagreements(stages: list[Stage]) -> list[Problem]:
    """Where spython's recipe of the stages is not what `stages` says."""
    recipes = _recipes("".join(f"{line}\n" for stage in stages for line in _plain(stage)))
    if list(recipes) != [stage.name for stage in stages]:
        return [Problem(stages[0].line, f"FROM: spython's parser sees the stages {list(recipes)}")]
    return [problem for stage in stages for problem in _differences(stage, recipes[stage.name])]


def _recipes(text: str) -> dict[str, Any]:
    from spython.logger import bot
    from spython.main.parse.parsers.docker import DockerParser

    bot.level = -10  # it would warn of files that are not in the current folder
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Dockerfile"
        file.write_text(text, encoding="utf-8")
        recipes: dict[str, Any] = DockerParser(str(file)).recipe
    return recipes


def _plain(stage: Stage) -> Iterator[str]:
    yield f"FROM {stage.image} AS {stage.name}"
    for step in stage.steps:
        yield from _plain_step(step)
    for _, name, value in stage.labels:
        yield f"LABEL {name}={value}"
    if stage.entrypoint:
        yield f"ENTRYPOINT {' '.join(stage.entrypoint)}"


def _plain_step(step: Step) -> Iterator[str]:
    match step:
        case Run():
            yield f"RUN {step.text}"
        case Copy():
            origin = [f"--from={step.stage}"] if step.stage else []
            yield " ".join(["COPY", *origin, *_sources(step), step.destination])
        case Variable(lasting=True):
            yield f"ENV {_assignment(step)}"
        case Folder():
            yield f"WORKDIR {step.path}"


def _sources(step: Copy) -> list[str]:
    return list(step.sources) if step.stage else [inside(source) for source in step.sources]


def _assignment(step: Variable) -> str:
    value = step.value.replace(INHERITED, "$PATH")
    return f'{step.name}="{value}"' if " " in value else f"{step.name}={value}"


def _differences(stage: Stage, recipe: Any) -> Iterator[Problem]:
    if recipe.fromHeader.strip() != stage.image:
        yield Problem(stage.line, f"FROM: spython's parser reads {recipe.fromHeader!r}")
    yield from _compared([(step.line, text) for step in stage.steps for text in _installs(step)], recipe.install)
    yield from _compared([(line, [f"{name}={value}"]) for line, name, value in stage.labels], recipe.labels)
    copies = [step for step in stage.steps if isinstance(step, Copy)]
    for origin in sorted({step.stage for step in copies}):
        wanted = [(step.line, pair) for step in copies if step.stage == origin for pair in _file_pairs(step)]
        yield from _compared(wanted, recipe.layer_files.get(origin, []) if origin else recipe.files)


def _installs(step: Step) -> list[str]:
    match step:
        case Run():
            return [step.text]
        case Variable(lasting=True):
            return [_assignment(step)]
        case Folder():
            return [f"mkdir -p {step.path}", f"cd {step.path}"]
    return []


def _file_pairs(step: Copy) -> list[list[str]]:
    return [[source, step.destination] for source in _sources(step)]


def _compared(ours: list[tuple[int, Any]], theirs: list[Any]) -> Iterator[Problem]:
    for (line, wanted), found in zip(ours, theirs, strict=False):
        if wanted != found:
            yield Problem(line, f"spython's parser reads {found!r}, not {wanted!r}")
            return
    if len(ours) != len(theirs):
        yield Problem(ours[-1][0] if ours else 1, f"spython's parser finds {len(theirs)} parts, not {len(ours)}")
