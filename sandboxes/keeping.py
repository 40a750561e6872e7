"""What is kept of one session: the dump held in memory, whether storage has it yet, and the puts under way.

A put runs beside the session's mailbox. Each carries a generation, so that the order in which puts end never matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from sandboxes.store import Dump, NotSaved, Overtaken, Store

logger = logging.getLogger(__name__)

RETRIES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to save while storage fails; the last one repeats."""


class Shelf(Protocol):
    """The server's memory for dumps: see `Registry`."""

    unsaved: int

    def hold(self, keeper: Keeper) -> None: ...

    def drop(self, keeper: Keeper) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]: ...


class Keeper:
    """The saved and unsaved state of one session."""

    def __init__(self, store: Store, shelf: Shelf, clock: Callable[[], float]) -> None:
        self._store = store
        self._shelf = shelf
        self._clock = clock
        self.session_id = b""
        self.ephemeral = False
        self.held: Dump | None = None
        """The newest dump, while this process still has it."""
        self.dirty = False
        """Something ran since the newest dump."""
        self.generation = 0
        """Number of the newest save that was begun."""
        self.saved_generation = 0
        """Number of the newest save that storage has."""
        self.saved_at = clock()
        """When the newest save was begun, or the session was made."""
        self.held_at = clock()
        """When the record's expiry was last put off."""
        self.overtaken = False
        """Another server owns the session, or its record was deleted: nothing more can be saved."""
        self._puts: set[asyncio.Task[object]] = set()

    @property
    def saved(self) -> bool:
        """Storage has the newest state."""
        return not self.dirty and self.saved_generation == self.generation

    @property
    def evictable(self) -> bool:
        """The held dump can be had again from storage."""
        return self.held is not None and not self.ephemeral and self.generation > 0 and self.saved

    def hold(self, dump: Dump) -> None:
        """`dump` is the session's state now; it stays in memory at least until storage has it."""
        self.held = dump
        self._shelf.hold(self)

    def release(self) -> None:
        """Forget the held dump."""
        if self.held is not None:
            self._shelf.drop(self)
            self.held = None

    def put(self, dump: Dump, *, handed_over: bool = False) -> asyncio.Task[object]:
        """Save `dump` behind the caller's back, trying until it stands or a newer save has begun."""
        self.generation += 1
        self.dirty = False
        self.saved_at = self._clock()
        self._shelf.unsaved += len(dump.state)
        task = self._shelf.spawn(self._put(dump, self.generation, handed_over))
        self._puts.add(task)
        task.add_done_callback(self._puts.discard)
        return task

    async def settle(self, deadline: float) -> bool:
        """Wait at most `deadline` seconds for the puts under way; whether storage has the newest state then."""
        if self._puts:
            await asyncio.wait(set(self._puts), timeout=deadline)
        return self.saved

    def abandon(self) -> None:
        """Give up the puts under way; what they have not saved is lost."""
        for task in self._puts:
            task.cancel()

    async def _put(self, dump: Dump, generation: int, handed_over: bool) -> bool:
        attempt = 0
        try:
            while generation == self.generation and not self.overtaken:
                try:
                    await self._store.save(self.session_id, dump, generation, handed_over=handed_over)
                except NotSaved as error:
                    logger.warning("session %s is not saved yet: %s", self.session_id.hex(), error)
                    await asyncio.sleep(RETRIES[min(attempt, len(RETRIES) - 1)])
                    attempt += 1
                except Overtaken as error:
                    self.overtaken = generation == self.generation
                    logger.info("save %d of session %s came too late: %s", generation, self.session_id.hex(), error)
                    return False
                else:
                    self.saved_generation = max(self.saved_generation, generation)
                    self.held_at = self._clock()
                    if self.held is not None:
                        self._shelf.hold(self)
                    return True
            return False
        finally:
            self._shelf.unsaved -= len(dump.state)
