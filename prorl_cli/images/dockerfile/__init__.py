"""Dockerfiles translated into definitions: faithfully, or refused by line and name. Called by `prorl cache`."""

from prorl_cli.images.dockerfile.importing import Imported, import_dockerfile

__all__ = ["Imported", "import_dockerfile"]
