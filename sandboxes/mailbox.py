"""The mailbox of a session: whatever may change it passes through here, one at a time, in the order of arrival.

It is a first-come lock that can also be entered without awaiting, so that an ordinary turn costs no task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class Mailbox:
    """A fair lock: `async with mailbox` waits for its turn; `try_enter` takes it only when nobody is before you."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def held(self) -> bool:
        """Whether somebody is inside."""
        return self._held

    def try_enter(self) -> bool:
        """Enter at once, or answer False. Whoever entered must `leave`."""
        if self._held:
            return False
        self._held = True
        return True

    def leave(self) -> None:
        """Hand over to the one who waits longest, who is inside from this moment on."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._held = False

    async def __aenter__(self) -> None:
        if self.try_enter():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
