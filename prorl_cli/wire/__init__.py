"""HTTP between the processes of one run: TLS and bearer tokens, deadlines on every call, doorbells, no proxies.

Refuses to carry truth: what must not be lost is in the spool, and every reader also polls it slowly.
"""

from prorl_cli.wire.client import Client, Refused, TimedOut, Unreachable, WireError
from prorl_cli.wire.doorbell import Doorbell, listen

__all__ = ["Client", "Doorbell", "Refused", "TimedOut", "Unreachable", "WireError", "listen"]
