"""The door, fuzzed: frames of real clients, changed at random. What is not well-formed reaches no worker."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest
from pydantic_monty import AsyncMontyWebsocket
from websockets.exceptions import ConnectionClosed

from tests.end_to_end import raw
from tests.end_to_end.between import Recorder
from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import Moorage
from tests.end_to_end.programs import PROGRAMS
from tests.end_to_end.waiting import until

LOAD = bool(os.environ.get("LOAD"))
FRAMES = 50_000 if LOAD else 5_000
CONNECTIONS = 6
PER_CONNECTION = 40
LARGEST = 4096
"""Bytes of a frame that is worth changing: in a large one every change lands in the same payload."""
PASSED_ON = {raw.INSTALL, raw.FEED, raw.RESUME_CALL, raw.RESUME_NAME, raw.RESUME_FUTURES, raw.ABORT}


@pytest.fixture(scope="module")
def server(launch: Launch) -> Moorage:
    """A server whose quick project lets nothing run for long."""
    return launch("fuzz", AUTOSAVE_EVERY=0, WORKERS=12, WORKER_WAIT=30)


async def corpus(server: Moorage) -> list[bytes]:
    """Requests of real clients, each once."""
    with Recorder(server.url, keep=True) as recorder:
        async with server.client("roomy", url=recorder.url) as pool:
            for run in list(PROGRAMS.values())[::2]:
                await run(pool)
    return sorted({frame for frame in recorder.frames if len(frame) <= LARGEST})


def changed(chance: random.Random, seeds: list[bytes]) -> bytes:
    """A frame of the corpus after one to four changes."""
    frame = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(frame) + 1)
        match chance.randrange(9):
            case 0 if frame:
                frame[at % len(frame)] ^= 1 << chance.randrange(8)
            case 1 if frame:
                frame[at % len(frame)] = chance.randrange(256)
            case 2:
                frame[at:at] = chance.randbytes(chance.randint(1, 6))
            case 3:
                del frame[at : at + chance.randint(1, 8)]
            case 4:
                del frame[at:]
            case 5:
                frame += chance.choice(seeds)
            case 6:
                frame[at:at] = chance.choice(seeds)[: chance.randint(1, 40)]
            case 7 if frame:
                frame[0] = chance.randrange(32) << 3 | chance.randrange(8)
            case 8:
                frame += raw.message(chance.randrange(1, 40), chance.randbytes(chance.randrange(4)))
    return bytes(frame)


def well_formed(frame: bytes) -> int | None:
    """The one kind of a frame by the rules of the door, told here once more in the plainest way; None if it has not."""
    kinds, at = [], 0
    try:
        while at < len(frame):
            key, at = canonical(frame, at)
            field, wire_type = key >> 3, key & 7
            if not 0 < field < 2**29:
                return None
            if field < 20 and (field > 11 or wire_type != 2):
                return None
            if field <= 11:
                kinds.append(field)
            if wire_type == 0:
                _, at = canonical(frame, at)
            elif wire_type == 1:
                at += 8
            elif wire_type == 2:
                size, at = canonical(frame, at)
                at += size
            elif wire_type == 5:
                at += 4
            else:
                return None
    except IndexError:
        return None
    return kinds[0] if len(kinds) == 1 and at == len(frame) else None


def canonical(data: bytes, at: int) -> tuple[int, int]:
    """As `read_varint`, for none but the shortest form. Raises IndexError."""
    value, end = raw.read_varint(data, at)
    if raw.varint(value) != data[at:end] or value >= 2**64:
        raise IndexError
    return value, end


@pytest.mark.timeout(3600 if LOAD else 300)
async def test_changed_frames(server: Moorage) -> None:
    seeds = await corpus(server)
    assert {frame[0] >> 3 for frame in seeds} >= {raw.CONFIGURE, raw.FEED, raw.RESUME_CALL, raw.DUMP, raw.LOAD}
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"SEED={seed}")
    answers: Counter[str] = Counter()
    may_pass = 0
    before = server.status()["frames_passed"]
    process = server.server()
    memory = process.memory_info().rss

    async def connection(chance: random.Random, count: int) -> None:
        nonlocal may_pass
        async with raw.wire(server, "quick") as client:
            if chance.random() < 0.95:
                assert raw.kind(await client.ask(raw.configure(ephemeral=chance.random() < 0.5))) == raw.OK
            ends = False  # an answer that ends the session is read before its connection closes
            for _ in range(count):
                frame = changed(chance, seeds)
                kind = well_formed(frame)
                may_pass += kind in PASSED_ON
                sent[0] += 1
                try:
                    event = await client.ask(frame)
                except ConnectionClosed:
                    assert ends or kind is not None, f"only what is understood may end a session: {frame!r}"
                    answers["closed"] += 1
                    return
                if kind is None:
                    assert raw.kind(event) == raw.ERROR, (frame, event)
                    answers["refused"] += 1
                else:
                    answers[str(raw.kind(event))] += 1
                    ends = ends or kind in (raw.RESET, raw.LOAD) or raw.kind(event) == raw.FATAL

    sent = [0]

    async def visitor(at: int) -> None:
        chance = random.Random(seed * 1000 + at)
        while sent[0] < FRAMES:
            await connection(chance, PER_CONNECTION)

    await asyncio.gather(*map(visitor, range(CONNECTIONS)))
    passed = server.status()["frames_passed"] - before
    print(f"{sent[0]} frames: {passed} reached a worker of {may_pass} that might; answers {dict(answers)}")
    assert 0 < passed <= may_pass
    assert answers["refused"] > FRAMES / 10
    await until(lambda: not server.status()["sessions"], "every session closed")
    await until(lambda: server.status()["workers"]["busy"] == 0, "every worker free")
    assert server.server().pid == process.pid, "still the same server"
    assert process.memory_info().rss - memory < 64 * 2**20
    async with server.client() as pool:
        await goes_on(pool)


async def goes_on(pool: AsyncMontyWebsocket) -> None:
    """A real client is served as ever."""
    async with pool.checkout() as session:
        await session.feed_run("x = 1")
        record = await session.dump()
    async with pool.checkout() as session:
        await session.load_session(record)
        assert await session.feed_run("x + 1") == 2
