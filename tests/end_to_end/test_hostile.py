"""Clients that mean harm, or behave as if: the server keeps its size, its workers, and everybody else's sessions."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from pydantic_monty import AsyncMonty, MontyCrashedError, MontyRuntimeError
from websockets.exceptions import ConnectionClosed

from tests.end_to_end import raw
from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import Moorage, signal_all
from tests.end_to_end.waiting import until

MIB = 2**20
FRAME_MAX = 64 * MIB
GROWTH = 16 * MIB
SILENCE = 2
"""Seconds after which a client that answers no ping is taken for gone."""
WARM = 2


@pytest.fixture(scope="module")
def server(launch: Launch) -> Moorage:
    """A server with short patience, and two warm workers."""
    return launch(
        "hostile", AUTOSAVE_EVERY=0, DISCONNECT_AFTER=SILENCE, CALL_PATIENCE=60, WARM_WORKERS=WARM, WORKERS=12
    )


@pytest.fixture
async def bystander(server: Moorage) -> AsyncIterator[Callable[[], int]]:
    """A session of somebody else, whose turns go on all the time; gives how many there were."""
    turns, over = 0, False

    async with server.client("other") as pool, pool.checkout() as session:
        await session.feed_run("n = 0")

        async def work() -> None:
            nonlocal turns
            while not over:
                assert await session.feed_run("n += 1\nn") == turns + 1
                turns += 1
                await asyncio.sleep(0.02)

        working = asyncio.ensure_future(work())
        yield lambda: turns
        seen = turns
        await until(lambda: working.done() or turns > seen, "one more turn of somebody else")
        over = True
        await working


async def nothing_left(server: Moorage, sessions: int = 1) -> None:
    """Only the bystander has a session and a worker."""
    await until(lambda: sum(server.status()["sessions"].values()) == sessions, "the other sessions closed")
    await until(lambda: server.status()["workers"] == {"busy": sessions, "warm": WARM}, "the other workers free")
    await until(lambda: len(server.workers()) == sessions + WARM, "the other workers gone")


@asynccontextmanager
async def small_growth(server: Moorage) -> AsyncIterator[None]:
    """The server's memory stays about what it is, during all of this and shortly after."""
    await nothing_left(server)
    process, over = server.server(), False
    before = process.memory_info().rss
    most = before

    async def watch() -> None:
        nonlocal most
        while not over:
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(0.02)

    watching = asyncio.ensure_future(watch())
    yield
    over = True
    await watching
    assert most - before <= GROWTH, f"grew by {(most - before) / MIB:.1f} MiB"


# What is no frame

FEED_ONE = raw.feed("1 + 1")
FORGED = raw.load(b"MONTY\0\x0e\0" + b"\xa0" * 40)
NOT_FRAMES = {
    "empty": b"",
    "no kind": raw.number(25, 1),
    "a feed with a load behind it": FEED_ONE + FORGED,
    "a load with a feed behind it": FORGED + FEED_ONE,
    "a feed twice": FEED_ONE + FEED_ONE,
    "a dump twice": raw.message(raw.DUMP) * 2,
    "a configure and a feed": raw.configure() + FEED_ONE,
    "a feed and an empty load": FEED_ONE + raw.message(raw.LOAD),
    "kinds with a traceparent between": FEED_ONE + raw.message(20, b"00-1") + FORGED,
    "field 12": raw.message(12, b""),
    "field 19": raw.message(19, b"") + FEED_ONE,
    "a feed and field 15": FEED_ONE + raw.number(15, 1),
    "an overlong tag": b"\x9a\x00" + FEED_ONE[1:],
    "a much too long tag": b"\x9a\x80\x80\x80\x00" + FEED_ONE[1:],
    "an overlong length": FEED_ONE[:1] + bytes([FEED_ONE[1] | 0x80, 0]) + FEED_ONE[2:],
    "an overlong load behind a feed": FEED_ONE + b"\xc2\x00" + FORGED[1:],
    "field 0": b"\x02\x00" + FEED_ONE,
    "a tag of eleven bytes": b"\x80" * 10 + b"\x01",
    "a tag past 32 bits": raw.varint(2**40 | 2) + b"\x00",
    "a kind that is a number": raw.number(raw.FEED, 1),
    "a kind of eight bytes": bytes([raw.FEED << 3 | 1]) + bytes(8),
    "a kind of four bytes": bytes([raw.FEED << 3 | 5]) + bytes(4),
    "a group": bytes([raw.FEED << 3 | 3, raw.FEED << 3 | 4]),
    "a load within a group": bytes([21 << 3 | 3 & 7]) + FORGED + bytes([21 << 3 | 4]) + FEED_ONE,
    "wire type 6": bytes([raw.FEED << 3 | 6]),
    "wire type 7": bytes([raw.FEED << 3 | 7]),
    "cut short": FEED_ONE[:-1],
    "a length past the end": bytes([raw.FEED << 3 | 2]) + raw.varint(2**31) + b"x",
    "a length past 64 bits": bytes([raw.FEED << 3 | 2]) + b"\xff" * 9 + b"\x7f",
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(100),
    "a raw dump": b"MONTY\0\x0e\0\xa4",
}


