"""A running engine for tests: role, router and clients in the test's own event loop, over real sockets."""

import asyncio
from contextlib import asynccontextmanager, suppress

from prorl_cli.engine import GenerateRequest, generate
from prorl_cli.engine.follow import follow
from prorl_cli.engine.protocol import GENERATE_PATH
from prorl_cli.engine.weights import Unproved
from prorl_cli.recipe import Recipe
from prorl_cli.role import Role
from prorl_cli.router.service import body as route
from prorl_cli.rundir import Incarnation
from prorl_cli.spool.members import read_endpoints
from tests.run_parts import make_run


def engine_run(root):
    """A run whose engine has 24 slots and serves 400 tokens."""
    return make_run(root, engine={"slots": 24, "max_model_len": 400}, agent={"renderer": "tiny", "max_tokens": 400})


class Served:
    """A running engine, and the ways of a test to it."""

    def __init__(self, role, working):
        self.role, self.working, self.client = role, working, role.client
        self.sent = 0

    @property
    def endpoint(self):
        return next(one for one in read_endpoints(self.role.run) if one.incarnation == self.role.name)

    @property
    def url(self):
        return self.endpoint.url

    async def gate(self):
        return await self.client.call("GET", f"{self.url}/gate", deadline_s=5)

    async def until(self, condition, seconds=15):
        async with asyncio.timeout(seconds):
            while not condition(await self.gate()):
                if self.working.done():
                    self.working.result()
                await asyncio.sleep(0.005)

    async def ask(self, prompt=(1, 2, 3), **changes):
        self.sent += 1
        fields = {"request_id": f"r{self.sent}", "max_tokens": 30, "seed": self.sent, **changes}
        return await generate(self.client, self.url, GenerateRequest(token_ids=list(prompt), **fields), 30)

    async def post(self, body):
        return await self.client.call("POST", self.url + GENERATE_PATH, body, deadline_s=10)


@asynccontextmanager
async def role(run, kind, body):
    recipe = Recipe.model_validate_json(run.resolved(1).read_text())
    async with Role(run, recipe, Incarnation.new(kind, "node", 1)) as made:
        working = asyncio.ensure_future(body(made))
        try:
            yield made, working
        finally:
            made.stopping.set()
            with suppress(Unproved):
                await working


@asynccontextmanager
async def serving(run, router=True):
    """An engine that serves the newest published version; with a router of its own unless told otherwise."""
    async with role(run, "engine", follow) as (made, working):
        served = Served(made, working)
        async with asyncio.timeout(15):
            while not served.url:
                await asyncio.sleep(0.01)
        await served.until(lambda gate: gate["state"] == "ready")
        if not router:
            yield served
            return
        async with role(run, "router", route):
            yield served


def play(test):
    asyncio.run(asyncio.wait_for(test, 60))
