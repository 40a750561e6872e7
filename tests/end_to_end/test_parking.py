"""Parking is invisible: a session that is parked after every turn gives what a worker of one's own gives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_monty import AsyncMonty, AsyncMontySession, AsyncMontyWebsocket

from tests.end_to_end import raw
from tests.end_to_end.between import Recorder
from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import Moorage
from tests.end_to_end.programs import PROGRAMS, Pool
from tests.end_to_end.waiting import until

TURNS = {raw.INSTALL, raw.FEED, raw.RESUME_CALL, raw.RESUME_NAME, raw.RESUME_FUTURES, raw.ABORT}

REFUSED = {"typed_host_modules": 1}
"""Turns after which a worker refuses to dump: while a feed waits for the type stubs of a module."""

SAVING = {name for name, run in PROGRAMS.items() if run.__module__.endswith(".states")}
"""Programs that dump, which an ephemeral session may not."""

local_answers: dict[str, list[object]] = {}


async def locally(name: str) -> list[object]:
    """What a program gives when its workers are children of the client's own process."""
    if name not in local_answers:
        async with AsyncMonty(max_processes=8) as pool:
            local_answers[name] = await PROGRAMS[name](pool)
    return local_answers[name]


class Parking:
    """A server that parks after every turn, and a recorder that passes a request on once that is done."""

    def __init__(self, server: Moorage, *, from_the_vault: bool) -> None:
        self.server = server
        self.recorder = Recorder(server.url, ready=self._ready)
        self._from_the_vault = from_the_vault
        self._before = 0
        self._refused = 0

    def begin(self, refused: int) -> None:
        """Count anew, for a program at which workers refuse to dump so often."""
        self.recorder.requests.clear()
        self._before = self.server.status()["parks"]
        self._refused = refused

    @property
    def turns(self) -> int:
        """Those that a park follows."""
        return max(sum(self.recorder.requests[kind] for kind in TURNS) - self._refused, 0)

    def parks(self) -> int:
        """How many there were."""
        return int(self.server.status()["parks"]) - self._before

    def _ready(self) -> bool:
        status = self.server.status()
        evicted = not self._from_the_vault or status["held_bytes"] == 0
        return evicted and status["parks"] - self._before >= self.turns - status["running"]


@pytest.fixture(scope="module", params=["from memory", "from the vault"])
def parking(request: pytest.FixtureRequest, launch: Launch) -> Iterator[Parking]:
    """Sessions that are parked between every two requests, and resumed from where `param` says."""
    settings: dict[str, object] = {"PARK_EVERY_TURN": 1, "AUTOSAVE_EVERY": 0, "WORKER_WAIT": 60}
    if request.param == "from the vault":
        settings["STATE_CACHE"] = 0
    server = launch("parking", **settings)
    found = Parking(server, from_the_vault=request.param == "from the vault")
    with found.recorder:
        yield found
    assert not found.recorder.failures


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_notices_nothing(name: str, parking: Parking) -> None:
    expected = await locally(name)
    parking.begin(REFUSED.get(name, 0))
    async with parking.server.client(url=parking.recorder.url) as pool:
        found = await PROGRAMS[name](pool)
    assert repr(found) == repr(expected)
    await until(lambda: parking.parks() >= parking.turns, "a park after every turn")
    assert parking.parks() == parking.turns


class Ephemeral:
    """A pool whose sessions are all ephemeral."""

    def __init__(self, pool: AsyncMontyWebsocket) -> None:
        self._pool = pool

    def checkout(self, **options: Any) -> AsyncMontySession:
        """As that of the pool."""
        return self._pool.checkout(ephemeral=True, **options)


@pytest.fixture(scope="module")
def cramped(launch: Launch) -> Moorage:
    """A server with two workers for all sessions."""
    return launch("cramped", WORKERS=2, WARM_WORKERS=1, WORKER_WAIT=60, AUTOSAVE_EVERY=0)


async def test_thirty_programs_share_two_workers(cramped: Moorage) -> None:
    names = [name for name in PROGRAMS if name not in SAVING][::3][:30]
    assert len(names) == 30
    expected = {name: await locally(name) for name in names}

    async with cramped.client() as pool:

        async def run(at: int, name: str) -> list[object]:
            mine: Pool = Ephemeral(pool) if at % 3 == 0 else pool  # type: ignore[assignment]
            return await PROGRAMS[name](mine)

        found = await asyncio.gather(*(run(at, name) for at, name in enumerate(names)))
    for name, answers in zip(names, found, strict=True):
        assert repr(answers) == repr(expected[name]), name


async def test_thirty_sessions_share_two_workers(cramped: Moorage) -> None:
    before = cramped.status()
    everyone = asyncio.Barrier(30)

    async with cramped.client() as pool:

        async def one(n: int) -> list[object]:
            found = []
            async with pool.checkout(ephemeral=n % 3 == 0) as session:
                await session.feed_run(f"mine = [{n}]\ndef more(x):\n    mine.append(x)\n    return mine")
                for step in range(5):
                    await everyone.wait()
                    code = f"more(await ask({step}))"
                    found.append(await session.feed_run(code, external_lookup={"ask": ask}))
                    assert cramped.status()["workers"]["busy"] <= 2
                assert (session.session_id is None) == (n % 3 == 0)
            return found

        async def ask(step: int) -> int:
            await asyncio.sleep(0.01)
            return step * step

        for n, found in enumerate(await asyncio.gather(*map(one, range(30)))):
            assert found == [[n, *(i * i for i in range(step + 1))] for step in range(5)]
    after = cramped.status()
    assert after["parks"] - before["parks"] >= 30 * 5 - 2, "more sessions than workers: nearly every turn parks one"
    await until(lambda: not cramped.status()["sessions"], "every session closed")


async def test_a_suspended_session_holds_no_worker(cramped: Moorage) -> None:
    answers: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in range(6)]

    async def ask(n: int) -> int:
        return await answers[n]

    async with cramped.client() as pool:

        async def one(n: int) -> object:
            async with pool.checkout() as session:
                return await session.feed_run(f"x = {n}\nawait ask(x) + x", external_lookup={"ask": ask})

        waiting = [asyncio.ensure_future(one(n)) for n in range(6)]
        await until(lambda: cramped.status()["sessions"].get("parked", 0) >= 4, "the first four parked")
        async with pool.checkout() as session:
            assert await session.feed_run("1 + 1") == 2
        for n, answer in enumerate(answers):
            answer.set_result(n * 100)
        assert await asyncio.gather(*waiting) == [n * 101 for n in range(6)]
