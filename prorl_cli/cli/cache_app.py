"""Every command of `prorl cache`, with the help that teaches it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

cache_app = typer.Typer(
    no_args_is_help=True,
    help="Images of sandboxes: built once, kept by content, shared by all nodes.\n\nA recipe says `sandbox: {image: "
    "math}`; `prorl cache build my.yaml` builds what it needs, and `prorl launch my.yaml` uses it. Images lie in "
    "$PRORL_CACHE, by default in ~/.cache/prorl/images: a folder that all nodes see.",
)

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Name = Annotated[str, typer.Argument(help="An image's name, or the beginning of its key.", metavar="IMAGE")]
Names = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(help="Names, or beginnings of keys. Default: all.", metavar="[IMAGE]..."),
]


@cache_app.command()
def build(
    wanted: Annotated[
        list[str],
        typer.Argument(
            help="A recipe, whose images are built; or definitions: a .def file, or one that prorl ships "
            "(math, code, stem, swe).",
            metavar="RECIPE|DEF...",
        ),
    ],
    mode: Annotated[
        str,
        typer.Option(
            help="lock: anew when anything changed that can change the image. versioned: when the base or a version "
            "in its %labels changed. scratch: always.",
        ),
    ] = "lock",
    jobs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--jobs", "-j", min=1, help="Images built at once. Default: 1; all with --slurm."),
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="A job each, on a node as the recipe's `cluster.rollout` asks.")
    ] = False,
    base: Annotated[
        str,
        typer.Option(
            help="Build on this instead: a root folder, SIF or OCI archive (.tar), or docker://NAME.", metavar="BASE"
        ),
    ] = "",
    arguments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--build-arg", help="A value for {{ NAME }} in the definitions. Repeatable.", metavar="NAME=VALUE"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build every image that is not there yet; what is there is kept, so an interrupted build goes on.

    Any number of these may run at once, on any nodes: of those that want the same image one builds, the others wait
    for it. Offline: `--base FOLDER`, and `--build-arg wheels=FOLDER` where a definition takes wheels.
    """
    from prorl_cli.cli import building

    asked = building.Asked(mode=mode, jobs=jobs, slurm=slurm, base=base, arguments=tuple(arguments or ()))
    raise typer.Exit(building.build(wanted, asked, as_json))


@cache_app.command("list")
def list_images(as_json: Json = False) -> None:
    """The images that are there: name, key, mode, size, age."""
    from prorl_cli.cli import caching

    caching.list_images(as_json)


@cache_app.command()
def info(image: Name, as_json: Json = False) -> None:
    """What an image is: digest, base, builder, build time, and the packages in it."""
    from prorl_cli.cli import caching

    caching.info(image, as_json)


@cache_app.command()
def verify(images: Names = None, as_json: Json = False) -> None:
    """Read every byte again; exit code 1 when an image is not what was built."""
    from prorl_cli.cli import caching

    raise typer.Exit(caching.verify(images or [], as_json))


@cache_app.command()
def gc(
    keep: Annotated[
        str, typer.Option(help="Remove the least recently used until this much is left: 200GiB.", metavar="SIZE")
    ] = "",
    unused: Annotated[
        str, typer.Option(help="Remove what nobody has used for this long: 30d.", metavar="DURATION")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Remove images, but never one in use. Without options: only what failed builds and killed processes left."""
    from prorl_cli.cli import caching

    caching.gc(keep, unused, dry_run, as_json)


@cache_app.command()
def stage(
    image: Name,
    folder: Annotated[Path, typer.Argument(help="On this node's own disk.", metavar="FOLDER")],
    unpacked: Annotated[bool, typer.Option("--unpacked", help="As a folder of files: boxes start faster.")] = False,
) -> None:
    """Copy an image to this node's disk, checked by digest; rollout workers do it by themselves."""
    from prorl_cli.cli import caching

    typer.echo(caching.stage(image, folder, unpacked))


@cache_app.command()
def export(
    image: Name,
    file: Annotated[Path, typer.Argument(help="File to make.", metavar="FILE")],
) -> None:
    """Write an image with its manifest to one file, for `prorl cache import` at another place."""
    from prorl_cli.cli import caching

    typer.echo(caching.export(image, file))


@cache_app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="What `prorl cache export` wrote.", metavar="FILE")],
) -> None:
    """Take in an image from another cache, checked before anybody sees it."""
    from prorl_cli.cli import caching

    typer.echo(caching.import_file(file))


@cache_app.command("import-dockerfile")
def import_dockerfile(
    file: Annotated[Path, typer.Argument(help="A Dockerfile.", metavar="DOCKERFILE")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The definition to write: NAME.def.", metavar="NAME.def")],
    context: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where COPY takes files from. Default: the Dockerfile's folder.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Translate a Dockerfile into a definition, or say line by line what has no translation.

    Then `prorl cache build NAME.def`.
    """
    from prorl_cli.cli import caching

    typer.echo(caching.import_dockerfile(file, out, context))
