"""Sessions near their memory limit: dumping one may kill its worker, so nothing does it unasked."""

from __future__ import annotations

import asyncio

import pytest
from pydantic_monty import MontyCrashedError, MontyRuntimeError

from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import Moorage
from tests.end_to_end.waiting import PATIENCE, until

MB = 1_000_000
LIMIT = 64 * 2**20
TEXTS = [4 * MB, 10 * MB, 13 * MB, 15 * MB, 17 * MB, 18 * MB, 22 * MB, 30 * MB, 45 * MB, 60 * MB]
"""Sizes of one text under a limit of 64 MiB: of those above about 20 MB a dump kills the worker."""
DICTIONARIES = [5_000, 20_000, 60_000, 100_000]
STATES = [f"kept = 'x' * {size}\nsize = len(kept)" for size in TEXTS] + [
    f"kept = [{{'n': i}} for i in range({count})]\nsize = len(kept)" for count in DICTIONARIES
]
TOO_LARGE = "state too large to save under this session's memory limit of"


@pytest.fixture(scope="module")
def server(launch: Launch) -> Moorage:
    """A server that parks and saves whenever it may: two workers, autosaves all the time."""
    return launch("heavy", WORKERS=3, WARM_WORKERS=0, AUTOSAVE_EVERY=0.2, WORKER_WAIT=8, HEARTBEAT_EVERY=1)


@pytest.mark.parametrize("code", STATES)
async def test_nothing_done_unasked_kills_a_session(server: Moorage, code: str) -> None:
    async with server.client("small") as pool, pool.checkout() as session:
        await session.feed_run("size = 0\nlight = 'light'")
        light = await session.dump()
        try:
            await session.feed_run(code)
        except MontyRuntimeError as error:
            assert "memory limit exceeded" in str(error)
        size = await session.feed_run("size")

        # Others want its worker, and its autosave is long due.
        async def other(n: int) -> object:
            async with pool.checkout(ephemeral=True) as another:
                await another.feed_run(f"n = {n}")
                await asyncio.sleep(0.1)
                return await another.feed_run("n")

        assert await asyncio.gather(*map(other, range(6))) == list(range(6))
        assert await session.feed_run("size, light") == (size, "light")

        try:
            kept = await session.dump()
        except MontyCrashedError as error:
            assert TOO_LARGE in str(error), error
            assert f"{LIMIT:,}" in str(error)
            kept, size = light, 0
    async with server.client("small") as pool, pool.checkout() as session:
        await session.load_session(kept)
        assert await session.feed_run("size, light") == (size, "light")


async def test_what_could_be_dumped_can_be_loaded_and_grow_no_further(server: Moorage) -> None:
    async with server.client("small") as pool:
        async with pool.checkout() as session:
            await session.feed_run(f"kept = 'x' * {12 * MB}")
            record = await session.dump()
        for _ in range(3):
            async with pool.checkout() as session:
                await session.load_session(record)
                with pytest.raises(MontyRuntimeError, match="memory limit exceeded"):
                    await session.feed_run(f"more = 'y' * {60 * MB}")
                assert await session.feed_run("len(kept)") == 12 * MB
                record = await session.dump()


async def test_a_disconnect_tries_all_the_same(server: Moorage) -> None:
    async with server.client("small") as pool:
        async with pool.checkout() as session:
            await session.feed_run("size = 1")
            own = session.session_id
            assert own is not None
            await until(lambda: saved(server, own), "the first autosave")
            await session.feed_run(f"kept = 'x' * {50 * MB}\nsize = 2")
        await until(lambda: not server.status()["sessions"], "the session closed", within=2 * PATIENCE)
        async with pool.checkout() as session:
            await session.load_session(own)
            assert await session.feed_run("size") in (1, 2), "the last save stands, or this one was possible"


def saved(server: Moorage, session_id: bytes) -> bool:
    """Whether a session has a record of its own."""
    return bool(server.sql("SELECT 1 FROM snapshots_record WHERE id = ?", [session_id.hex()]))


async def test_every_worker_heavy(server: Moorage) -> None:
    """When no worker can be had, a request is told so, and nobody is killed."""
    async with server.client("small") as pool, pool.checkout() as a, pool.checkout() as b, pool.checkout() as c:
        for session in (a, b, c):
            await session.feed_run(f"kept = 'x' * {40 * MB}")
        with pytest.raises(MontyRuntimeError, match="server at capacity"):
            async with pool.checkout(ephemeral=True) as another:
                await another.feed_run("1")
        for session in (a, b, c):
            assert await session.feed_run("len(kept)") == 40 * MB
