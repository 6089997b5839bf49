"""Why a build failed, from the last lines of its log: whether to try again, here or elsewhere, and what to do; pure.

Refuses to call anything transient that it does not know. Called by `build`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """`transient`: the same build may succeed in a moment. `nodes`: the fault is this node's, and another may do."""

    transient: bool
    words: str
    nodes: bool = False


_KNOWN = [
    (r"unexpected end of JSON input", Reason(True, "the registry sent half an answer")),
    (r"TLS handshake timeout|i/o timeout|Client\.Timeout|connection reset by peer|unexpected EOF(?! while looking)",
     Reason(True, "the network dropped a connection")),
    (r"toomanyrequests|\b(429|502|503|504)\b[^\n]*(Too Many|Bad Gateway|Unavailable|Gateway Time)",
     Reason(True, "the registry refuses for the moment")),
    (r"Temporary failure in name resolution|no such host|Temporary failure resolving",
     Reason(True,
            "a host's name was not resolved: nodes without a network need a local base and a wheelhouse in %files",
            nodes=True)),
    (r"no space left on device",
     Reason(False, "the node's disk is full: say a larger folder in APPTAINER_TMPDIR", nodes=True)),
    (r"Disk quota exceeded",
     Reason(False, "your quota is used up: say another folder in APPTAINER_TMPDIR", nodes=True)),
    (r"Failed to create thread|mksquashfs[^\n]*(signal: killed|out of memory)|Cannot allocate memory",
     Reason(False, "the packing ran out of memory or threads: give the job more memory", nodes=True)),
    (r"root\.newuidmap|no mapping entry found in /etc/sub|newuidmap[^\n]*(not found|failed)",
     Reason(False, "the node gives this user no subordinate ids (/etc/subuid), and the build needs some", nodes=True)),
    (r"user namespace[^\n]*(disabled|not permitted|failed)|Failed to create user namespace",
     Reason(False, "the node forbids user namespaces: build on another", nodes=True)),
    (r"manifest unknown|unauthorized|authentication required|requested access to the resource is denied",
     Reason(False, "the registry has no such image, or wants a login (APPTAINER_DOCKER_USERNAME and _PASSWORD)")),
]  # fmt: skip


def explain(lines: Sequence[str]) -> Reason:
    """The last known cause among `lines`, else the builder's own last words."""
    for line in reversed(lines):
        for pattern, reason in _KNOWN:
            if re.search(pattern, line, re.IGNORECASE):
                return reason
    said = [line for line in lines if line.strip()]
    fatal = [line for line in said if line.startswith(("FATAL", "ERROR"))]
    return Reason(False, (fatal[:1] or said[-1:] or ["it said nothing"])[0].strip()[:300])
