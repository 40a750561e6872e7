"""Programs as clients write them, each a coroutine that uses a pool of sandboxes and gives a list of plain results.

They run against any pool of the client library. What a program gives must depend on nothing but itself: no time, no
session ID, no address. `PROGRAMS` holds all of them by name.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_monty import AsyncMonty, AsyncMontySession, AsyncMontyWebsocket, MontyError

Pool = AsyncMonty | AsyncMontyWebsocket
Program = Callable[[Pool], Awaitable[list[object]]]

PROGRAMS: dict[str, Program] = {}
HEAP_SIZE = re.compile(r"memory limit exceeded: \d+ bytes > \d+ bytes")
"""The interpreter counts spare capacity too, so that its figure differs in a heap that was built anew."""

MODULES = ("values", "code", "hosts", "futures", "surroundings", "states")


def program(function: Program) -> Program:
    """Register a program under its own name."""
    name = getattr(function, "__name__", "")
    if name in PROGRAMS:
        raise ValueError(f"two programs are called {name}")
    PROGRAMS[name] = function
    return function


async def attempt(session: AsyncMontySession, code: str, **options: Any) -> object:
    """What feeding `code` gives: its value, or the whole text of the error that it raises."""
    try:
        return await session.feed_run(code, **options)
    except MontyError as error:
        text = f"{type(error).__name__}: {error.display()}"  # type: ignore[attr-defined]
        return HEAP_SIZE.sub("memory limit exceeded", text)


def feeds(name: str, *snippets: str, **checkout: Any) -> None:
    """Register a program that feeds `snippets` to one session, one after another."""

    async def run(pool: Pool) -> list[object]:
        async with pool.checkout(**checkout) as session:
            return [await attempt(session, snippet) for snippet in snippets]

    run.__name__ = name
    program(run)


for module in MODULES:
    importlib.import_module(f"{__name__}.{module}")
