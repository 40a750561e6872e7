"""Thousands of sessions on one server: what they cost, whether each is still itself, whether all survive a swap."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack

import pytest

from tests.end_to_end import raw
from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import Moorage
from tests.end_to_end.waiting import until

pytestmark = [
    pytest.mark.skipif(not os.environ.get("LOAD"), reason="LOAD=1 runs it"),
    pytest.mark.timeout(1800),
]

PARKED = 5_000
MOVED = 1_000
AT_ONCE = 16
MIB = 2**20


@pytest.fixture(scope="module")
def server(launch: Launch) -> Moorage:
    """A server with few workers."""
    return launch("many", WORKERS=8, WORKER_WAIT=60, DISCONNECT_AFTER=120)


async def test_thousands_of_parked_sessions(server: Moorage) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    before = server.server().memory_info().rss
    async with AsyncExitStack() as stack:

        async def opened(n: int) -> raw.Wire:
            async with gate:
                client = await stack.enter_async_context(raw.wire(server, "roomy"))
                assert raw.kind(await client.ask(raw.configure())) == raw.OK
                assert raw.kind(await client.ask(raw.feed(f"n = {n}\nlog = list(range(100))"))) == raw.COMPLETE
                return client

        clients = await asyncio.gather(*map(opened, range(PARKED)))
        await until(lambda: server.status()["unsaved_bytes"] == 0, "every state in storage", within=600)
        grown = server.server().memory_info().rss - before
        print(f"{PARKED} sessions: {grown / MIB:.0f} MiB, {grown / PARKED / 1024:.1f} KiB each")
        assert server.status()["sessions"]["parked"] >= PARKED - 8
        assert grown < 400 * MIB
        for n in random.Random(1).sample(range(PARKED), 200):
            event = await clients[n].ask(raw.feed(f"assert (n, len(log)) == ({n}, 100)"))
            assert raw.kind(event) == raw.COMPLETE
    await until(lambda: not server.status()["sessions"], "every session closed", within=600)


async def test_a_thousand_sessions_move_at_once(server: Moorage) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    async with server.client("roomy", max_processes=MOVED + 10) as pool, AsyncExitStack() as stack:

        async def opened(n: int) -> object:
            async with gate:
                session = await stack.enter_async_context(pool.checkout())
                await session.feed_run(f"n = {n}")
                return session

        sessions = await asyncio.gather(*map(opened, range(MOVED)))
        old = server.server().pid
        server.signal(signal.SIGHUP)
        await until(lambda: server.status()["pid"] != old, "the successor")
        results = await asyncio.gather(*(session.feed_run("n") for session in sessions))  # type: ignore[attr-defined]
        assert results == list(range(MOVED))
    await until(lambda: not server.status()["sessions"], "every session closed", within=600)
