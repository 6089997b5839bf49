"""The SIF cache: definitions rendered and keyed, images built once for all who ask, proven, published, removed.

Refuses definitions whose result nobody could name, and images that do not prove themselves. Called by the command
line, and by the rollout worker for the image that its boxes run in.
"""

from prorl_cli.images.build import BuildFailed
from prorl_cli.images.definition import Definition, read_definition
from prorl_cli.images.key import MODES, Mode, facts_here, key
from prorl_cli.images.manifest import Image
from prorl_cli.images.store import Store, cache_root, matching
from prorl_cli.images.worker import near

__all__ = [
    "MODES",
    "BuildFailed",
    "Definition",
    "Image",
    "Mode",
    "Store",
    "cache_root",
    "facts_here",
    "key",
    "matching",
    "near",
    "read_definition",
]
