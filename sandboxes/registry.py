"""The sessions of one server process, and what they share: memory for dumps, tasks that outlive connections, the clock
that parks, saves and times out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandboxes.keeping import Keeper

if TYPE_CHECKING:
    from sandboxes.lifecycle import Lifecycle as Session
    from sandboxes.pool import Pool

logger = logging.getLogger(__name__)

TICK = 0.25
"""Seconds between two looks at what is due."""
HOLD_EVERY = 240.0
"""Seconds between two renewals of a connected session's hold on its record."""


@dataclass(frozen=True)
class Times:
    """How long things may take, in seconds."""

    park_after: float = 60.0
    autosave_every: float = 5.0
    """0: never."""
    turn_timeout: float = 300.0
    connection_max_age: float = 3600.0
    dump_timeout: float = 60.0
    dump_answer: float = 8.0
    """A dump() is answered by then, well or badly."""
    save_deadline: float = 120.0
    """How long a session that has ended tries to be saved."""
    leave_after: float = 0.05
    """A moment before a session that was left is saved, so that the next connection comes first."""


class Registry:
    """What one server process knows about its sessions."""

    def __init__(
        self,
        times: Times,
        *,
        clock: Callable[[], float],
        state_cache: int,
        unsaved_max: int,
        max_sessions: int = 10_000,
        frame_max: int = 64 * 1024 * 1024,
        park_every_turn: bool = False,
    ) -> None:
        self.times = times
        self.clock = clock
        self.max_sessions = max_sessions
        self.frame_max = frame_max
        """Bytes of one frame, either way."""
        self.sessions: dict[bytes, Session] = {}
        self.live: set[Session] = set()
        self.running: set[Session] = set()
        """Those with a turn under way."""
        self.pool: Pool | None = None
        self.unsaved = 0
        """Bytes of dumps that storage does not have yet."""
        self.parks = 0
        self.resumes = 0
        self.autosaves = 0
        self.frames_passed = 0
        """Requests of clients that reached a worker as they came."""
        self._state_cache = state_cache
        self._unsaved_max = unsaved_max
        self.park_every_turn = park_every_turn
        """For tests: park within the mailbox, so that not one turn goes without."""
        self._held: OrderedDict[Keeper, int] = OrderedDict()
        self._held_bytes = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self.changed: set[Session] = set()
        """Sessions whose activity or state is not in the database yet."""

    # Sessions

    def add(self, session: Session) -> None:
        """A session was admitted."""
        self.sessions[session.session_id] = session
        self.changed.add(session)

    def remove(self, session: Session) -> None:
        """A session is closed."""
        self.sessions.pop(session.session_id, None)
        for group in (self.live, self.running, self.changed):
            group.discard(session)

    def turn_ended(self, session: Session) -> None:
        """A turn was answered."""
        self.changed.add(session)
        if self.pool is not None and self.pool.waiting:
            self.make_room()

    def make_room(self) -> None:
        """A worker is needed and none is free: the session that is idle longest is parked."""
        idle = [
            session
            for session in self.live
            if not (session.busy or session.parking or session.leaving or session.stuck or session.mailbox.held)
            and (session.ephemeral or self.room_for_unsaved())
        ]
        for session in sorted(idle, key=lambda session: session.active_at):
            if not session.started or not session.is_heavy():
                session.parking = True
                self.spawn(session.park(at_once=True))
                return

    def records_to_hold(self) -> list[bytes]:
        """Connected sessions with a record of their own, whose hold is due to be renewed."""
        due = self.clock() - HOLD_EVERY
        found = []
        for session_id, session in self.sessions.items():
            keeper = session.keeper
            if keeper.saved_generation and keeper.held_at < due and session.state in ("live", "parked"):
                keeper.held_at = self.clock()
                found.append(session_id)
        return found

    # Memory for dumps

    @property
    def held_bytes(self) -> int:
        """Bytes of all dumps in memory."""
        return self._held_bytes

    def room_for_unsaved(self) -> bool:
        """Whether one more dump may wait in memory for its put."""
        return self.unsaved < self._unsaved_max

    def hold(self, keeper: Keeper) -> None:
        """Remember that `keeper` holds a dump, used last; the oldest ones that storage has may go for it."""
        self.drop(keeper)
        if keeper.held is None:
            return
        self._held[keeper] = len(keeper.held.state)
        self._held_bytes += len(keeper.held.state)
        if self._held_bytes > self._state_cache:
            for oldest in list(self._held):
                if oldest.evictable:
                    oldest.release()
                    if self._held_bytes <= self._state_cache:
                        break

    def drop(self, keeper: Keeper) -> None:
        """`keeper` holds nothing any more."""
        self._held_bytes -= self._held.pop(keeper, 0)

    # Work

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Run `work` as a task of the server's, which the drain waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def after(self, call: Callable[[Session], None], session: Session) -> None:
        """Call as soon as the mailbox is left."""
        asyncio.get_running_loop().call_soon(call, session)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the server failed", exc_info=error)

    async def tick(self) -> None:
        """Look, for ever, at what is due: turns past their time, autosaves, connections past their age."""
        while True:
            await asyncio.sleep(TICK)
            try:
                self.look()
            except Exception:
                logger.exception("a look at the sessions failed")

    def look(self) -> None:
        """One look at what is due."""
        now, times = self.clock(), self.times
        for session in list(self.running):
            if session.turn_started is not None and now - session.turn_started > times.turn_timeout:
                session.turn_cut_short(f"a turn may take {times.turn_timeout:g} s; this one took longer")
        if times.autosave_every:
            for session in list(self.live):
                keeper = session.keeper
                if keeper.dirty and not keeper.ephemeral and now - keeper.saved_at > times.autosave_every:
                    session.autosave()
        oldest = now - times.connection_max_age
        for session in [each for each in self.sessions.values() if each.connected_at < oldest]:
            if session.state == "frozen":
                if session.frozen_at < oldest:
                    session.link.close()
            elif not (session.busy or session.leaving or session.parking or session.is_heavy()):
                session.parking = True
                self.spawn(self._hand_over(session))

    async def _hand_over(self, session: Session) -> None:
        try:
            await session.hand_over(30.0)
        finally:
            session.parking = False

    async def finish(self, deadline: float) -> None:
        """Wait for all tasks of the server, at most `deadline` seconds."""
        end = self.clock() + deadline
        while self._tasks and self.clock() < end:
            await asyncio.wait(set(self._tasks), timeout=min(1.0, end - self.clock()))
