"""From a Dockerfile to a definition, or to every reason why not. Called by `prorl cache import-dockerfile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.images.dockerfile.reading import Problem, read
from prorl_cli.images.dockerfile.second_reading import disagreements
from prorl_cli.images.dockerfile.stages import Builder, build
from prorl_cli.images.dockerfile.writing import definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """`left_out` says what has no meaning in a box."""

    text: str
    left_out: tuple[Problem, ...]


def import_dockerfile(file: Path, *, context: Path, out: Path) -> Imported:
    """What `out` should hold. Raises `UserError` that names every line without a translation."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {error}") from error
    instructions, problems = read(text)
    builder = build(instructions, context)
    problems = sorted({*problems, *builder.problems})
    problems = problems or disagreements(builder.stages)
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise UserError(f"{file} cannot be translated into a definition:\n{listed}\nNothing was written.")
    made = definition(builder.stages, file.name, context.absolute(), out.absolute().parent)
    return Imported(text=made, left_out=(*_unused_command(builder), *builder.left_out))


def _unused_command(builder: Builder) -> tuple[Problem, ...]:
    """An image's command is of no use to tools; without ENTRYPOINT the base image's own is not known either."""
    last = builder.stages[-1]
    if not last.command or last.entrypoint:
        return ()
    return (Problem(last.line, "CMD left out: tools are run in a box, and never the image's own command"),)
