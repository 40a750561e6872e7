"""A house for the tests of sessions, closed after each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.sandboxes.house import House


@pytest.fixture
async def child_watcher() -> AsyncIterator[None]:
    """Children are watched as the server watches them."""
    watcher = asyncio.PidfdChildWatcher()
    watcher.attach_loop(asyncio.get_running_loop())
    asyncio.set_child_watcher(watcher)
    yield
    asyncio.set_child_watcher(None)


@pytest.fixture
async def make_house(child_watcher: None) -> AsyncIterator[Callable[..., House]]:
    """Makes houses; all are closed at the end."""
    houses: list[House] = []

    def make(**options: object) -> House:
        houses.append(House(**options))  # type: ignore[arg-type]
        return houses[-1]

    yield make
    for house in houses:
        await house.close()


@pytest.fixture
def house(make_house: Callable[..., House]) -> House:
    """A house of the usual size."""
    return make_house()
