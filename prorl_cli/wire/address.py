"""Which address of this machine the other processes of a run reach it at; never a name.

A node's own name may lead to 127.0.1.1, or to an interface that its peers do not reach, so only addresses decide: the
interface that the recipe names, or else the one that leads to the node which started this process. Every role that
listens asks, and so does the rendezvous of the learner's ranks.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from prorl_cli.errors import UserError

LOOPBACK = "127.0.0.1"

LAUNCHER = "SLURM_LAUNCH_NODE_IPADDR"
"""Where the `srun` of this process called from: the address by which Slurm's own traffic came here."""

SUBMITTER = "SLURM_SUBMIT_HOST"
"""The name of the machine that `sbatch` ran on."""

PROBE_PORT = 9
"""Any port: connecting a UDP socket asks the kernel for a route and sends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the decision rests on. `towards`: the local address that leads to a peer's, or nothing without a route."""

    interface: str = ""
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    launcher: str = ""
    submitter: str = ""
    towards: Mapping[str, str] = field(default_factory=dict)


def choose(environ: Mapping[str, str], interface: str) -> str:
    """The address to listen on; `UserError` where `cluster.interface` has to be set, or set to something else."""
    interfaces = _interfaces()
    launcher = plain(environ.get(LAUNCHER, ""))
    submitter = _resolve(environ.get(SUBMITTER, "")) if is_loopback(launcher) else ""
    towards = {peer: local_towards(peer) for peer in (launcher, submitter) if peer}
    return decide(
        Facts(interface=interface, interfaces=interfaces, launcher=launcher, submitter=submitter, towards=towards)
    )


def decide(facts: Facts) -> str:
    """By the interface asked for; else by the way to the launching node; else by the way to the login node, for a
    first node that Slurm reaches by a name of the loopback; else everything runs on this machine."""
    if facts.interface:
        return _of_interface(facts)
    if not is_loopback(facts.launcher):
        if not facts.towards[facts.launcher]:
            raise UserError(f"no route to the launching node {facts.launcher}: set cluster.interface")
        return facts.towards[facts.launcher]
    own = {address for addresses in facts.interfaces.values() for address in addresses}
    local = facts.towards.get(facts.submitter, "")
    return LOOPBACK if facts.submitter in own or is_loopback(local) else local


def _of_interface(facts: Facts) -> str:
    """IPv4 first; link-local addresses lead nowhere without their interface's name."""
    usable = [one for one in facts.interfaces.get(facts.interface, ()) if not ipaddress.ip_address(one).is_link_local]
    if not usable:
        there = ", ".join(sorted(facts.interfaces))
        raise UserError(f"cluster.interface: {facts.interface} has no address on this machine; there are: {there}")
    return min(usable, key=lambda one: ipaddress.ip_address(one).version)


def is_loopback(address: str) -> bool:
    """Whether an address leads no further than this machine; so does none at all."""
    return not address or ipaddress.ip_address(address).is_loopback


def plain(text: str) -> str:
    """An address as written here: IPv4 that travels as IPv6 unwrapped; empty for what is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def in_url(address: str) -> str:
    """An address as a URL has it."""
    return f"[{address}]" if ":" in address else address


def family(address: str) -> socket.AddressFamily:
    """The socket family of an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def local_towards(peer: str) -> str:
    """The local address that the kernel would send from; empty without a route."""
    with socket.socket(family(peer), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, PROBE_PORT))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _resolve(name: str) -> str:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM) if name else []
    except OSError:
        return ""
    addresses = [plain(str(address[0])) for *_, address in found]
    return next((one for one in addresses if not is_loopback(one)), "")


def _interfaces() -> dict[str, tuple[str, ...]]:
    found = {
        name: tuple(plain(entry.address.split("%")[0]) for entry in entries if entry.family in _IP)
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: addresses for name, addresses in found.items() if addresses}


_IP = (socket.AF_INET, socket.AF_INET6)