@pytest.mark.parametrize("name", NOT_FRAMES)
async def test_what_is_no_frame_reaches_no_worker(server: Moorage, name: str) -> None:
    async with raw.wire(server) as client:
        assert raw.kind(await client.ask(raw.configure())) == raw.OK
        passed = server.status()["frames_passed"]
        event = await client.ask(NOT_FRAMES[name])
        assert raw.kind(event) == raw.ERROR, event
        assert raw.words(event)
        assert server.status()["frames_passed"] == passed
        assert raw.kind(await client.ask(raw.feed("planted"))) == raw.NAME_LOOKUP, "the session goes on, nothing loaded"


@pytest.mark.parametrize("behind", [raw.message(20, b"00-trace"), raw.number(21, 1), raw.number(99, 2) * 3])
async def test_fields_from_20_on_pass(server: Moorage, behind: bytes) -> None:
    async with raw.wire(server) as client:
        assert raw.kind(await client.ask(raw.configure() + behind)) == raw.OK
        assert raw.kind(await client.ask(behind + FEED_ONE)) == raw.COMPLETE
        assert raw.kind(await client.ask(raw.message(raw.DUMP) + behind)) == raw.DUMPED


async def test_requests_out_of_order(server: Moorage) -> None:
    for frame in (FEED_ONE, raw.message(raw.DUMP), raw.load(bytes(16)), raw.message(raw.RESUME_CALL)):
        async with raw.wire(server) as client:
            assert raw.kind(await client.ask(frame)) == raw.ERROR
            assert raw.kind(await client.ask(raw.configure())) == raw.OK
            assert raw.kind(await client.ask(raw.configure())) == raw.ERROR
            assert raw.kind(await client.ask(FEED_ONE)) == raw.COMPLETE
            assert raw.kind(await client.ask(raw.load(bytes(16)))) == raw.ERROR
            assert raw.kind(await client.ask(FEED_ONE)) == raw.COMPLETE


async def test_a_third_failed_load_ends_it(server: Moorage) -> None:
    async with raw.wire(server) as client:
        await client.ask(raw.configure())
        for _ in range(3):
            event = await client.ask(raw.load(bytes(16)))
            assert raw.kind(event) == raw.ERROR
            assert "unknown session" in raw.words(event)
        await client.closed()


async def test_a_text_message(server: Moorage) -> None:
    async with raw.wire(server) as client:
        await client.ask(raw.configure())
        await client.socket.send("not binary")
        try:
            event = await client.event()
            assert raw.kind(event) == raw.ERROR
        except ConnectionClosed:
            pass
    assert server.health() == 200


# Size


