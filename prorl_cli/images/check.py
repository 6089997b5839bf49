"""Proof that a SIF file is whole and runs: its header, its extent, every byte of it once, a shell, bash and Python.

A builder may say that all went well and leave a damaged image (apptainer #3560). Refuses with what is wrong, in words.
Called by `build` and `bundle`; the bytes' digest is `digests`'.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.errors import ProrlError, UserError
from prorl_cli.sandbox import flavour

_HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")
_MAGIC = b"SIF_MAGIC\0"
_ARCHITECTURES = {b"02\0": "amd64", b"04\0": "arm64"}

SMOKE = r"""
say() { echo "#prorl $*"; }
if command -v bash >/dev/null; then say "bash" "$(bash --norc --noprofile -c 'echo $BASH_VERSION')"; fi
if command -v python3 >/dev/null; then
  say "python" "$(python3 -I -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')"
  say "packages pip"
  python3 -c 'from importlib import metadata
for found in sorted({"%s==%s" % (d.metadata["Name"], d.version) for d in metadata.distributions()}): print(found)' \
    2>/dev/null
fi
say "packages system"
if command -v dpkg-query >/dev/null; then dpkg-query -W -f '${Package}=${Version}\n'
elif command -v rpm >/dev/null; then rpm -qa
elif command -v apk >/dev/null; then apk info -v; fi 2>/dev/null
if command -v find >/dev/null && command -v grep >/dev/null; then
  say "unreadable"
  find / -xdev -type f -exec cat {} + 2>&1 >/dev/null | grep -i 'input/output error'
fi
say "end"
"""
"""Reads every file of the image once: only so the damage of a compressed block shows."""


_MARK = "#prorl "
_RUNTIMES_OWN = ("INFO:", "WARNING:", "ERROR:")


class BadImage(ProrlError):
    """An image that must not be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What an image says of itself; `bash` and `python` are versions, empty where it has none."""

    bash: str
    python: str
    packages: dict[str, list[str]]


def check_header(path: Path, arch: str = "") -> None:
    """Whole as far as its header tells, and for `arch` where that is given. Raises `BadImage`, `OSError`."""
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        size = file.seek(0, 2)
    if len(head) < _HEADER.size:
        raise BadImage(f"{path} is no SIF file: it ends after {size} bytes")
    _, magic, _, built_for, _, _, _, _, _, table, table_size, data, data_size = _HEADER.unpack(head)
    if magic != _MAGIC:
        raise BadImage(f"{path} is no SIF file")
    end = max(table + table_size, data + data_size)
    if size < end:
        raise BadImage(f"{path} is truncated: {size} bytes of {end}")
    if arch and _ARCHITECTURES.get(built_for, arch) != arch:
        raise BadImage(f"{path} is for {_ARCHITECTURES[built_for]}, not for {arch}")


def parse_list(said: str) -> None:
    """`sif list` names a packed filesystem to start from. Raises `BadImage`."""
    try:
        flavour.system_partition(said)
    except UserError as error:
        raise BadImage(f"the image holds {error}") from error


def parse_smoke(said: str) -> Contents:
    """From what `SMOKE` printed. Raises `BadImage`."""
    values: dict[str, str] = {}
    lines: dict[str, list[str]] = {}
    part = ""
    for line in said.splitlines():
        if line.startswith(_MARK):
            part = line.removeprefix(_MARK).strip()
            name, _, value = part.partition(" ")
            values[name] = value
        elif not line.startswith(_RUNTIMES_OWN):
            lines.setdefault(part, []).append(line)
    if "end" not in values:
        raise BadImage(f"its shell did not reach the end of the trial: {said.strip()[-300:]!r}")
    if damaged := lines.get("unreadable"):
        raise BadImage(f"files in it cannot be read: {damaged[0]}")
    for name in ("bash", "python"):
        if values.get(name) == "":
            raise BadImage(f"it has {name}, but that does not run")
    packages = {kind: sorted(lines.get(f"packages {kind}", [])) for kind in ("system", "pip")}
    return Contents(bash=values.get("bash", ""), python=values.get("python", ""), packages=packages)
