"""The text of a definition file as stages and sections, with the line of everything; pure.

Refuses what the runtime would run on the host (`%setup`, `%pre`, a shell in a file's name), what it would read
otherwise than it is written, and sources of which nobody can say what they hold: all mistakes at once, with their
lines. Called by `definition`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

SECTIONS = ("arguments", "files", "post", "environment", "labels", "runscript", "startscript", "test", "help")
HEADERS = ("bootstrap", "from", "stage", "includecmd")
_ON_THE_HOST = "runs on the host, not in the image: do its work in %post, and bring files by %files"
_NO_DIGEST = "nobody can say later what it held: pull it once and say `Bootstrap: localimage`"
_MIRROR = (
    "asks a mirror that changes from day to day, as root: make a root folder of it once and say `Bootstrap: localimage`"
)
BASES = ("localimage", "docker", "oci", "oci-archive", "docker-archive")
REFUSED_BASES = {
    **dict.fromkeys(("debootstrap", "mmdebstrap", "yum", "dnf", "zypper", "arch", "busybox"), _MIRROR),
    **dict.fromkeys(("library", "shub", "oras"), _NO_DIGEST),
    **dict.fromkeys(("buildkit", "dockerfile", "docker-daemon"), "needs a daemon that clusters do not run"),
    "scratch": "is filled by %setup, which runs on the host: unpack the files to a folder and say it is a localimage",
}
_TITLE = re.compile(r"%(?P<name>\w+)(?: +(?P<words>.*))?")
_STAGE = re.compile(r"bootstrap:", re.IGNORECASE)
_ARGUMENT = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_WORD = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without what ends it."""

    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`words` are what follows its name on its first line."""

    name: str
    words: str
    number: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What begins with `Bootstrap:`; a definition has one or more, and the last becomes the image."""

    header: Mapping[str, Line]
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A line of `%files`; `stage` is the earlier stage that it copies from, empty for the host."""

    number: int
    stage: str
    source: str
    destination: str


class Mistakes:
    """What is wrong with one file; `found` is in the order of its lines."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._found: list[tuple[int, str]] = []

    def add(self, number: int, words: str) -> None:
        """Line `number` is wrong."""
        if (number, words) not in self._found:
            self._found.append((number, words))

    @property
    def found(self) -> list[str]:
        return [f"{self._where}:{number}: {words}" for number, words in sorted(self._found)]


def parse(text: str, arguments: Mapping[str, str], mistakes: Mistakes) -> tuple[Stage, ...]:
    """The stages, with every `{{ argument }}` filled in from `arguments` or the stage's own `%arguments`."""
    lines = [Line(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1)]
    raw = [_stage(part, mistakes) for part in _parts(lines, mistakes)]
    if not raw:
        mistakes.add(1, "it has no `Bootstrap:` line")
    used: set[str] = set()
    stages = tuple(_filled(stage, arguments, used, mistakes) for stage in raw)
    for name in sorted(arguments.keys() - used):
        mistakes.add(1, f"no {{{{ {name} }}}} in it, but an argument {name!r} was given")
    _check(stages, mistakes)
    return stages


def copies(stage: Stage, mistakes: Mistakes) -> list[Copied]:
    """Every line of its `%files` sections."""
    return [
        copied
        for section in stage.sections
        if section.name == "files"
        for line in _spoken(section.lines)
        if (copied := _copied(section, line, mistakes))
    ]


def labels(stage: Stage) -> dict[str, str]:
    """Its `%labels`."""
    pairs = [
        line.text.strip().partition(" ") for s in stage.sections if s.name == "labels" for line in _spoken(s.lines)
    ]
    return {name: value.strip() for name, _, value in pairs}


def _spoken(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if (text := line.text.strip()) and not text.startswith("#")]


def _parts(lines: Sequence[Line], mistakes: Mistakes) -> list[list[Line]]:
    """The runtime splits at every `Bootstrap:` at the start of a line, in scripts too."""
    starts = [index for index, line in enumerate(lines) if _STAGE.match(line.text)]
    for line in _spoken(lines[: starts[0]] if starts else lines):
        mistakes.add(line.number, "only comments may stand before the first `Bootstrap:`")
    return [list(lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)], strict=False)]


def _stage(lines: Sequence[Line], mistakes: Mistakes) -> Stage:
    titles = [index for index, line in enumerate(lines) if line.text.lstrip().startswith("%")]
    ends = [*titles[1:], len(lines)]
    sections = [_section(lines[start:end], mistakes) for start, end in zip(titles, ends, strict=True)] if titles else []
    header = _header(lines[: titles[0]] if titles else lines, mistakes)
    return Stage(header=header, sections=tuple(section for section in sections if section))


