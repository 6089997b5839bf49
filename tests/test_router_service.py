"""The router behind HTTP, with scripted engines: holds, wakes, releases, permits, its own death and theirs."""

import asyncio
import resource
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from starlette.applications import Starlette

from prorl_cli.errors import InfraError
from prorl_cli.router import Router
from prorl_cli.router.client import LeaseClient
from prorl_cli.router.service import Service
from prorl_cli.spool.members import Endpoint, live, read_endpoints, read_obituaries
from prorl_cli.trajectory import ErrorClass
from prorl_cli.wire import Client, Refused, Unreachable
from prorl_cli.wire.server import Guard
from tests import tls
from tests.run_parts import Processes, client_of, make_run
from tests.scripted_engine import ScriptedEngine

TOKEN = "t"


def endpoint(role, name, url, started=0.0):
    return Endpoint(incarnation=name, role=role, node="n", attempt=1, pid=1, pid_started=started, url=url)


@dataclass
class Fleet:
    """A service over scripted engines, all in this loop, polled when the test says so; it is its own `Finder`."""

    client: Client
    service: Service
    url: str
    engines: dict = field(default_factory=dict)
    urls: dict = field(default_factory=dict)

    def endpoints(self, kind):
        names = {"router": [("router", self.url)], "engine": list(self.urls.items())}[kind]
        return [endpoint(kind, name, url) for name, url in names]

    async def poll(self):
        return await self.service.poll(self.endpoints("engine"))

    async def lease(self, session="s", **ask):
        body = {"session": session, "tokens": 100, "wait_s": 0.0, **ask}
        return await self.client.call("POST", f"{self.url}/leases", body, deadline_s=20)

    async def status(self):
        return await self.client.call("GET", f"{self.url}/status", deadline_s=5)


@asynccontextmanager
async def fleet(*versions):
    import random

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(tls.client(TOKEN))
        service = Service(Router(random.Random(0), "r"), client, asyncio.Event())
        made = Fleet(client, service, await serve(stack, Starlette(routes=service.routes())))
        for number, version in enumerate(versions):
            made.engines[f"e{number}"] = engine = ScriptedEngine(version=version)
            made.urls[f"e{number}"] = await serve(stack, engine.app())
        await made.poll()
        yield made


async def serve(stack, app):
    server = tls.server(Guard(app, TOKEN))
    url = await server.start()
    stack.push_async_callback(server.stop)
    return url


def test_a_lease_names_an_engine_and_its_release_travels_with_the_next_acquire():
    async def scenario():
        async with fleet(7) as made:
            leases = LeaseClient(made)
            async with leases.lease("s", 100) as lease:
                assert (lease.engine, lease.engine_url, lease.version) == ("e0", made.urls["e0"], 7)
                lease.used(10)
            async with leases.lease("s", 100):
                assert (await made.status())["leases"] == 1
            await leases.close()
            assert (await made.status())["leases"] == 0

    asyncio.run(scenario())


def test_a_request_on_hold_is_woken_when_the_version_it_waits_for_arrives():
    async def scenario():
        async with fleet(1) as made:
            waiting = asyncio.create_task(made.lease(min_version=2, wait_s=10.0))
            while (await made.status())["waiting"] == 0:
                await asyncio.sleep(0.005)
            assert (await made.status())["reason"] == "no engine holds version 2 or newer (they hold 1)"
            made.engines["e0"].version = 2
            await made.poll()
            assert (await asyncio.wait_for(waiting, 1.0))["version"] == 2

    asyncio.run(scenario())


def test_a_request_that_nobody_can_serve_is_refused_in_words_after_its_wait():
    async def scenario():
        async with fleet(1) as made:
            start = time.monotonic()
            with pytest.raises(Refused, match="exactly version 9") as refused:
                await made.lease(version=9, wait_s=0.2)
            assert refused.value.status == 503
            assert 0.2 <= time.monotonic() - start < 5.0
            assert (await made.status())["waiting"] == 0

    asyncio.run(scenario())


def test_a_client_that_went_away_while_on_hold_is_granted_nothing():
    async def scenario():
        async with fleet(1) as made:
            waiting = asyncio.create_task(made.lease(min_version=2, wait_s=10.0))
            while (await made.status())["waiting"] == 0:
                await asyncio.sleep(0.005)
            waiting.cancel()
            await asyncio.sleep(0.05)
            made.engines["e0"].version = 2
            await made.poll()
            while (status := await made.status())["waiting"]:
                await asyncio.sleep(0.005)
            assert status["leases"] == 0

    asyncio.run(scenario())


def test_permits_are_granted_renewed_and_given_back_over_http():
    async def scenario():
        async with fleet(0, 0) as made:

            async def call(path, **body):
                return await made.client.call("POST", f"{made.url}{path}", body, deadline_s=5)

            assert (await call("/permits", engine="e0", version=1))["granted"]
            assert not (await call("/permits", engine="e1", version=1))["granted"]
            await call("/permits/release", engine="e0")
            assert (await call("/permits", engine="e1", version=1))["granted"]

    asyncio.run(scenario())


def test_an_unreadable_request_is_answered_422_in_words():
    async def scenario():
        async with fleet(0) as made:
            for path, body in (("/leases", {"tokens": "x"}), ("/permits", {}), ("/leases/release", {"release": 3})):
                with pytest.raises(Refused) as refused:
                    await made.client.call("POST", f"{made.url}{path}", body, deadline_s=5)
                assert refused.value.status == 422

    asyncio.run(scenario())