async def test_frames_about_as_large_as_they_may_be(server: Moorage, bystander: Callable[[], int]) -> None:
    def comment(total: int) -> bytes:
        return raw.feed(b"#" + b"x" * (total - len(raw.feed(b"#" + b"x" * total)) + total))

    just = comment(FRAME_MAX)
    assert len(just) == FRAME_MAX
    async with raw.wire(server) as client:
        await client.ask(raw.configure())
        await client.ask(raw.feed("kept = 1"))
        event = await client.ask(comment(FRAME_MAX + 1))
        assert raw.kind(event) == raw.ERROR
        assert f"{FRAME_MAX:,}" in raw.words(event)
        assert raw.kind(await client.ask(raw.feed("kept"))) == raw.COMPLETE
        event = await client.ask(just)
        assert raw.kind(event) in (raw.COMPLETE, raw.ERROR, raw.FATAL), "told what came of it"
    async with raw.wire(server) as client:
        await client.ask(raw.configure())
        try:
            event = await client.ask(comment(FRAME_MAX + 8 * MIB))
            assert raw.kind(event) == raw.ERROR
        except ConnectionClosed:
            pass
    await nothing_left(server)


async def test_an_answer_that_is_too_large(server: Moorage) -> None:
    async with raw.wire(server) as client:
        await client.ask(raw.configure(ephemeral=True))
        event = await client.ask(raw.feed(f"big = 'x' * {FRAME_MAX}\nbig"))
        assert raw.kind(event) == raw.ERROR
        assert f"{FRAME_MAX:,}" in raw.words(event)
        assert raw.kind(await client.ask(raw.feed("len(big)"))) == raw.COMPLETE


async def test_a_client_that_never_reads(server: Moorage, bystander: Callable[[], int]) -> None:
    turns = bystander()
    async with small_growth(server), raw.wire(server, "quick", max_queue=1) as client:
        assert raw.kind(await client.ask(raw.configure())) == raw.OK
        await client.send(raw.feed("line = 'x' * 100_000\nwhile True:\n    print(line)"))
        await until(lambda: bystander() > turns + 100, "many turns of somebody else")
    await nothing_left(server)


async def test_a_client_that_floods(server: Moorage, bystander: Callable[[], int]) -> None:
    for frame in (raw.feed("n = '" + "x" * MIB + "'"), FEED_ONE):
        async with small_growth(server), raw.wire(server, max_queue=1) as client:
            assert raw.kind(await client.ask(raw.configure())) == raw.OK
            with pytest.raises(ConnectionClosed):
                for _ in range(20_000):
                    await client.send(frame)
        await nothing_left(server)


async def test_a_flood_before_anything_else(server: Moorage, bystander: Callable[[], int]) -> None:
    async with small_growth(server), raw.wire(server, max_queue=1) as client:
        with pytest.raises(ConnectionClosed):
            for _ in range(20_000):
                await client.send(raw.configure())
    await nothing_left(server)


# Leaving


async def test_leaving_in_an_endless_loop(server: Moorage, bystander: Callable[[], int]) -> None:
    for _ in range(3):
        async with raw.wire(server, "quick") as client:
            await client.ask(raw.configure())
            await client.send(raw.feed("while True:\n    pass"))
            await until(lambda: server.status()["running"] > 0, "the turn")
    await nothing_left(server)


async def test_a_hundred_clients_that_come_and_go(server: Moorage, bystander: Callable[[], int]) -> None:
    process = server.server()

    async def one(n: int) -> None:
        async with raw.wire(server, "roomy") as client:
            if n % 4:
                await client.ask(raw.configure(ephemeral=n % 2 == 0))
            if n % 4 > 1:
                await client.send(raw.feed("x = [1] * 1000"))
            if n % 4 > 2:
                await client.event()

    for _ in range(2):  # the first round opens what the server keeps: its threads' connections to the database
        await asyncio.gather(*map(one, range(40)))
        await nothing_left(server)
    descriptors = process.num_fds()
    for _ in range(3):
        await asyncio.gather(*map(one, range(40)))
    await nothing_left(server)
    await until(lambda: process.num_fds() <= descriptors + 20, "no descriptor for each of the 120")


async def test_a_synchronous_host_function_answers_no_ping(server: Moorage, bystander: Callable[[], int]) -> None:
    def slow(n: int) -> int:
        time.sleep(3 * SILENCE)
        return n + 1

    async with server.client() as pool, pool.checkout() as session:
        await session.feed_run("n = 1")

        def run() -> object:
            return asyncio.run(elsewhere())

        async def elsewhere() -> object:
            async with server.client() as own, own.checkout() as its:
                return await its.feed_run("n = 1\nslow(n) + slow(n)", external_lookup={"slow": slow})

        assert await asyncio.to_thread(run) == 4
        assert await session.feed_run("n") == 1


