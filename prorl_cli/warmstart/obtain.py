"""The tiny model of a recipe, out of the cache or made now and put there. Called by the room's main."""

from __future__ import annotations

from pathlib import Path

from prorl_cli.errors import RunDirError
from prorl_cli.recipe import Recipe
from prorl_cli.warmstart import cache
from prorl_cli.warmstart.folder import Folder
from prorl_cli.warmstart.training import Say, make_tiny


def obtain_tiny(recipe: Recipe, say: Say) -> Folder:
    """Cached under its content key; a cache that fails costs time, nothing else."""
    entry = cache.cache_root() / cache.content_key(recipe)
    if (found := _cached(entry, say)) is not None:
        say(f"warm start: the tiny model is in the cache ({entry})")
        return found
    made = make_tiny(recipe, say)
    try:
        cache.store(entry, made)
    except (RunDirError, OSError) as error:
        say(f"warm start: not cached: {error}")
    return made


def _cached(entry: Path, say: Say) -> Folder | None:
    try:
        return cache.load(entry)
    except (RunDirError, OSError) as error:
        say(f"warm start: the cache cannot be read: {error}")
        return None
