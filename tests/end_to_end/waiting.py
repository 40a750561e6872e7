"""Waiting for conditions: the only way in which these tests let time pass before they look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds: the machine may be busy with everything else."""


def wait_for(condition: Callable[[], T], what: str, *, within: float = PATIENCE, every: float = 0.03) -> T:
    """Give the first true value of `condition()`. Raises TimeoutError, which names `what` and the last value."""
    ends = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}: not within {within:g} s, last seen {value!r}")
        time.sleep(every)


async def until(condition: Callable[[], T], what: str, *, within: float = PATIENCE, every: float = 0.03) -> T:
    """As `wait_for`, letting the event loop go on."""
    ends = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}: not within {within:g} s, last seen {value!r}")
        await asyncio.sleep(every)