async def test_a_client_that_is_silent_for_good(server: Moorage, bystander: Callable[[], int]) -> None:
    """Its machine lost power: TCP says nothing, and pings get no answer."""
    async with raw.wire(server) as client:
        await client.ask(raw.configure())
        await client.ask(raw.feed("kept = 1"))
        client.socket.transport.pause_reading()  # type: ignore[attr-defined]
        await nothing_left(server)


# Workers that end


async def test_a_worker_that_panics(server: Moorage, bystander: Callable[[], int]) -> None:
    async with server.client() as pool:
        for _ in range(3):
            async with pool.checkout() as session:
                await session.feed_run("kept = 1")
                record = await session.dump()
                with pytest.raises(MontyCrashedError):
                    await session.feed_run("class A:\n    pass\na = A()\nlocals()")
            async with pool.checkout() as session:
                await session.load_session(record)
                assert await session.feed_run("kept") == 1
    await nothing_left(server)


async def test_workers_that_are_killed(server: Moorage) -> None:
    async with server.client() as pool:
        async with pool.checkout() as session:
            await session.feed_run("kept = 1")
            record = await session.dump()
            signal_all(server.workers(), signal.SIGKILL)
            with pytest.raises(Exception, match=r".") as caught:
                await session.feed_run("kept")
            assert type(caught.value).__name__ in ("MontyCrashedError", "MontyDisconnectError")
        for _ in range(4):
            async with pool.checkout() as session:
                await session.load_session(record)
                assert await session.feed_run("kept") == 1
    await nothing_left(server, sessions=0)


async def test_a_worker_killed_in_a_turn(server: Moorage) -> None:
    async with server.client() as pool, pool.checkout() as session:
        await session.feed_run("kept = 1")
        running = asyncio.ensure_future(session.feed_run("while True:\n    pass"))
        await until(lambda: server.status()["running"] == 1, "the turn")
        signal_all(server.workers(), signal.SIGKILL)
        with pytest.raises(MontyCrashedError, match=r"(?i)signal|kill"):
            await running
    await nothing_left(server, sessions=0)


@pytest.mark.parametrize(
    "code",
    [
        "x = []\nwhile True:\n    x.append('x' * 1_000_000)",
        "x = 'x' * 10 ** 12",
        "x = [0] * 10 ** 10",
        "x = 10 ** 10 ** 8",
        "x = {}\nfor i in range(10 ** 9):\n    x[i] = [i]",
        "def f():\n    return f() + 1\nf()",
        "x = []\nfor i in range(100_000):\n    x = [x]\nrepr(x)",
        "x = 'x'\nfor i in range(60):\n    x = x.replace('x', 'xx')",
    ],
)
async def test_a_worker_that_wants_too_much(server: Moorage, bystander: Callable[[], int], code: str) -> None:
    async with server.client("quick") as pool, pool.checkout() as session:
        await session.feed_run("kept = 1")
        try:
            await session.feed_run(code)
        except MontyCrashedError as error:
            assert str(error)
        except MontyRuntimeError:
            try:
                assert await session.feed_run("kept") == 1
            except MontyRuntimeError as full:  # what it holds fills its limit to the brim: any more is refused too
                assert "MemoryError" in str(full)
    await nothing_left(server)


async def test_a_forged_dump_is_never_loaded(server: Moorage) -> None:
    async with AsyncMonty() as local, local.checkout() as session:
        await session.feed_run("planted = 'planted'")
        forged = await session.dump()
    for frame in (raw.load(forged), raw.message(raw.LOAD, raw.message(1, bytes(16)) + raw.message(1, forged))):
        async with raw.wire(server) as client:
            await client.ask(raw.configure())
            event = await client.ask(frame)
            assert raw.kind(event) == raw.ERROR
            assert raw.kind(await client.ask(raw.feed("planted"))) == raw.NAME_LOOKUP