def test_an_engine_failure_sends_the_session_elsewhere_at_once():
    async def scenario():
        async with fleet(0, 0) as made:
            leases = LeaseClient(made)
            for number in range(10):
                with pytest.raises(InfraError):
                    async with leases.lease(f"s{number}", 100) as first:
                        raise InfraError(ErrorClass.ENGINE, "scripted")
                async with leases.lease(f"s{number}", 100) as second:
                    assert second.engine != first.engine
                await made.poll()
            await leases.close()

    asyncio.run(scenario())


def test_random_cancellations_and_errors_leak_no_lease():
    async def scenario():
        async with fleet(0, 0) as made:
            leases = LeaseClient(made)

            async def turn(number):
                async with leases.lease(f"s{number}", 100):
                    await asyncio.sleep(0.001 * (number % 5))
                    if number % 3 == 0:
                        raise Unreachable("scripted")

            turns = [asyncio.create_task(turn(number)) for number in range(60)]
            for rest in range(4):
                await asyncio.sleep(0.01)
                for task in turns[rest::8]:
                    task.cancel()
            await asyncio.gather(*turns, return_exceptions=True)
            while (await made.status())["leases"]:
                await asyncio.sleep(0.01)
            assert (await made.status())["granted"] > 0
            await leases.close()

    asyncio.run(scenario())


def test_no_router_is_an_engine_error_at_the_deadline():
    async def scenario():
        async with tls.client(TOKEN) as client:
            nobody = Fleet(client, None, "")
            with pytest.raises(InfraError, match="no router is there") as failed:
                async with LeaseClient(nobody, deadline_s=0.3).lease("s", 1):
                    pass
            assert failed.value.error_class == ErrorClass.ENGINE

    asyncio.run(scenario())


class RunFinder:
    """Finds live roles by the run's endpoint files, as `Role` does."""

    def __init__(self, run, client):
        self.run, self.client = run, client

    def endpoints(self, kind):
        found = live(read_endpoints(self.run), read_obituaries(self.run), 1)
        return [peer for peer in found if peer.role == kind]


def test_a_router_killed_in_flight_is_found_again_and_rebuilds_load_from_the_gates(tmp_path):
    async def scenario(run, processes):
        router, engines = processes.router(), [processes.engine(token_s=0.5), processes.engine(token_s=0.5)]
        await processes.endpoint(router)
        names = [(await processes.endpoint(engine)).incarnation for engine in engines]
        async with client_of(run) as client:
            leases = LeaseClient(RunFinder(run, client), deadline_s=30)
            busy = await hold(leases, "first", names)
            running = asyncio.create_task(generate(client, busy.engine_url))
            processes.kill(router)
            waiting = asyncio.create_task(hold(leases, "second", names))
            again = processes.router()
            granted = await asyncio.wait_for(waiting, 20)
            status = await client.call("GET", (await processes.endpoint(again)).url + "/status", deadline_s=5)
            assert status["engines"][busy.engine]["foreign_tokens"] > 0
            assert granted.engine in names and granted.engine != busy.engine
            running.cancel()
            await leases.close()

    run = make_run(tmp_path / "run")
    processes = Processes(run)
    try:
        asyncio.run(scenario(run, processes))
    finally:
        processes.close()


async def hold(leases, session, names):
    """Take a lease on one of `names` and go on holding it."""
    async with leases.lease(session, 64) as lease:
        assert lease.engine in names
        return lease


async def generate(client, url):
    params = {"max_tokens": 50, "seed": 1, "stop_token_ids": [1]}
    body = {"request_id": "r", "token_ids": [4], "sampling_params": params}
    await client.call("POST", f"{url}/inference/v1/generate", body, deadline_s=60)


def test_an_engine_that_dies_is_out_the_status_says_who_waits_and_one_that_joins_is_in(tmp_path):
    async def scenario(run, processes):
        router, first = processes.router(), processes.engine()
        url = (await processes.endpoint(router)).url
        name = (await processes.endpoint(first)).incarnation
        async with client_of(run) as client:

            async def shown():
                return next(peer.waiting for peer in read_endpoints(run) if peer.role == "router")

            async def serving():
                engines = (await client.call("GET", f"{url}/status", deadline_s=5))["engines"]
                return {engine for engine, facts in engines.items() if facts["state"] == "ready"}

            await until(serving, {name})
            first.kill()
            await until(serving, set())
            second = (await processes.endpoint(processes.engine())).incarnation
            await until(serving, {second})

    run = make_run(tmp_path / "run")
    processes = Processes(run)
    try:
        asyncio.run(scenario(run, processes))
    finally:
        processes.close()


async def until(ask, wanted, timeout=15):
    end = time.monotonic() + timeout
    while (found := await ask()) != wanted:
        assert time.monotonic() < end, f"{found} instead of {wanted}"
        await asyncio.sleep(0.05)


def test_what_a_lease_costs_in_one_process_with_both_sides_in_it():
    async def scenario():
        async with fleet(0, 0) as made:
            leases = LeaseClient(made)

            async def session(name, turns):
                for _ in range(turns):
                    async with leases.lease(name, 100) as lease:
                        lease.used(10)

            await session("warm", 20)
            before = resource.getrusage(resource.RUSAGE_SELF)
            await asyncio.gather(*(session(f"s{number}", 20) for number in range(50)))
            after = resource.getrusage(resource.RUSAGE_SELF)
            await leases.close()
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"a lease: {spent:.2f} ms of CPU, client and router together")
            assert (await made.status())["granted"] == 1020

    asyncio.run(scenario())
