"""A server ends, another goes on, and the clients of the first notice nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from pydantic_monty import AsyncMontySession, AsyncMontyWebsocket, MontyRuntimeError, MontyShutdown

from tests.end_to_end import raw
from tests.end_to_end.between import Balancer
from tests.end_to_end.harness import Harbour, Moorage
from tests.end_to_end.waiting import PATIENCE, until

Start = Callable[..., Moorage]
BUSY = "import time\nends = time.monotonic() + {seconds}\nwhile time.monotonic() < ends:\n    pass\nn += 1\nn"


@pytest.fixture
def start(harbour: Harbour, broker: str, tmp_path: Path) -> Iterator[Start]:
    """Starts servers that share one database and one storage. All end with the test."""
    started: list[Moorage] = []

    def one(**settings: object) -> Moorage:
        server = Moorage(harbour, tmp_path / f"server{len(started)}", REDIS_URL=broker, **settings)
        if started:
            first = started[0]
            server._settings = {
                "DATABASE_URL": first.env.get("DATABASE_URL", f"sqlite:///{first.database}"),
                "STORAGE_URL": first.env.get("STORAGE_URL", f"file://{first.storage}"),
                **server._settings,
            }
            server.database, server.storage = first.database, first.storage
        started.append(server)
        return server.start().ready()

    yield one
    for server in started:
        server.close()


@dataclass
class Fleet:
    """Sessions of every sort, and what each must give once its server is another one."""

    idle: list[AsyncMontySession]
    silent: list[AsyncMontySession]
    ephemeral: list[AsyncMontySession]
    busy: list[AsyncMontySession]
    in_a_turn: list[asyncio.Task[object]]
    in_a_call: list[asyncio.Task[object]]
    stepped: list[object]
    answer: asyncio.Event
    """Set to let the host answer the calls."""


async def fleet(pool: AsyncMontyWebsocket, stack: list[AsyncMontySession], *, busy: float) -> Fleet:
    """Fifty sessions: idle, silent, ephemeral, within a turn, within a call of either kind."""

    async def opened(n: int, *, ephemeral: bool = False) -> AsyncMontySession:
        session = await pool.checkout(ephemeral=ephemeral).__aenter__()
        stack.append(session)
        await session.feed_run(f"n = {n}\nlog = [n]")
        return session

    answer = asyncio.Event()

    async def ask(n: int) -> int:
        await answer.wait()
        return n * 10

    idle = [await opened(n) for n in range(18)]
    silent = [await opened(n) for n in range(6)]
    ephemeral = [await opened(n, ephemeral=True) for n in range(6)]
    busy_ones = [await opened(n) for n in range(6)]
    calling = [await opened(n) for n in range(8)]
    stepping = [await opened(n) for n in range(6)]
    stepped = [await session.feed_start("log.append(fetch(n))\nlog") for session in stepping]
    in_a_turn = [asyncio.ensure_future(each.feed_run(BUSY.format(seconds=busy))) for each in busy_ones]
    code = "log.append(await ask(n))\nlog"
    in_a_call = [asyncio.ensure_future(each.feed_run(code, external_lookup={"ask": ask})) for each in calling]
    return Fleet(idle, silent, ephemeral, busy_ones, in_a_turn, in_a_call, stepped, answer)


async def goes_on(fleet: Fleet, silence_ends: Callable[[], bool]) -> None:
    """Every session of the fleet gives what it must, on whichever server it is by now."""
    for n, session in enumerate(fleet.idle):
        before = session.session_id
        assert await session.feed_run("log.append(n + 1)\nlog") == [n, n + 1]
        assert session.session_id != before, "it is a new session, with an ID of its own"
    for n, task in enumerate(fleet.in_a_turn):
        assert await asyncio.wait_for(task, PATIENCE) == n + 1
    fleet.answer.set()
    for n, task in enumerate(fleet.in_a_call):
        assert await asyncio.wait_for(task, PATIENCE) == [n, n * 10]
    for n, step in enumerate(fleet.stepped):
        done = await step.resume({"return_value": n * 100})  # type: ignore[attr-defined]
        assert done.output == [n, n * 100]
    for session in fleet.ephemeral:
        with pytest.raises(MontyShutdown) as caught:
            await session.feed_run("n")
        assert caught.value.dump is None
    await until(silence_ends, "only silent clients left on the first server")
    for n, session in enumerate(fleet.silent):
        assert await session.feed_run("log") == [n]
    for n, session in enumerate(fleet.busy):
        assert await session.feed_run("n") == n + 1


async def leave(stack: list[AsyncMontySession]) -> None:
    """Close every session."""
    for session in stack:
        try:
            await session.__aexit__(None, None, None)
        except Exception as error:
            assert "Monty" in type(error).__name__ or isinstance(error, RuntimeError), error


def frozen(server: Moorage) -> int:
    """How many sessions the database calls frozen."""
    return int(server.sql("SELECT count(*) FROM sandboxes_livesession WHERE state = 'frozen'")[0][0])


@pytest.mark.timeout(300)
async def test_another_server_takes_over(start: Start) -> None:
    first = start(STOP_LINGER=120, DRAIN_GRACE=60)
    second = start()
    stack: list[AsyncMontySession] = []
    with Balancer(lambda: (first.port, second.port)) as balancer:
        async with first.client(url=balancer.url) as pool:
            sessions = await fleet(pool, stack, busy=1.5)
            assert first.status()["sessions"], "all of them are on the first server"
            assert not second.status()["sessions"]
            first.signal(signal.SIGTERM)
            await until(lambda: frozen(second) >= 44, "all but the running turns to be handed over")
            await goes_on(sessions, lambda: frozen(second) >= len(sessions.silent + sessions.busy))
            await until(lambda: first.ended() is not None, "the first server's end", within=2 * PATIENCE)
            assert first.ended() == 0
            assert balancer.dials[second.port] >= 44
            async with pool.checkout() as session:
                assert await session.feed_run("'new'") == "new"
            await leave(stack)
    await until(lambda: not second.status()["sessions"], "every session closed")
    second.stop()
    left = second.sweep()
    assert left["rows_without_object"] == left["objects_without_row"] == []
    assert left["use"] == left["sums"]


@pytest.mark.timeout(300)
async def test_a_server_is_replaced_on_its_own_socket(start: Start) -> None:
    server = start(DRAIN_LINGER=120, DRAIN_GRACE=60)
    stack: list[AsyncMontySession] = []
    async with server.client() as pool:
        sessions = await fleet(pool, stack, busy=1.5)
        old = server.server()
        dialled = 0

        async def newcomers() -> None:
            nonlocal dialled
            while replacing:
                async with pool.checkout(ephemeral=True) as session:
                    assert await session.feed_run("1 + 1") == 2
                dialled += 1

        replacing = True
        arriving = asyncio.ensure_future(newcomers())
        server.signal(signal.SIGHUP)
        await until(lambda: server.health() == 200 and server.status()["pid"] != old.pid, "the successor")
        await until(lambda: frozen(server) >= 44, "all but the running turns to be handed over")
        await goes_on(sessions, lambda: frozen(server) >= len(sessions.silent + sessions.busy))
        replacing = False
        await arriving
        assert dialled > 0, "nobody was turned away meanwhile"
        await until(lambda: not is_alive(old), "the old server's end")
        assert server.ended() is None
        await leave(stack)
    await until(lambda: not server.status()["sessions"], "every session closed")


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_project_at_its_cap_and_over_its_quota_comes_back(start: Start) -> None:
    server = start()
    stack: list[AsyncMontySession] = []
    async with server.client("capped") as pool:
        for n in range(6):
            session = await pool.checkout().__aenter__()
            stack.append(session)
            await session.feed_run(f"n = {n}")
        with pytest.raises(MontyRuntimeError, match="session"):
            async with pool.checkout():
                pass
        server.set_project("capped", snapshot_quota=1)
        old = server.server()
        server.signal(signal.SIGHUP)
        await until(lambda: frozen(server) == 6, "all handed over")
        for n, session in enumerate(stack):
            assert await session.feed_run("n + 1") == n + 1
        with pytest.raises(MontyRuntimeError, match=r"session|quota"):
            async with pool.checkout() as another:
                await another.feed_run("1")
        await until(lambda: not is_alive(old), "the old server's end")
        assert server.status()["sessions"] == {"live": 6}
        await leave(stack)


async def test_a_handed_over_record_is_claimed_once(start: Start) -> None:
    """Coming back is for the client that was sent away: a record that it has taken up admits nobody else."""
    server = start()
    async with server.client("capped") as pool, pool.checkout() as session:
        await session.feed_run("n = 1")
        handed = session.session_id
        assert handed is not None
        server.signal(signal.SIGHUP)
        await until(lambda: frozen(server) == 1, "the hand-over")
        server.set_project("capped", snapshot_quota=1)
        assert await session.feed_run("n") == 1
        async with raw.wire(server, "capped") as client:
            event = await client.ask(raw.configure())
            if raw.kind(event) == raw.OK:
                event = await client.ask(raw.load(handed))
            assert raw.kind(event) == raw.ERROR
            assert "quota exceeded" in raw.words(event)


@pytest.mark.timeout(300)
async def test_a_stop_waits_for_no_endless_turn(start: Start) -> None:
    server = start(DRAIN_GRACE=1)
    async with server.client() as pool, pool.checkout() as idle, pool.checkout() as endless:
        await idle.feed_run("n = 1")
        await endless.feed_run("n = 2")
        running = asyncio.ensure_future(endless.feed_run("while True:\n    pass"))
        await until(lambda: server.status()["running"] == 1, "the turn")
        server.signal(signal.SIGTERM)
        with pytest.raises(Exception, match=r".") as caught:
            await running
        assert type(caught.value).__name__ in ("MontyCrashedError", "MontyDisconnectError", "MontyShutdown")
        own = idle.session_id
        assert own is not None
        await until(lambda: server.ended() is not None, "the end")
        assert server.ended() == 0
    server.start().ready()
    async with server.client() as pool, pool.checkout() as session:
        await session.load_session(own)
        assert await session.feed_run("n") == 1


async def test_two_signals_skip_the_grace(start: Start) -> None:
    server = start(DRAIN_GRACE=600, STOP_LINGER=600)
    async with server.client() as pool, pool.checkout() as endless:
        running = asyncio.ensure_future(endless.feed_run("while True:\n    pass"))
        await until(lambda: server.status()["running"] == 1, "the turn")
        server.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        server.signal(signal.SIGTERM)
        with pytest.raises(Exception, match=r"."):
            await running
        await until(lambda: server.ended() is not None, "the end")
        assert server.ended() == 0
