"""The root of boxes that need a shell and have no image: the host's programs and libraries, and an /etc of prorl's own.

Built once a zygote in its own folder. Refuses the host's /etc, homes and data: copied is what says how programs are
found and whom they trust, nothing that a site may have put a secret in. Called by `runtimes`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

MOUNTED = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc/alternatives")
"""Most are links into /usr nowadays."""

COPIED = (
    "ld.so.cache",
    "services",
    "protocols",
    "ssl/openssl.cnf",
    "ssl/certs/ca-certificates.crt",
    "pki/tls/certs/ca-bundle.crt",
)

WRITTEN = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nbox:x:1000:1000:box:/home/box:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "group": "root:x:0:\nbox:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost box\n",
    "hostname": "box\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    "resolv.conf": "",
}


def build(base: Path, host: Path = Path("/")) -> list[tuple[str, str]]:
    """Make the root in folder `base`. What is to be mounted into it: pairs of host path and path in the box."""
    base.mkdir()
    mounts = []
    for name in MOUNTED:
        source = host / name
        if source.is_symlink():
            (base / name).symlink_to(source.readlink())
        elif source.is_dir():
            (base / name).mkdir(parents=True)
            mounts.append((str(source), f"/{name}"))
    for name, text in WRITTEN.items():
        _make_way(base / "etc" / name).write_text(text)
    for name in COPIED:
        _copy(host / "etc" / name, base / "etc" / name)
    if (host / "usr/lib/os-release").exists():
        (base / "etc/os-release").symlink_to("../usr/lib/os-release")
    return mounts


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copyfile(source, _make_way(target))


def _make_way(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
