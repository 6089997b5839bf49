"""A role listens where its peers reach it: by addresses, never by names, and never on 127.0.1.1 of a node with peers."""

import socket

import psutil
import pytest

from prorl_cli.errors import UserError
from prorl_cli.wire.address import Facts, choose, decide, in_url, local_towards, plain

NICS = {
    "lo": ("127.0.0.1", "::1"),
    "eth0": ("10.0.0.5", "fe80::1"),
    "ib0": ("fe80::2", "2001:db8::5", "192.168.7.5"),
    "ib1": ("fe80::3", "2001:db8::6"),
    "ib2": ("fe80::4",),
}


def facts(**changes):
    return Facts(interfaces=NICS, **changes)


@pytest.mark.parametrize(
    ("known", "chosen"),
    [
        (facts(launcher="10.0.0.1", towards={"10.0.0.1": "10.0.0.5"}), "10.0.0.5"),
        (facts(launcher="10.0.0.5", towards={"10.0.0.5": "10.0.0.5"}), "10.0.0.5"),
        (facts(launcher="192.168.7.1", towards={"192.168.7.1": "192.168.7.5"}), "192.168.7.5"),
        (facts(launcher="2001:db8::1", towards={"2001:db8::1": "2001:db8::5"}), "2001:db8::5"),
        (facts(launcher="127.0.0.1", towards={"127.0.0.1": "127.0.0.1"}), "127.0.0.1"),
        (facts(launcher="127.0.1.1", towards={"127.0.1.1": "127.0.0.1"}), "127.0.0.1"),
        (facts(launcher="127.0.1.1", submitter="10.9.9.9", towards={"10.9.9.9": "10.0.0.5"}), "10.0.0.5"),
        (facts(launcher="127.0.1.1", submitter="10.9.9.9", towards={"10.9.9.9": ""}), "127.0.0.1"),
        (facts(launcher="127.0.0.1", submitter="10.0.0.5", towards={"10.0.0.5": "10.0.0.5"}), "127.0.0.1"),
        (facts(), "127.0.0.1"),
        (facts(interface="ib0", launcher="10.0.0.1", towards={"10.0.0.1": "10.0.0.5"}), "192.168.7.5"),
        (facts(interface="ib1"), "2001:db8::6"),
        (facts(interface="eth0", launcher="127.0.0.1"), "10.0.0.5"),
    ],
)
def test_the_address_follows_from_the_facts(known, chosen):
    assert decide(known) == chosen


@pytest.mark.parametrize("interface", ["ib2", "ib9", "eth"])
def test_an_interface_without_a_usable_address_is_refused_with_those_there_are(interface):
    with pytest.raises(UserError, match=rf"cluster.interface: {interface} .* there are: eth0, ib0, ib1, ib2, lo"):
        decide(facts(interface=interface))


def test_a_launcher_without_a_route_asks_for_the_interface():
    with pytest.raises(UserError, match=r"10\.1\.2\.3: set cluster\.interface"):
        decide(facts(launcher="10.1.2.3", towards={"10.1.2.3": ""}))


def test_what_slurm_says_is_read_as_an_address_or_not_at_all():
    assert plain("::ffff:10.0.0.1") == "10.0.0.1" and plain("2001:DB8::1") == "2001:db8::1"
    assert plain("node07i") == plain("") == plain("10.0.0") == ""
    assert (in_url("::1"), in_url("10.0.0.1")) == ("[::1]", "10.0.0.1")


def test_on_this_machine_a_launcher_on_the_loopback_means_the_loopback():
    assert (
        choose({"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_SUBMIT_HOST": socket.gethostname()}, "") == "127.0.0.1"
    )
    assert choose({"SLURM_LAUNCH_NODE_IPADDR": "127.0.1.1"}, "") == "127.0.0.1"
    assert choose({"SLURM_SUBMIT_HOST": "no-such-host.invalid"}, "") == choose({}, "") == "127.0.0.1"


def test_on_this_machine_every_own_address_leads_to_itself_and_can_be_listened_on():
    loopback = next(
        name for name, found in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in found)
    )
    assert choose({}, loopback) == "127.0.0.1"
    for name, found in psutil.net_if_addrs().items():
        for address in (a.address for a in found if a.family == socket.AF_INET):
            assert local_towards(address) == address
            assert choose({"SLURM_LAUNCH_NODE_IPADDR": address}, "") == address
            socket.create_server((choose({}, name), 0)).close()


def test_asking_the_way_sends_nothing():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(0.2)
        assert local_towards("127.0.0.1") == "127.0.0.1"
        with pytest.raises(TimeoutError):
            listening.recv(1)
