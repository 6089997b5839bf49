"""Other users of the machine get nothing of a run: no answer from a port, no file, no command line, no log, no token."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import psutil
import pytest

from prorl_cli.rundir import RunDir
from prorl_cli.wire import Unreachable
from tests import stranger
from tests.impostors import Impostor, foreign
from tests.quick_run import live_roles, processes_of, start_prorl, until, write_recipe
from tests.run_parts import Processes, client_of, make_run

ROLES = {"coordinator", "router", "rollout", "engine", "learner"}


def below(folder):
    """Every path; a run in full swing removes some meanwhile."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent) / name for name in folders + files)


class Whole:
    """A run in full swing below a folder that everybody may enter, and what it looks like from outside."""

    def __init__(self, folder, run, launch):
        self.folder, self.run, self.launch = folder, run, launch

    @property
    def secrets(self):
        key = "".join(self.run.private_key.read_text().splitlines()[1:-1])
        return [self.run.data_token.read_text(), self.run.admin_token.read_text(), key[40:80]]

    def processes(self):
        launch = psutil.Process(self.launch.pid)
        return {launch, *launch.children(recursive=True), *processes_of(self.folder)}

    def ports(self):
        """Port → role of every announced listener."""
        roles = live_roles(self.run)
        return {int(peer.url.rpartition(":")[2]): role for role, peers in roles.items() for peer in peers if peer.url}

    def files(self):
        """Everything of the run's own tree, and everything temporary that one of its processes holds."""
        found = {str(path) for path in below(self.run.root)}
        temporary = (f"{tempfile.gettempdir()}/", "/dev/shm/", "/var/tmp/")
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                found |= {path for path in _held(process) if path.startswith(temporary)}
        return found - {str(self.folder), str(self.folder / "prorl.log")}  # the test's own

    def words(self):
        """Command lines and environments of its processes."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                yield " ".join(process.cmdline())
                yield str(process.environ())


def _held(process):
    for link in (*Path(f"/proc/{process.pid}/fd").iterdir(), Path(f"/proc/{process.pid}/cwd")):
        with contextlib.suppress(OSError):
            yield str(link.readlink())
    yield from (one.laddr for one in process.net_connections("unix") if str(one.laddr).startswith("/"))


@pytest.fixture(scope="module")
def whole():
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    launch = start_prorl(folder, "launch", write_recipe(folder, steps=100_000), "--run-dir", "run")
    run = RunDir(folder / "run")
    try:
        until(lambda: run.steps.is_dir() and len(run.positions()) >= 2, 300, "the second step")
        until(lambda: live_roles(run).keys() >= ROLES, 60, "every role")
        yield Whole(folder, run, launch)
    finally:
        launch.send_signal(signal.SIGTERM)
        launch.wait(60)
        shutil.rmtree(folder)


def test_every_listening_socket_is_a_guarded_one_on_the_loopback(whole):
    """`README.md` lists what cannot be guarded: with the embedded engine and one learner process there is none."""
    ports, seen = whole.ports(), set()
    for process in whole.processes():
        with contextlib.suppress(psutil.Error):
            for end in process.net_connections("inet"):
                if end.type == socket.SOCK_DGRAM or end.status == psutil.CONN_LISTEN:
                    assert end.laddr.ip == "127.0.0.1" and end.laddr.port in ports, (process.cmdline(), end)
                    seen.add(ports[end.laddr.port])
            # Anybody may connect to a name in the abstract namespace: there are no mode bits on it.
            assert not [end for end in process.net_connections("unix") if str(end.laddr).startswith(("@", "\0"))]
    assert seen == ROLES


def test_every_port_answers_every_request_without_a_token_by_401_and_nothing_else(whole):
    for port, role in whole.ports().items():
        for request in stranger.requests():
            answer = stranger.tls(port, request)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 401 ") and not body, (role, request, answer)
            assert {line.split(b":")[0].lower() for line in head.splitlines()[1:]} <= {
                b"date",
                b"content-length",
                b"connection",
            }
        assert not stranger.plain(port, b"GET /gate HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP"), role


def test_a_stranger_s_requests_leave_no_line_in_a_log(whole):
    logs = "".join(path.read_text() for path in whole.run.logs.rglob("*.log"))
    assert not re.search("upgrade|invalid http|ssl|handshake|websocket", logs, re.IGNORECASE)


def test_no_file_of_the_run_is_open_to_others_by_its_mode_bits(whole):
    files = whole.files()
    assert len(files) > 30
    assert not [path for path in files if stranger.open_to_others(path)]
    assert whole.run.root.stat().st_mode & 0o777 == 0o700
    secrets = [whole.run.data_token, whole.run.admin_token, whole.run.certificate, whole.run.private_key]
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * 4


def test_a_second_user_opens_no_file_of_the_run_and_nothing_of_its_processes(whole):
    private = {
        f"/proc/{process.pid}/{name}" for process in whole.processes() for name in ("environ", "fd", "mem", "maps")
    }
    assert stranger.opened_by_another_user(["/proc/self/environ", str(whole.folder)])
    assert not stranger.opened_by_another_user({str(whole.run.root), *whole.files(), *private})


def test_no_command_line_environment_log_or_other_file_holds_a_token(whole):
    texts = [*whole.words(), (whole.folder / "prorl.log").read_text()]
    secret = whole.run.data_token.parent
    for path in below(whole.run.root):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and secret not in path.parents:
                texts.append(path.read_bytes().decode("latin-1"))
    assert len(texts) > 30
    for word in whole.secrets:
        assert not [text for text in texts if word in text]


def test_urls_name_addresses_and_speak_tls(whole):
    for peers in live_roles(whole.run).values():
        assert all(re.fullmatch(r"https://127\.0\.0\.1:\d+", peer.url) for peer in peers)


@pytest.mark.parametrize("kind", ["with TLS", "in plain text"])
def test_whoever_takes_over_a_dead_engine_s_port_gets_no_token(tmp_path, kind):
    run = make_run(tmp_path / "run")
    processes = Processes(run)

    async def scenario():
        engine = processes.engine()
        router = await processes.endpoint(processes.router())
        url = (await processes.endpoint(engine)).url
        async with client_of(run) as client:
            assert (await lease(client, router.url))["engine_url"] == url
            engine.kill()  # and nobody has noticed yet: its endpoint stands
            engine.wait()
            with Impostor(int(url.rpartition(":")[2]), foreign() if kind == "with TLS" else None) as impostor:
                await heard(impostor, 2)
                with pytest.raises(Unreachable):
                    await client.call("POST", f"{url}/inference/v1/generate", {"token_ids": [1]}, deadline_s=5)
        return impostor

    try:
        impostor = asyncio.run(scenario())
    finally:
        processes.close()
    token = run.data_token.read_bytes()
    assert token not in impostor.heard and b"HTTP" not in impostor.heard and b"earer" not in impostor.heard
    assert not impostor.heard if kind == "with TLS" else impostor.heard


async def lease(client, router):
    body = {"session": "s", "tokens": 10, "wait_s": 5.0}
    return await client.call("POST", f"{router}/leases", body, deadline_s=10)


async def heard(impostor, times):
    """Until the router has asked the gate so often; a handshake that fails never reaches a handler."""
    async with asyncio.timeout(20):
        while impostor.accepted < times:
            await asyncio.sleep(0.02)
