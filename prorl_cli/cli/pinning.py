"""Which image a run keeps: of the name that its recipe says, the newest in the cache, by its own path from then on.

So an image that is built later changes no run, and every attempt has the same. Refuses a name without an image, and an
image that is gone. Called by `preflight` and `launching`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from prorl_cli.errors import RecipeError
from prorl_cli.recipe import Recipe, is_image_name

_STORED = re.compile(r"sha256-[0-9a-f]{64}\.sif")


def pinned(recipe: Recipe, folder: Path | None = None) -> Recipe:
    """With the path of its image, whose definition may lie in `folder`. Raises `RecipeError`."""
    image = recipe.sandbox.image
    if is_image_name(image):
        beside = folder / f"{image}.def" if folder else None
        return with_image(recipe, _newest(image, str(beside) if beside and beside.is_file() else image))
    if _STORED.fullmatch(Path(image).name) and not Path(image).exists():
        raise RecipeError(f"sandbox.image: {image} is gone from the cache: say its name with --set sandbox.image=NAME")
    return recipe


def absent_here(recipe: Recipe) -> tuple[str, ...]:
    """For boxes of this machine, why they cannot have their image."""
    image = recipe.sandbox.image
    return (f"sandbox.image: there is no {image}",) if image and not Path(image).exists() else ()


def with_image(recipe: Recipe, image: str) -> Recipe:
    """The same with another `sandbox.image`."""
    return recipe.model_copy(update={"sandbox": recipe.sandbox.model_copy(update={"image": image})})


def _newest(name: str, definition: str) -> str:
    from prorl_cli.images import Store, cache_root

    found = Store(cache_root()).find(name)
    if found is None:
        command = f"prorl cache build {shlex.quote(definition)}"
        raise RecipeError(f"sandbox.image: there is no image {name} in {cache_root()}: run `{command}`")
    return str(found.path)
