"""Which definitions a person means: a file, the name of a shipped one, or what a recipe's `sandbox.image` names.

Refuses what is neither, with what there is. Called by `building`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.recipe import Recipe, is_image_name, load_recipe
from prorl_cli.rundir import find_recipe, shipped

_ARGUMENT = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Definition files without repeats, and the first recipe among what was named, if any."""

    files: tuple[Path, ...]
    recipe: Recipe | None = None


def wanted(words: Sequence[str], here: Path) -> Wanted:
    """What `words` mean. Raises `UserError`."""
    found = Wanted(files=())
    for word in words:
        recipe = _recipe_file(word, here)
        if recipe is None:
            found = replace(found, files=(*found.files, _definition(word, here)))
            continue
        loaded = load_recipe(recipe)
        found = replace(found, files=(*found.files, *of_recipe(loaded, recipe)), recipe=found.recipe or loaded)
    return replace(found, files=tuple({file.parent.resolve() / file.name: file for file in found.files}.values()))


def of_recipe(recipe: Recipe, file: Path) -> tuple[Path, ...]:
    """The definitions of its images; one beside the recipe goes before a shipped one of the same name."""
    image = recipe.sandbox.image
    if not image:
        raise UserError(f"{file} names no image: nothing to build. Add `sandbox: {{runtime: apptainer, image: NAME}}`")
    if not is_image_name(image):
        raise UserError(f"{file}: sandbox.image is the file {image}, not the name of a definition: nothing to build")
    return (_named(image, (file.absolute().parent,)),)


def arguments_of(pairs: Sequence[str], base: str) -> dict[str, str]:
    """`--build-arg` and `--base` as the definitions' arguments. Raises `UserError`."""
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise UserError(f"--build-arg {wrong[0]}: it must be NAME=VALUE")
    given = dict(pair.split("=", 1) for pair in pairs)
    return {**_base(base), **{name: _anchored(value) for name, value in given.items()}}


def shared_out(arguments: Mapping[str, str], files: Sequence[Path]) -> dict[Path, dict[str, str]]:
    """To each definition those that it has a place for. Raises `UserError` for one that none has."""
    places = {file: set(_ARGUMENT.findall(file.read_text(encoding="utf-8", errors="replace"))) for file in files}
    for name in arguments:
        if not any(name in found for found in places.values()):
            where = ", ".join(file.name for file in files)
            option = "--base" if name in ("bootstrap", "from") else f"--build-arg {name}"
            raise UserError(f"{option}: there is no {{{{ {name} }}}} in {where}")
    return {file: {name: arguments[name] for name in arguments if name in found} for file, found in places.items()}


def _base(base: str) -> Mapping[str, str]:
    if not base:
        return {}
    if "://" in base:
        kind, _, name = base.partition("://")
        return {"bootstrap": kind, "from": name}
    path = Path(base).expanduser().absolute()
    if not path.exists():
        raise UserError(f"--base {base}: there is no {path}; an image of a registry is docker://NAME")
    return {"bootstrap": _kind(path), "from": str(path)}


def _kind(path: Path) -> str:
    """Of something local: a layout has a file that says so, as an archive of one does."""
    if path.is_dir():
        return "oci" if (path / "oci-layout").is_file() else "localimage"
    if not path.name.endswith((".tar", ".tar.gz", ".tgz")):
        return "localimage"
    import tarfile

    try:
        with tarfile.open(path) as archive:
            names = {name.removeprefix("./") for name in archive.getnames()}
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"--base {path}: cannot be read as an archive: {error}") from error
    if "oci-layout" in names:
        return "oci-archive"
    if "manifest.json" in names:
        return "docker-archive"
    raise UserError(f"--base {path}: neither an OCI nor a Docker archive; unpack it, and say its folder")


def _anchored(value: str) -> str:
    """A path is meant from here, not from the definition's folder."""
    path = Path(value).expanduser()
    return str(path.absolute()) if path.exists() and ("/" in value or path.is_dir()) else value


def _recipe_file(word: str, here: Path) -> Path | None:
    found = find_recipe(Path(word), here)
    if word.endswith((".yaml", ".yml")):
        return found
    is_definition = "/" in word or word.endswith(".def") or word in _shipped() or (here / f"{word}.def").is_file()
    return None if is_definition or found == here / word else found


def _definition(word: str, here: Path) -> Path:
    if "/" not in word:
        return _named(word.removesuffix(".def"), (here.absolute(),))
    path = (here / word).absolute()
    if not path.is_file():
        raise UserError(f"there is no definition {path}; prorl ships {', '.join(_shipped())}")
    return path


def _named(name: str, folders: Sequence[Path]) -> Path:
    for folder in (*folders, shipped("sif_defs")):
        if (folder / f"{name}.def").is_file():
            return folder / f"{name}.def"
    looked = ", ".join(map(str, folders))
    raise UserError(f"there is no definition {name}.def in {looked}, and prorl ships {', '.join(_shipped())}")


def _shipped() -> list[str]:
    return sorted(path.stem for path in shipped("sif_defs").glob("*.def"))
