"""Instructions as the stages of a build, every value worked out: what a definition can say, and nothing else.

Refuses, by name and line, each instruction that has no faithful translation; all of them at once. Pure but for
looking at what COPY names. Called by `importing`.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from prorl_cli.images.dockerfile.context import problem_of
from prorl_cli.images.dockerfile.reading import Instruction, Problem
from prorl_cli.images.dockerfile.words import INHERITED, Untranslatable, expand, split

LEFT_OUT = {
    "EXPOSE": "a box has no network",
    "STOPSIGNAL": "a box ends with its episode",
    "HEALTHCHECK": "nothing in a box is watched by Docker",
    "VOLUME": "all of a box may be written to, and goes with it",
}
"""Instructions that say nothing about what is in the image."""

_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TEMPLATED = re.compile(r"\{\{\s*\w+\s*\}\}")
_ARCHIVE = re.compile(r"\.(tar|tgz|tbz2?|txz|gz|bz2|xz|zst)$")


@dataclass(frozen=True, slots=True)
class Run:
    line: int
    argv: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Copy:
    """`stage` is empty for what comes from the build context."""

    line: int
    stage: str
    sources: tuple[str, ...]
    destination: str


@dataclass(frozen=True, slots=True)
class Variable:
    """`lasting` for ENV; an ARG is there only while the image is built."""

    line: int
    name: str
    value: str
    lasting: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """WORKDIR."""

    line: int
    path: str


Step = Run | Copy | Variable | Folder


@dataclass(slots=True)
class Stage:
    """What one FROM begins."""

    line: int
    name: str
    image: str
    steps: list[Step] = field(default_factory=list)
    labels: list[tuple[int, str, str]] = field(default_factory=list)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """What lasts, each with its last value."""
        return {step.name: step.value for step in self.steps if isinstance(step, Variable) and step.lasting}

    @property
    def folder(self) -> str:
        """The last WORKDIR; empty = the base image's own."""
        return next((step.path for step in reversed(self.steps) if isinstance(step, Folder)), "")


