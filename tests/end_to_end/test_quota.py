"""A full quota refuses what is asked for, says how full it is, and takes nothing away from a session that runs."""

from __future__ import annotations

import asyncio
import re

import pytest
from pydantic_monty import MontyRuntimeError

from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import Moorage
from tests.end_to_end.waiting import until

FULL = re.compile(r"snapshot storage quota exceeded: ([\d,]+) of ([\d,]+) bytes used")
NOISE = "import random\nrandom.seed({seed})\nnoise = [random.getrandbits(62) for _ in range(20_000)]\nn = {seed}"


@pytest.fixture(scope="module")
def server(launch: Launch) -> Moorage:
    """A server that saves and parks nothing of its own accord, so that all use is asked for."""
    return launch("quota", AUTOSAVE_EVERY=0, WORKERS=30)


@pytest.fixture
def project(server: Moorage, request: pytest.FixtureRequest) -> str:
    """A project that has stored nothing yet, of this test alone."""
    name = {
        "test_parallel_dumps_get_exactly_the_room_there_is": "main",
        "test_a_full_project": "other",
        "test_what_runs_is_saved_over_the_quota": "roomy",
    }[request.node.originalname]
    assert server.used(name) == 0
    return name


async def test_parallel_dumps_get_exactly_the_room_there_is(server: Moorage, project: str) -> None:
    async with server.client(project) as pool:
        async with pool.checkout() as session:
            await session.feed_run(NOISE.format(seed=0))
            measured = await session.dump()
            size = server.used(project)
            assert size > 100_000
        await until(lambda: not server.status()["sessions"], "the first session closed and saved")
        server.delete(project, measured)
        ready, go = asyncio.Barrier(21), asyncio.Event()

        async def one(seed: int) -> tuple[bytes | str, object]:
            async with pool.checkout() as session:
                await session.feed_run(NOISE.format(seed=seed))
                await ready.wait()
                await go.wait()
                try:
                    answer: bytes | str = await session.dump()
                except MontyRuntimeError as error:
                    answer = error.display("msg")
                goes_on = await session.feed_run("n * 2, len(noise)")
                await ready.wait()  # nobody leaves, and is saved, before all have their answer
                return answer, goes_on

        tasks = [asyncio.ensure_future(one(seed)) for seed in range(1, 21)]
        await ready.wait()
        already = server.used(project)
        server.set_project(project, snapshot_quota=already + 7 * size + size // 2)
        go.set()
        await ready.wait()
        used = server.used(project)
        answers = await asyncio.gather(*tasks)

        kept = [answer for answer, _ in answers if isinstance(answer, bytes)]
        refused = [answer for answer, _ in answers if isinstance(answer, str)]
        assert len(kept) == 7
        assert used <= already + 7 * size + size // 2
        for words in refused:
            found = FULL.search(words)
            assert found, words
            said_used, said_quota = (int(number.replace(",", "")) for number in found.groups())
            assert said_quota == already + 7 * size + size // 2
            assert already <= said_used <= said_quota
            assert f"project {project} " in words
        assert sorted(goes_on for _, goes_on in answers) == [(2 * n, 20_000) for n in range(1, 21)]

        await until(lambda: not server.status()["sessions"], "all saved and closed")
        server.set_project(project, snapshot_quota=server.used(project) + 10 * size)
        for record in kept:
            async with pool.checkout() as session:
                await session.load_session(record)
                assert await session.feed_run("n") in range(1, 21)


async def test_a_full_project(server: Moorage, project: str) -> None:
    async with server.client(project) as pool, pool.checkout() as session:
        await session.feed_run("kept = 'kept'")
        first = await session.dump()
        server.set_project(project, snapshot_quota=server.used(project) + 10)
        with pytest.raises(MontyRuntimeError) as caught:
            await session.dump()
        assert FULL.search(str(caught.value))
        assert await session.feed_run("kept") == "kept"

        server.set_project(project, snapshot_quota=server.used(project) - 10)
        with pytest.raises(MontyRuntimeError) as caught:
            async with pool.checkout():
                pass
        assert FULL.search(str(caught.value))
        async with pool.checkout(ephemeral=True) as ephemeral:
            assert await ephemeral.feed_run("1 + 1") == 2
        async with pool.checkout(ephemeral=True) as ephemeral:
            await ephemeral.load_session(first)
            assert await ephemeral.feed_run("kept") == "kept"

        freed = server.delete(project, first)
        assert freed["count"] == 1
        assert freed["freed"] > 0
        server.set_project(project, snapshot_quota=100_000)
        again = await session.dump()
        assert again != first
        async with pool.checkout() as other:
            await other.load_session(again)
            assert await other.feed_run("kept") == "kept"


async def test_what_runs_is_saved_over_the_quota(server: Moorage, project: str) -> None:
    async with server.client(project) as pool:
        async with pool.checkout() as session:
            await session.feed_run("kept = list(range(1000))")
            own = session.session_id
            assert own is not None
            server.set_project(project, snapshot_quota=1)
        await until(lambda: not server.status()["sessions"], "the session saved and closed")
        assert server.used(project) > 1
        async with pool.checkout(ephemeral=True) as session:
            await session.load_session(own)
            assert await session.feed_run("kept[-1]") == 999
