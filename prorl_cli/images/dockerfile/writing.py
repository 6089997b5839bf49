"""Stages as the text of a definition that does in order what Docker would.

`%files` come before everything else in a definition, so that each COPY is staged and put in its place when its turn
comes. Pure. Called by `importing`.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Iterator
from pathlib import Path

from prorl_cli.images.dockerfile.context import inside
from prorl_cli.images.dockerfile.stages import Copy, Folder, Run, Stage, Step, Variable
from prorl_cli.images.dockerfile.words import INHERITED

STAGED = "/.prorl-copy"

_POST = """\
    set -e
    docker_copy() {  # as COPY: of a folder what is in it, a file by its name
        if [ -d "$1" ]; then mkdir -p "$2" && cp -a "$1/." "$2/"; return; fi
        case "$2" in */) mkdir -p "$2" ;; *) mkdir -p "$(dirname "$2")" ;; esac
        cp -a "$1" "$2"
    }
    if [ -f /.singularity.d/env/10-docker2singularity.sh ]; then . /.singularity.d/env/10-docker2singularity.sh; fi
    docker_path="$PATH"
    cd /
"""


def definition(stages: list[Stage], origin: str, context: Path, folder: Path) -> str:
    """The text of a definition that lies in `folder`; `origin` is the Dockerfile, in words."""
    one_base = len({stage.image for stage in stages}) == 1
    parts = [f"# Translated from {origin} by `prorl cache import-dockerfile`."]
    for stage in stages:
        copies = [step for step in stage.steps if isinstance(step, Copy)]
        parts += _header(stage, one_base, first=stage is stages[0], alone=len(stages) == 1)
        parts += _files(copies, context, folder)
        parts += ["", "%post", _POST + "\n".join(f"    {line}" for line in _post(stage, copies))]
        if stage is stages[-1]:
            parts += _what_stays(stage)
    return "\n".join(parts) + "\n"


def _header(stage: Stage, one_base: bool, *, first: bool, alone: bool) -> Iterator[str]:
    yield from ("", "") if not first else ()
    yield f"Bootstrap: {'{{ bootstrap }}' if one_base else 'docker'}"
    yield f"From: {'{{ from }}' if one_base else stage.image}"
    if not alone:
        yield f"Stage: {stage.name}"
    if one_base:
        yield from ("", "%arguments", "    bootstrap=docker", f"    from={stage.image}")


def _files(copies: list[Copy], context: Path, folder: Path) -> Iterator[str]:
    for origin in dict.fromkeys(step.stage for step in copies):
        yield ""
        yield f"%files from {origin}" if origin else "%files"
        for number, step in enumerate(copies):
            for source in step.sources if step.stage == origin else ():
                path = source if origin else os.path.relpath(context / inside(source), folder)
                yield f"    {path} {_staged(number, source)}"


def _staged(number: int, source: str) -> str:
    """Under its own name, for a destination may be a folder that is there already."""
    name = posixpath.basename(inside(source))
    return f"{STAGED}/{number}/{'all' if name == '.' else name}"


def _post(stage: Stage, copies: list[Copy]) -> Iterator[str]:
    for step in stage.steps:
        yield f"# line {step.line}"
        yield from _commands(step, copies)
    yield f"rm -rf {STAGED}"


def _commands(step: Step, copies: list[Copy]) -> Iterator[str]:
    match step:
        case Run():
            yield shlex.join(step.argv)
        case Copy():
            for source in step.sources:
                yield f"docker_copy {_staged(copies.index(step), source)} {shlex.quote(step.destination)}"
        case Variable():
            yield _export(step.name, step.value, "${docker_path}")
        case Folder():
            yield f"mkdir -p {shlex.quote(step.path)}"
            yield f"cd {shlex.quote(step.path)}"


def _export(name: str, value: str, inherited: str) -> str:
    literal = "".join(f"\\{letter}" if letter in '"\\$`' else letter for letter in value)
    return f'export {name}="{literal.replace(INHERITED, inherited)}"'


def _what_stays(stage: Stage) -> Iterator[str]:
    if stage.environment:
        yield from ("", "%environment")
        yield from (f"    {_export(name, value, '${PATH}')}" for name, value in stage.environment.items())
    if stage.labels:
        yield from ("", "%labels")
        yield from (f"    {name} {value}" for _, name, value in stage.labels)
    if stage.entrypoint:
        yield from ("", "%runscript")
        yield from (f"    {line}" for line in _runscript(stage))


def _runscript(stage: Stage) -> Iterator[str]:
    if stage.folder:
        yield f"cd {shlex.quote(stage.folder)}"
    if stage.command:
        yield f"if [ $# = 0 ]; then set -- {shlex.join(stage.command)}; fi"
    yield f'exec {shlex.join(stage.entrypoint)} "$@"'
