"""A definition file with everything that it stands for: arguments filled in, every input named by its bytes.

Refuses a file with any mistake, all of them at once, and inputs or bases that are not there. Called by `Store.build`'s
callers; the builder gets the text of `rendered`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.images.digests import Entry, copied_tree, file_digest, folder_digest
from prorl_cli.images.grammar import Copied, Line, Mistakes, Section, Stage, copies, labels, parse
from prorl_cli.images.registry import resolve

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_REFERENCE = re.compile(r"[\w.:/-]+(@sha256:[0-9a-f]{64})?")
_PLAIN = re.compile(r"[\w.,+=@%-]+")
"""Names that mean themselves to every shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a stage is built on: `reference` is as the builder reads it, `path` the local thing that it names.

    `digest` is empty for a tag that can move.
    """

    kind: str
    reference: str
    path: Path | None
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a line of `%files` brings; `sources` lie on the host, and are none where an earlier stage has them."""

    copied: Copied
    sources: tuple[Path, ...]
    tree: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One stage: `header` is what it says besides its base."""

    header: tuple[tuple[str, str], ...]
    base: Base
    sections: tuple[Section, ...]
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """`versions` are the labels that `versioned` images are known by: `version` and `version.<part>`."""

    name: str
    path: Path
    stages: tuple[Built, ...]
    versions: tuple[tuple[str, str], ...]

    @property
    def bases(self) -> tuple[Base, ...]:
        return tuple(stage.base for stage in self.stages)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What keeps its keys from being exact."""
        moving = [base.reference for base in self.bases if not base.digest]
        return tuple(f"base {name} can move: pin {_untagged(name)}@sha256:… for an exact key" for name in moving)


def read_definition(
    path: Path, arguments: Mapping[str, str] | None = None, resolve: Callable[[str], str] = resolve
) -> Definition:
    """`path` with its inputs hashed; `resolve` asks a registry for the digest of a tag. Raises `UserError`."""
    mistakes = Mistakes(str(path))
    stages = parse(_text(path), arguments or {}, mistakes)
    if not _NAME.fullmatch(path.stem):
        mistakes.add(1, f"an image cannot be called {path.stem!r}: letters, digits, . _ and -")
    inputs = [[_input(copied, path.parent, mistakes) for copied in copies(stage, mistakes)] for stage in stages]
    _refuse(mistakes)
    bases = [_base(stage.header, path.parent, mistakes, resolve) for stage in stages]
    _refuse(mistakes)
    built = tuple(map(_built, stages, bases, inputs))
    versions = {k.lower(): v for k, v in labels(stages[-1]).items() if re.fullmatch(r"(?i)version(\..+)?", k)}
    return Definition(name=path.stem, path=path, stages=built, versions=tuple(sorted(versions.items())))


def rendered(definition: Definition, brought: Callable[[Path], Path]) -> str:
    """The text for the builder; `brought` says where the copy of a source lies."""
    return "\n".join(line for stage in definition.stages for line in _lines(stage, brought)) + "\n"


def changed_bases(definition: Definition) -> list[str]:
    """Local bases that are no longer what was hashed."""
    return [str(base.path) for base in definition.bases if base.path and _digest_of(base.path) != base.digest]


def _lines(stage: Built, brought: Callable[[Path], Path]) -> list[str]:
    lines = [f"Bootstrap: {stage.base.kind}", f"From: {stage.base.reference}"]
    lines += [f"{name}: {value}" for name, value in stage.header]
    for entry in stage.inputs:
        copied = entry.copied
        lines.append(f"%files from {copied.stage}" if copied.stage else "%files")
        sources = [str(brought(source)) for source in entry.sources] or [copied.source]
        lines += [f'    "{source}" "{copied.destination}"' for source in sources]
    for section in stage.sections:
        lines.append(f"%{section.name} {section.words}".rstrip())
        lines += [line.text for line in section.lines]
    return lines


def _built(stage: Stage, base: Base, inputs: list[Input]) -> Built:
    header = tuple((key, line.text) for key, line in sorted(stage.header.items()) if key not in ("bootstrap", "from"))
    sections = tuple(section for section in stage.sections if section.name != "files")
    return Built(header=header, base=base, sections=sections, inputs=tuple(inputs))


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the definition {path}: {error.strerror}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{data[: error.start].count(10) + 1}: it is not UTF-8 text") from error
    if "\0" in text:
        raise UserError(f"{path}:{text[: text.index(chr(0))].count(chr(10)) + 1}: it holds a NUL")
    return text


def _input(copied: Copied, folder: Path, mistakes: Mistakes) -> Input:
    if copied.stage:
        return Input(copied=copied, sources=(), tree=())
    sources = _matches(folder, copied.source)
    if not sources:
        mistakes.add(copied.number, f"there is no {copied.source} (looked in {folder})")
    for source in sources:
        if not _PLAIN.fullmatch(source.name):
            mistakes.add(copied.number, f"{source.name!r} cannot be written in a definition: rename it, or its folder")
    try:
        tree = tuple(entry for source in sources for entry in copied_tree(source))
    except (OSError, UserError) as error:
        mistakes.add(copied.number, f"cannot read {copied.source}: {error}")
        tree = ()
    return Input(copied=copied, sources=sources, tree=tree)


def _matches(folder: Path, source: str) -> tuple[Path, ...]:
    if not re.search(r"[*?\[]", source):
        found = [(folder / source).absolute()]
        return tuple(Path(_straight(path)) for path in found if path.exists())
    top, pattern = (Path("/"), source.lstrip("/")) if source.startswith("/") else (folder.absolute(), source)
    return tuple(sorted(path for path in top.glob(pattern) if not path.name.startswith(".")))


def _straight(path: Path) -> str:
    """`folder/.` and `folder/..` have no name of their own."""
    return str(path if path.name not in ("", "..") else path.resolve())


def _base(header: Mapping[str, Line], folder: Path, mistakes: Mistakes, resolve: Callable[[str], str]) -> Base:
    kind, line = header["bootstrap"].text.lower(), header["from"]
    try:
        return _online(line.text, resolve) if kind == "docker" else _local(kind, line.text, folder)
    except (OSError, UserError) as error:
        mistakes.add(line.number, f"From: {line.text}: {error}")
        return Base(kind=kind, reference=line.text, path=None, digest="")


def _online(text: str, resolve: Callable[[str], str]) -> Base:
    """The builder takes a digest only without a tag."""
    reference = text.removeprefix("docker://").removeprefix("//")
    if not _REFERENCE.fullmatch(reference):
        raise UserError("it is no reference like NAME:TAG or NAME@sha256:…")
    name, _, digest = reference.partition("@")
    digest = digest or resolve(reference)
    pinned = f"{_untagged(name)}@{digest}" if digest else reference
    return Base(kind="docker", reference=pinned, path=None, digest=digest)


def _untagged(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"


def _local(kind: str, text: str, folder: Path) -> Base:
    """An archive may be followed by `:` and what to take from it."""
    name, colon, rest = text.partition(":") if kind != "localimage" else (text, "", "")
    path = (folder / name).absolute()
    return Base(kind=kind, reference=f"{path}{colon}{rest}", path=path, digest=_digest_of(path))


def _digest_of(path: Path) -> str:
    return f"sha256:{folder_digest(path) if path.is_dir() else file_digest(path)}"


def _refuse(mistakes: Mistakes) -> None:
    if mistakes.found:
        raise UserError("\n".join(mistakes.found))
