"""The commands of `prorl cache` besides `build`: each finds its images, calls the store, prints.

Refuses a name that no image has, with those that there are. Called by `cache_app`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prorl_cli.errors import UserError
from prorl_cli.fsio import publish
from prorl_cli.images import Image, Store, cache_root, matching
from prorl_cli.images.dockerfile import import_dockerfile as translated
from prorl_cli.recipe.units import parse_duration, parse_size

SHORT = 12
"""Digits of a key that are shown; eight are enough to name an image."""


def list_images(as_json: bool) -> None:
    """One line an image, newest first."""
    store = Store(cache_root())
    images = store.images()
    if as_json:
        print(json.dumps([_facts(image) for image in images], indent=2))
        return
    if not images:
        print(f"no images in {cache_root()}: build some with `prorl cache build RECIPE`, or `prorl cache build math`")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("name", "key", "mode", "size", "built", "in", "by"):
        table.add_column(column)
    for image in images:
        table.add_row(*map(escape, _cells(image)))
    Console(soft_wrap=True).print(table)


def _cells(image: Image) -> tuple[str, ...]:
    made = image.manifest
    day = made.built_at[:16].replace("T", " ")
    return (image.name, image.key[:SHORT], image.mode, _mib(image.size), day, f"{image.built_s:.0f} s", made.runtime)


def info(wanted: str, as_json: bool) -> None:
    """Everything that is known of an image."""
    image = _image(wanted)
    if as_json:
        print(json.dumps(_facts(image), indent=2))
        return
    facts = _facts(image)
    packages: dict[str, list[str]] = facts.pop("packages")
    for name, value in facts.items():
        print(f"{name:<10} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    for kind, names in packages.items():
        print(f"\n{len(names)} {kind} packages\n{chr(10).join(f'  {name}' for name in names)}")


def verify(wanted: Sequence[str], as_json: bool) -> int:
    """Read all bytes of the images; 1 when one is not what was built."""
    store = Store(cache_root())
    recorded = store.recorded()
    images = [image for word in wanted for image in matching(recorded, word) or [_image(word)]] or recorded
    found = [(image, store.verify(image)) for image in images]
    if as_json:
        print(json.dumps([{"name": image.name, "key": image.key, "problem": why} for image, why in found], indent=2))
    else:
        for image, why in found:
            print(f"{image.name} {image.key[:SHORT]}: {why or 'ok'}")
        if not found:
            print(f"no images in {cache_root()}")
    return 1 if any(why for _, why in found) else 0


def gc(keep: str, unused: str, dry_run: bool, as_json: bool) -> None:
    """Remove what may go, and say what went."""
    keep_bytes = _parsed(parse_size, "--keep", keep) if keep else None
    keep_s = _parsed(parse_duration, "--unused", unused) if unused else None
    removed = Store(cache_root()).gc(keep_bytes=keep_bytes, keep_s=keep_s, dry_run=dry_run)
    if as_json:
        print(json.dumps(msgspec.to_builtins(removed), indent=2, default=str))
        return
    verb = "would remove" if dry_run else "removed"
    for gone in removed:
        print(f"{verb} {', '.join(gone.names) or 'what no name led to'}  {gone.digest[:SHORT]}  {_mib(gone.size)}")
    print(f"{verb} {_mib(sum(gone.size for gone in removed))}" if removed else "nothing to remove")


def _parsed(parse: Any, option: str, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def stage(wanted: str, folder: Path, unpacked: bool) -> str:
    """Where the copy lies."""
    return str(Store(cache_root()).stage(_image(wanted), folder.absolute(), unpacked=unpacked))


def export(wanted: str, file: Path) -> str:
    """A line that says what was written."""
    image = _image(wanted)
    Store(cache_root()).export(image, file)
    return f"{image.name} {image.key[:SHORT]}: {_mib(file.stat().st_size)} in {file}"


def import_file(file: Path) -> str:
    """A line that says what was taken in."""
    image = Store(cache_root()).import_(file)
    return f"{image.name} {image.key[:SHORT]}: {_mib(image.size)} in {image.path}"


def import_dockerfile(file: Path, out: Path, context: Path | None) -> str:
    """Lines that say what was written, and what of the Dockerfile has no meaning in a box."""
    if out.suffix != ".def":
        raise UserError(f"-o {out}: a definition's file is called NAME.def, and its image NAME")
    if out.exists():
        raise UserError(f"-o {out} exists already: remove it, or choose another name")
    made = translated(file, context=(context or file.absolute().parent), out=out)
    try:
        publish(out, made.text.encode())
    except OSError as error:
        raise UserError(f"cannot write {out}: {error}") from error
    left_out = [f"note: {problem}" for problem in made.left_out]
    return "\n".join([*left_out, f"{out} is written: prorl cache build {out}"])


def _image(wanted: str) -> Image:
    """Of that name, or with a key or digest that begins so. Raises `UserError`."""
    store = Store(cache_root())
    found = store.find(wanted)
    if found is None:
        names = ", ".join(sorted({image.name for image in store.images()})) or "none"
        raise UserError(f"there is no image {wanted} in {cache_root()} (there are: {names}): `prorl cache build` it")
    return found


def _facts(image: Image) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(image.manifest)
    return {"path": str(image.path), **facts}


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
