"""Asks a registry which digest a tag means now, so that what is built is what is recorded.

Anonymous and over HTTPS (plain HTTP on this machine only). Knows no registry by heart: a name without a host is not
asked for. Refuses a tag of a host that does not answer; what needs a login is pinned by hand. Called by
`read_definition`.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any

from prorl_cli.errors import UserError

_REFERENCE = re.compile(
    r"(?P<host>localhost(?::\d+)?|[\w-]+(?:\.[\w-]+)+(?::\d+)?)/(?P<name>[\w./-]+)(?::(?P<tag>[\w.-]+))?"
)
_KINDS = (
    "application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json", "application/vnd.docker.distribution.manifest.v2+json",
)  # fmt: skip
_DEADLINE_S = 20.0
_LARGEST = 1 << 22
"""Bytes of a manifest; registries allow as many."""


def resolve(reference: str) -> str:
    """`sha256:…` of `HOST/NAME:TAG`; empty for a name without a host. Raises `UserError`."""
    match = _REFERENCE.fullmatch(reference)
    if not match:
        return ""
    scheme = "http" if match["host"].partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    url = f"{scheme}://{match['host']}/v2/{match['name']}/manifests/{match['tag'] or 'latest'}"
    try:
        return _digest(url)
    except (OSError, HTTPException, ValueError) as error:
        pinned = f"{match['host']}/{match['name']}@sha256:…"
        raise UserError(f"its registry does not say which image that is ({error}): write {pinned}") from error


def _digest(url: str) -> str:
    headers = {"Accept": ", ".join(_KINDS)}
    try:
        said, body = _get(url, headers)
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge.lower().startswith("bearer "):
            raise
        said, body = _get(url, headers | {"Authorization": f"Bearer {_token(challenge)}"})
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if said not in ("", digest):
        raise ValueError(f"it says {said} and sends {digest}")
    return digest


def _token(challenge: str) -> str:
    words = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = words.pop("realm", "")
    if not realm.startswith(("https://", "http://localhost", "http://127.0.0.1")):
        raise ValueError(f"it sends to {realm!r} for a token")
    answer: dict[str, Any] = json.loads(_get(f"{realm}?{urllib.parse.urlencode(words)}", {})[1])
    return str(answer.get("token") or answer.get("access_token") or "")


def _get(url: str, headers: dict[str, str]) -> tuple[str, bytes]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_DEADLINE_S) as answer:
        return answer.headers.get("Docker-Content-Digest", ""), answer.read(_LARGEST)
