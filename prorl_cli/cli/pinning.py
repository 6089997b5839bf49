"""Which image a run keeps: of the name that its recipe says, the newest in the cache, by its own path from then on.

So an image that is built later changes no run, and every attempt has the same. Refuses a name without an image, and an
image that is gone. Called by `preflight` and `launching`.
"""

from __future__ import annotations

import re
from pathlib import Path

from prorl_cli.errors import RecipeError
from prorl_cli.recipe import Recipe, is_image_name

_STORED = re.compile(r"sha256-[0-9a-f]{64}\.sif")


def image_problems(recipe: Recipe, origin: str) -> list[str]:
    """Why `sandbox.image` cannot be had; `origin` is what `prorl cache build` takes to build it."""
    from prorl_cli.images import cache_root

    image = recipe.sandbox.image
    if is_image_name(image) and not _newest(image):
        return [f"sandbox.image: there is no image {image} in {cache_root()}: run `prorl cache build {origin}`"]
    if _STORED.fullmatch(Path(image).name) and not Path(image).exists():
        return [f"sandbox.image: {image} is gone from the cache: say its name with --set sandbox.image=NAME"]
    return []


def pinned(recipe: Recipe, origin: str) -> Recipe:
    """With the path of its image. Raises `RecipeError`."""
    if problems := image_problems(recipe, origin):
        raise RecipeError("\n".join(problems))
    if not is_image_name(recipe.sandbox.image):
        return recipe
    return with_image(recipe, _newest(recipe.sandbox.image))


def with_image(recipe: Recipe, image: str) -> Recipe:
    """The same with another `sandbox.image`."""
    return recipe.model_copy(update={"sandbox": recipe.sandbox.model_copy(update={"image": image})})


def _newest(name: str) -> str:
    from prorl_cli.images import Store, cache_root

    found = Store(cache_root()).find(name)
    return str(found.path) if found else ""