def _header(lines: Sequence[Line], mistakes: Mistakes) -> dict[str, Line]:
    header: dict[str, Line] = {}
    for line in _spoken(lines):
        name, colon, value = line.text.partition("#")[0].partition(":")
        key = name.strip().lower()
        if not colon or key not in HEADERS:
            mistakes.add(line.number, f"{name.strip()!r} is no header that prorl reads ({', '.join(HEADERS)})")
        elif key in header:
            mistakes.add(line.number, f"`{key}:` stands at line {header[key].number} already")
        else:
            header[key] = Line(line.number, value.strip())
            if value.rstrip().endswith("\\"):
                mistakes.add(line.number, "a header goes on one line")
    return header


def _section(lines: Sequence[Line], mistakes: Mistakes) -> Section | None:
    title = lines[0]
    match = _TITLE.fullmatch(title.text.rstrip())
    name = match["name"].lower() if match else ""
    if not match:
        mistakes.add(title.number, "a line that begins with % begins a section, also in a script: `%name` alone")
    elif name in ("setup", "pre"):
        mistakes.add(title.number, f"%{name} {_ON_THE_HOST}")
    elif name not in SECTIONS:
        mistakes.add(title.number, f"%{name} is no section that prorl builds ({', '.join(SECTIONS)})")
    else:
        return Section(name=name, words=(match["words"] or "").strip(), number=title.number, lines=tuple(lines[1:]))
    return None


def _filled(stage: Stage, given: Mapping[str, str], used: set[str], mistakes: Mistakes) -> Stage:
    values = {**_defaults(stage, mistakes), **given}

    def fill(line: Line) -> Line:
        names = set(_ARGUMENT.findall(line.text))
        used.update(names)
        for name in sorted(names - values.keys()):
            mistakes.add(line.number, f"{{{{ {name} }}}} has no value: give the argument, or a default in %arguments")
        return Line(line.number, _ARGUMENT.sub(lambda match: values.get(match[1], ""), line.text))

    kept = [section for section in stage.sections if section.name != "arguments"]
    for name in sorted(name for name, value in values.items() if "\n" in value or "{{" in value):
        mistakes.add(1, f"the value of argument {name!r} holds a line break or {{{{")
    return Stage(
        header={key: fill(line) for key, line in stage.header.items()},
        sections=tuple(replace(section, lines=tuple(map(fill, section.lines))) for section in kept),
    )


def _defaults(stage: Stage, mistakes: Mistakes) -> dict[str, str]:
    values = {}
    for line in (line for s in stage.sections if s.name == "arguments" for line in _spoken(s.lines)):
        name, equals, value = line.text.partition("=")
        if not equals or not re.fullmatch(r"\w+", name.strip()):
            mistakes.add(line.number, "%arguments holds lines like `name=value`")
        values[name.strip()] = value.strip()
    return values


def _check(stages: Sequence[Stage], mistakes: Mistakes) -> None:
    names: list[str] = []
    for stage in stages:
        line = stage.header.get("bootstrap", Line(1, ""))
        kind = line.text.lower()
        if kind in REFUSED_BASES:
            mistakes.add(line.number, f"`Bootstrap: {kind}` {REFUSED_BASES[kind]}")
        elif kind not in BASES:
            mistakes.add(line.number, f"`Bootstrap: {kind}` is none of {', '.join(BASES)}")
        if not stage.header.get("from", line).text or "from" not in stage.header:
            mistakes.add(line.number, "it lacks `From:`, what the image is built on")
        for section in stage.sections:
            _check_words(section, names, mistakes)
        names.append(stage.header.get("stage", Line(0, "")).text)


def _check_words(section: Section, earlier: Sequence[str], mistakes: Mistakes) -> None:
    first, _, rest = section.words.partition(" ")
    if section.name == "files" and section.words and (first != "from" or rest.strip() not in earlier):
        mistakes.add(section.number, f"%files {section.words}: it says `from` and an earlier `Stage:`, or nothing")


def _copied(section: Section, line: Line, mistakes: Mistakes) -> Copied | None:
    words = [quoted or bare for quoted, bare in _WORD.findall(line.text.strip())]
    if len(words) > 2 or any(mark in line.text for mark in "$`'\\~{}"):
        # The runtime hands a source to a shell of its own, on the host.
        mistakes.add(line.number, "%files holds lines like `SOURCE DESTINATION`, without $ ` ' \\ ~ or braces")
        return None
    source, destination = words[0], words[1] if len(words) == 2 else ""
    if not destination and re.search(r"[*?\[]", source):
        mistakes.add(line.number, "a pattern needs a destination")
    stage = section.words.partition(" ")[2].strip()
    return Copied(number=line.number, stage=stage, source=source, destination=destination or f"/{source.lstrip('/')}")
