"""What is measured: each function runs one trial and gives its times in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from pydantic_monty import AsyncMontySession, AsyncMontyWebsocket

Trial = Callable[[AsyncMontyWebsocket], Awaitable[list[float]]]

TURNS = 120
CHECKOUTS = 5
LARGE = 4_000_000


async def milliseconds(work: Awaitable[object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def turn(pool: AsyncMontyWebsocket) -> list[float]:
    """The smallest turns of a session that is live."""
    async with pool.checkout() as session:
        await session.feed_run("x = 1")
        return [await milliseconds(session.feed_run("x + 1")) for _ in range(TURNS)]


async def checkout_run_close(pool: AsyncMontyWebsocket) -> list[float]:
    """A whole session: dialled, used once, closed."""

    async def whole() -> None:
        async with pool.checkout() as session:
            await session.feed_run("1 + 1")

    return [await milliseconds(whole()) for _ in range(CHECKOUTS)]


async def result_4mb(pool: AsyncMontyWebsocket) -> list[float]:
    """An answer of 4 MB."""
    async with pool.checkout() as session:
        await session.feed_run(f"big = 'x' * {LARGE:_}")
        return [await milliseconds(session.feed_run("big"))]


COMPARED: dict[str, Trial] = {
    "turn": turn,
    "checkout_run_close": checkout_run_close,
    "result_4mb": result_4mb,
}
"""Trials of the relay and of the server alike."""


async def dump_and_restore(pool: AsyncMontyWebsocket) -> tuple[float, float]:
    """A snapshot of a small state, until it is durable; and a new session from it."""
    async with pool.checkout() as session:
        await session.feed_run("items = list(range(1000))")
        began = time.perf_counter()
        record = await session.dump()
        dump = (time.perf_counter() - began) * 1000
    async with pool.checkout() as session:
        return dump, await milliseconds(session.load_session(record))


async def first_turns(sessions: list[AsyncMontySession]) -> list[float]:
    """The next turn of each of these sessions, one after another."""
    return [await milliseconds(session.feed_run("x + 1")) for session in sessions]


async def turns_for(session: AsyncMontySession, seconds: float) -> list[float]:
    """Turns of one session, without a pause, for so long."""
    ends, times = time.perf_counter() + seconds, list[float]()
    while time.perf_counter() < ends:
        times.append(await milliseconds(session.feed_run("x + 1")))
    return times