class Builder:
    """Takes instructions in order; `stages`, `problems` and `left_out` are what became of them."""

    def __init__(self, context: Path) -> None:
        self.stages: list[Stage] = []
        self.problems: list[Problem] = []
        self.left_out: list[Problem] = []
        self._context = context
        self._before: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        self._translated: dict[str, Callable[[Instruction], None]] = {
            "FROM": self._from, "RUN": self._run, "COPY": self._copy, "ADD": self._add, "ENV": self._env,
            "ARG": self._arg, "WORKDIR": self._workdir, "LABEL": self._label, "MAINTAINER": self._maintainer,
            "USER": self._user, "ENTRYPOINT": self._entrypoint, "CMD": self._cmd,
        }  # fmt: skip

    def take(self, instruction: Instruction) -> None:
        """Translate it, or note why not."""
        try:
            self._take(instruction)
        except Untranslatable as error:
            self.problems.append(Problem(instruction.line, f"{instruction.name}: {error}"))

    def _take(self, instruction: Instruction) -> None:
        name = instruction.name
        if not self.stages and name not in ("FROM", "ARG"):
            raise Untranslatable("it comes before the first FROM")
        if _TEMPLATED.search(instruction.rest):
            raise Untranslatable("{{ NAME }} would be taken for an argument of the definition")
        if name in LEFT_OUT:
            self.left_out.append(Problem(instruction.line, f"{name} left out: {LEFT_OUT[name]}"))
        elif name in self._translated:
            self._translated[name](instruction)
        else:
            raise Untranslatable("it has no translation; take it out, or build with Docker and import an OCI archive")

    @property
    def _stage(self) -> Stage:
        return self.stages[-1]

    @property
    def _known(self) -> dict[str, str]:
        return {**self._arguments, "PATH": INHERITED, **self._stage.environment}

    def _from(self, instruction: Instruction) -> None:
        words = expand(instruction.rest, self._before).split()
        name = f"stage-{len(self.stages)}"
        if len(words) == 3 and words[1].upper() == "AS":
            name = words.pop().lower()
            words.pop()
        image = " ".join(words)
        self.stages.append(Stage(instruction.line, name, image))
        self._arguments = {}
        if not _IMAGE.fullmatch(image):
            raise Untranslatable(f"{image!r}: only `FROM IMAGE [AS NAME]` is understood, without options")
        if image == "scratch":
            raise Untranslatable("scratch: a definition begins with an image")
        if any(image.lower() == stage.name for stage in self.stages[:-1]):
            raise Untranslatable(f"{image} is an earlier stage: a definition can copy from one, not build upon it")
        if any(name == stage.name for stage in self.stages[:-1]) or not re.fullmatch(r"[a-z0-9][\w.-]*", name):
            raise Untranslatable(f"{name!r} names an earlier stage already, or is no name")

    def _run(self, instruction: Instruction) -> None:
        text = instruction.rest
        if text.startswith("--"):
            raise Untranslatable(f"{text.split()[0]} needs BuildKit")
        if not text:
            raise Untranslatable("nothing is run")
        listed = _listed(text)
        argv = listed or ("/bin/sh", "-c", text)
        self._stage.steps.append(Run(instruction.line, argv, text))

    def _copy(self, instruction: Instruction) -> None:
        words = split(instruction.rest)
        options = [word for word in words if word.startswith("--")]
        stage = ""
        for option in options:
            if not option.startswith("--from="):
                raise Untranslatable(f"{option} has no translation: change owner or mode in a RUN after it")
            stage = self._named_stage(option.removeprefix("--from="))
        self._copied(instruction.line, words[len(options) :], stage)

    def _named_stage(self, wanted: str) -> str:
        names = [stage.name for stage in self.stages[:-1]]
        if wanted.isdigit() and int(wanted) < len(names):
            return names[int(wanted)]
        if wanted.lower() not in names:
            raise Untranslatable(f"--from={wanted} is no earlier stage of this file: give the image a FROM of its own")
        return wanted.lower()

    def _add(self, instruction: Instruction) -> None:
        words = split(instruction.rest)
        for word in words[:-1]:
            if "://" in word or word.startswith(("--", "git@")):
                raise Untranslatable(f"{word}: fetch it with RUN, or before the build and COPY it")
            if _ARCHIVE.search(word):
                raise Untranslatable(f"{word} would be unpacked: COPY it and unpack it with RUN")
        self._copied(instruction.line, words, "")

    def _copied(self, line: int, words: list[str], stage: str) -> None:
        if words and words[0].startswith("["):
            raise Untranslatable("the form with brackets; write the paths out")
        if len(words) < 2:
            raise Untranslatable("a source and a destination are needed")
        *sources, destination = [expand(word, self._known) for word in words]
        for path in (*sources, destination):
            if not re.fullmatch(r"[^\s*?\[\]\\\"'{}\0]+", path):
                raise Untranslatable(f"{path!r}: wildcards, spaces and quotes in a path; name each file")
        if len(sources) > 1 and not destination.endswith("/"):
            raise Untranslatable(f"several sources need a folder: {destination}/")
        for source in () if stage else sources:
            if found := problem_of(self._context, source):
                raise Untranslatable(found)
        if stage and not all(source.startswith("/") for source in sources):
            raise Untranslatable("with --from, paths begin with /")
        self._stage.steps.append(Copy(line, stage, tuple(sources), self._absolute(destination)))

    def _absolute(self, path: str) -> str:
        if path.startswith("/"):
            return path
        if not self._stage.folder:
            raise Untranslatable(f"{path} is relative to the base image's WORKDIR, which is not known: begin with /")
        is_folder = path.endswith("/") or posixpath.basename(path) in (".", "..")
        return posixpath.normpath(posixpath.join(self._stage.folder, path)).rstrip("/") + "/" * is_folder

    def _env(self, instruction: Instruction) -> None:
        for name, value in self._pairs(instruction.rest):
            if not _NAME.fullmatch(name):
                raise Untranslatable(f"{name!r} is no name of a variable")
            if re.search(r"[\"'\\\n]", value):
                raise Untranslatable(f"{name}: quotes and backslashes in a value; set it in a file with RUN")
            self._stage.steps.append(Variable(instruction.line, name, value, lasting=True))

    def _pairs(self, text: str) -> list[tuple[str, str]]:
        """`K=V …`, or the old `K V`; all see the values from before the instruction."""
        words, known = split(text), self._known
        if not words:
            raise Untranslatable("nothing is set")
        if "=" not in words[0]:
            name, _, value = text.strip().partition(" ")
            if not value.strip():
                raise Untranslatable(f"{name} has no value")
            return [(name, expand(value.strip(), known))]
        if wrong := next((word for word in words if "=" not in word), None):
            raise Untranslatable(f"{wrong!r} is not NAME=VALUE")
        return [(expand(name, known), expand(value, known)) for name, _, value in (w.partition("=") for w in words)]

    def _arg(self, instruction: Instruction) -> None:
        for word in split(instruction.rest):
            name, given, value = word.partition("=")
            outside = not self.stages
            if not given and name not in self._before:
                raise Untranslatable(f"{name} has no default: write `ARG {name}=VALUE`")
            if not _NAME.fullmatch(name):
                raise Untranslatable(f"{name!r} is no name of a variable")
            known = self._before if outside else self._known
            result = expand(value, known) if given else self._before[name]
            if INHERITED in result:
                raise Untranslatable(f"{name} depends on the base image's PATH")
            if outside:
                self._before[name] = result
                continue
            self._arguments[name] = result
            if name not in self._stage.environment:
                self._stage.steps.append(Variable(instruction.line, name, result, lasting=False))

    def _workdir(self, instruction: Instruction) -> None:
        path = expand(instruction.rest, self._known)
        if not path or re.search(r"[\s\0]", path):
            raise Untranslatable(f"{path!r} is no path that is understood here")
        self._stage.steps.append(Folder(instruction.line, posixpath.normpath(self._absolute(path))))

    def _label(self, instruction: Instruction) -> None:
        for name, value in self._pairs(instruction.rest):
            if INHERITED in value or re.search(r"\s", name):
                raise Untranslatable(f"{name}: no label of a definition")
            self._stage.labels.append((instruction.line, name, value))

    def _maintainer(self, instruction: Instruction) -> None:
        self._stage.labels.append((instruction.line, "maintainer", instruction.rest.strip("\"'")))

    def _user(self, instruction: Instruction) -> None:
        if instruction.rest not in ("root", "0", "root:root", "0:0"):
            raise Untranslatable(f"{instruction.rest}: all of a definition is built as root, and a box runs as you")

    def _entrypoint(self, instruction: Instruction) -> None:
        listed = _listed(instruction.rest)
        # Its shell form hands no arguments on.
        self._stage.entrypoint = listed or ("/bin/sh", "-c", instruction.rest)

    def _cmd(self, instruction: Instruction) -> None:
        self._stage.command = _listed(instruction.rest) or ("/bin/sh", "-c", instruction.rest)


def _listed(text: str) -> tuple[str, ...]:
    """The words of the form with brackets; empty for the other one, which Docker takes whatever is no JSON for."""
    try:
        words = json.loads(text) if text.startswith("[") else None
    except ValueError:
        return ()
    if words is None:
        return ()
    if not words or not all(isinstance(word, str) for word in words):
        raise Untranslatable(f"{text}: a list of texts is needed")
    return tuple(words)


def build(instructions: Iterable[Instruction], context: Path) -> Builder:
    """All of them taken."""
    builder = Builder(context)
    for instruction in instructions:
        builder.take(instruction)
    if not builder.stages:
        builder.problems.append(Problem(1, "there is no FROM"))
    return builder
