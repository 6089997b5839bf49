"""How the learner's ranks find each other, whom they listen to, and that none outlives the others; without DeepSpeed."""

import signal
import socket
import ssl
import threading
import time
from contextlib import suppress

import msgspec
import psutil
import pytest

from prorl_cli.errors import ProrlError
from prorl_cli.learner import lifeline, ranks
from prorl_cli.learner.lifeline import Command, Hello, Leader, Lifeline
from prorl_cli.learner.ranks import Place, Rendezvous, interface_of, leave_rendezvous, listening, place, reach
from prorl_cli.learner.trainer import Interrupted
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import claim_attempt
from prorl_cli.wire import certificate
from prorl_cli.wire.client import pinned
from tests.killing import fork, wait

SLURM = {
    "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "4",
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    made = RunDir(tmp_path / "run")
    made.create()
    made.secure(*certificate.make())
    claim_attempt(made, {})
    return made


@pytest.fixture
def door():
    with listening("127.0.0.1") as listener:
        yield listener


def test_a_rank_is_what_its_slurm_step_or_its_launcher_says():
    assert place(SLURM, slurm=True) == Place(rank=3, ranks=8, local_rank=1, key="77.4")
    launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "PRORL_RANKS": "k"}
    assert place(launched, slurm=False) == Place(rank=1, ranks=2, local_rank=1, key="k")


def test_a_local_run_inside_somebodys_slurm_step_and_a_plain_start_are_one_rank():
    assert place(SLURM, slurm=False) == place({}, slurm=True) == place({}, slurm=False) == Place()


def test_the_interface_of_an_address_is_found_and_a_foreign_address_is_refused():
    loopback = interface_of("127.0.0.1")
    assert any(one.address == "127.0.0.1" for one in psutil.net_if_addrs()[loopback])
    with pytest.raises(ProrlError, match=r"192\.0\.2\.1"):
        interface_of("192.0.2.1")


def test_what_a_killed_predecessor_left_costs_another_look(run, door):
    path = run.rendezvous(1, "k")
    dead = listening("127.0.0.1")
    gone = dead.getsockname()[1]
    dead.close()
    leave_rendezvous(path, Rendezvous(address="127.0.0.1", lifeline=gone, store=0))
    fresh = Rendezvous(address="127.0.0.1", lifeline=door.getsockname()[1], store=0)
    later = threading.Timer(0.5, leave_rendezvous, [path, fresh])
    later.start()
    with reach(path, lambda there: socket.create_connection((there.address, there.lifeline), timeout=5)) as found:
        assert found.getpeername()[1] == fresh.lifeline
    later.join()


def test_nobody_there_is_an_error_in_words_at_the_deadline(run, door, monkeypatch):
    monkeypatch.setattr(ranks, "JOIN_S", 0.3)
    with pytest.raises(ProrlError, match="rank 0 of the learner was not there"):
        reach(run.rendezvous(1, "k"), lambda there: there)
    monkeypatch.setattr(lifeline, "JOIN_S", 0.3)
    with pytest.raises(ProrlError, match=r"ranks \[1\] of the learner were not there"):
        Leader(run, door, 2, lambda: False)


def test_a_stop_ends_the_wait_for_ranks(run, door):
    with pytest.raises(Interrupted):
        Leader(run, door, 2, lambda: True)


def followed(run, door, told):
    """The id of a process that writes what it is told into a file, line by line, until the end."""

    def act():
        line = Lifeline(run, 1, *door.getsockname())
        with open(told, "a") as file:
            for command in line.commands():
                file.write(f"{command.do} {command.folder}\n")
                file.flush()

    return fork(act)


def led(run, door):
    return Leader(run, door, 2, lambda: False)


def until(ready, within=20):
    end = time.monotonic() + within
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_commands_arrive_in_order_and_an_end_is_no_death(run, door, tmp_path):
    pid = followed(run, door, tmp_path / "told")
    leader = led(run, door)
    for number in range(100):
        leader.tell(lambda rank, number=number: Command(do="save", folder=f"{number}-{rank}"))
    leader.close()
    assert wait(pid) == 0
    assert (tmp_path / "told").read_text().split("\n")[:-1] == [f"save {number}-1" for number in range(100)]


def test_a_follower_ends_when_rank_0_is_killed_even_while_it_is_busy(run, door, tmp_path):
    def busy():
        for _ in Lifeline(run, 1, *door.getsockname()).commands():
            time.sleep(600)

    def leading():
        led(run, door).tell(lambda rank: Command(do="digests"))
        (tmp_path / "there").touch()
        time.sleep(600)

    follower, leader = fork(busy), fork(leading)
    until((tmp_path / "there").exists)
    psutil.Process(leader).kill()
    assert wait(leader) == -signal.SIGKILL
    started = time.monotonic()
    assert wait(follower) == 1
    assert time.monotonic() - started < 5


def test_rank_0_ends_when_a_follower_is_killed(run, door, tmp_path):
    def leading():
        led(run, door)
        (tmp_path / "there").touch()
        time.sleep(600)

    follower, leader = followed(run, door, tmp_path / "told"), fork(leading)
    until((tmp_path / "there").exists)
    psutil.Process(follower).kill()
    wait(follower)
    assert wait(leader) == 1


def stranger(run, door, say):
    """What the leader answers to bytes over TLS: nothing but the end."""
    with (
        socket.create_connection(door.getsockname(), timeout=10) as plain,
        pinned(run.certificate).wrap_socket(plain) as link,
    ):
        link.sendall(say)
        try:
            return link.recv(100)
        except (ConnectionResetError, ssl.SSLError):
            return b""


def framed(body):
    return len(body).to_bytes(8, "little") + body


def test_strangers_at_the_door_are_turned_away_and_hear_nothing(run, door, tmp_path):
    leader = fork(lambda: led(run, door).close())
    with socket.create_connection(door.getsockname(), timeout=10) as plain, suppress(ConnectionResetError):
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in plain.recv(100)
    for hello in (Hello(token="guess", rank=1), Hello(token=run.data_token.read_text(), rank=2)):
        assert stranger(run, door, framed(msgspec.msgpack.encode(hello))) == b""
    assert stranger(run, door, framed(b"\xc1 not a message")) == b""
    assert stranger(run, door, (2**40).to_bytes(8, "little")) == b""
    assert wait(followed(run, door, tmp_path / "told")) == wait(leader) == 0


def test_a_follower_gives_its_token_to_nobody_else(run, door, tmp_path):
    other = RunDir(tmp_path / "other")
    other.create()
    other.secure(*certificate.make())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other.certificate, other.private_key)
    got = []

    def pose():
        connection, _ = door.accept()
        with connection:
            try:
                got.append(context.wrap_socket(connection, server_side=True).recv(100))
            except OSError:
                got.append(b"")

    posing = threading.Thread(target=pose)
    posing.start()
    with pytest.raises(ssl.SSLCertVerificationError):
        Lifeline(run, 1, *door.getsockname())
    posing.join()
    assert got == [b""]
