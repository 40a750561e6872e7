"""The promise: an ID that was given can be loaded, whenever and wherever the server was killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.harness import Harbour, Moorage, signal_all
from tests.end_to_end.traffic import Promises, Traffic, check
from tests.end_to_end.waiting import until

LOAD = bool(os.environ.get("LOAD"))
KILLS = 100 if LOAD else 10
FAULTS = [
    "reserve:before",
    "reserve:after",
    "put:before",
    "put:torn",
    "put:after",
    "commit:before",
    "commit:after",
    "answer:before",
]
SETTINGS: dict[str, object] = {
    "WORKERS": 4,
    "WARM_WORKERS": 2,
    "AUTOSAVE_EVERY": 0.3,
    "WORKER_WAIT": 30,
    "HEARTBEAT_EVERY": 1,
    "SERVER_LOST_AFTER": 4,
}


@pytest.fixture
def server(harbour: Harbour, broker: str, tmp_path: Path) -> Iterator[Moorage]:
    """A server that these tests start and kill themselves."""
    found = Moorage(harbour, tmp_path / "durable", REDIS_URL=broker, **SETTINGS)
    yield found
    found.close()


async def nothing_is_left_over(server: Moorage) -> None:
    """After the sweeps, rows and objects are one to one, and use is their sum."""
    left = await asyncio.to_thread(server.sweep)
    assert left["rows_without_object"] == []
    assert left["objects_without_row"] == []
    assert left["use"] == left["sums"]
    assert left["rows"] > 0


@pytest.mark.timeout(3600 if LOAD else 300)
async def test_killed_at_any_moment(server: Moorage) -> None:
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"SEED={seed}")
    chance = random.Random(seed)
    promises = Promises()
    for kill in range(KILLS):
        server.start().ready()
        if kill:
            await check(server, promises)
        traffic = Traffic(server, promises, chance.randrange(10**6))
        running = asyncio.ensure_future(traffic.run())
        enough = len(promises.snapshots) + 3
        await until(lambda: running.done() or len(promises.snapshots) >= enough, "some dumps")  # noqa: B023
        await asyncio.sleep(chance.uniform(0, 0.4))
        await asyncio.to_thread(server.kill)
        traffic.stop()
        await running
    server.start().ready()
    snapshots, sessions = await check(server, promises, sessions=200)
    print(f"{KILLS} kills: {snapshots} snapshots and {sessions} sessions are what they were")
    assert snapshots >= 3 * KILLS
    assert sessions > 0
    server.stop()
    await nothing_is_left_over(server)


@pytest.mark.timeout(300)
async def test_killed_at_each_step_of_a_save(server: Moorage) -> None:
    promises = Promises()
    chance = random.Random(7)
    for at, fault in enumerate(FAULTS):
        server.start(MOORAGE_FAULT=fault, MOORAGE_FAULT_AFTER=1 + 4 * at).ready()
        serving = server.server()
        await check(server, promises)
        traffic = Traffic(server, promises, chance.randrange(10**6))
        running = asyncio.ensure_future(traffic.run())
        await until(lambda: not serving.is_running() or serving.status() == "zombie", f"the fault {fault}")  # noqa: B023
        await asyncio.to_thread(server.kill)
        traffic.stop()
        await running
    server.start(MOORAGE_FAULT=None, MOORAGE_FAULT_AFTER=None).ready()
    snapshots, sessions = await check(server, promises, sessions=200)
    assert snapshots > 0
    assert sessions > 0
    server.stop()
    await nothing_is_left_over(server)


async def test_a_killed_server_takes_its_workers_along(server: Moorage) -> None:
    server.start().ready()
    async with server.client() as pool, pool.checkout() as session:
        await session.feed_run("x = 1")
        busy = asyncio.ensure_future(session.feed_run("while True:\n    pass"))
        await until(lambda: any(each.cpu_percent(0.05) > 5 for each in server.workers()), "a worker at work")
        family = server.family()
        signal_all([server.server()], signal.SIGKILL)
        await until(
            lambda: not [each for each in family[2:] if each.is_running() and each.status() != "zombie"],
            "every worker gone",
        )
        with pytest.raises(Exception, match=r"."):
            await busy
    await asyncio.to_thread(server.kill)
