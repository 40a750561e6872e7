"""What time and the server's needs make of a session: parking and waking, dumping and saving, handing over, ending.

`Lifecycle` holds the state of a session and everything that no frame of the client asks for; `session.Session` adds
what frames ask for. Whatever changes it passes through its mailbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from sandboxes.keeping import Keeper
from sandboxes.mailbox import Mailbox
from sandboxes.pool import AtCapacity, Pool
from sandboxes.store import Dump, NotSaved, Overtaken, Store
from sandboxes.wire import messages
from sandboxes.wire.kinds import Event
from sandboxes.wire.messages import Configuration, Limits
from sandboxes.worker import Worker, WorkerDied

if TYPE_CHECKING:
    from sandboxes.registry import Registry

logger = logging.getLogger(__name__)

HEAVY_SHARE = 0.22
"""A worker that holds more than this share of its memory limit could die of being dumped: a dump is counted by the
limit too, and grows by doubling. Strings of 18 MB under 64 MiB and of 6 MB under 16 MB kill it, 16 and 4.5 MB do not.
"""
EMPTY_WORKER = 10_500_000
"""Resident bytes of a worker that has run something and holds nothing."""
HEAVY_FLOOR = 4_000_000
"""Bytes below which no dump was seen to kill, whatever the limit."""
LARGE_DUMP = 1_000_000
"""Bytes of a dump whose worker keeps so much of the memory for it that its size tells nothing any more; a session is
parked after such an autosave.
"""


class State(StrEnum):
    """Where a session stands."""

    NEW = "new"
    LIVE = "live"
    PARKED = "parked"
    FROZEN = "frozen"
    CLOSED = "closed"


class Link(Protocol):
    """The way to the client."""

    def send(self, event: bytes) -> None:
        """Send one event; nothing happens when the client is gone."""

    def close(self) -> None:
        """End the connection after what was sent."""


class CannotDump(Exception):
    """The worker refuses to dump for the moment, in its own words."""


class Lifecycle:
    """The state of one session, and what happens to it unasked."""

    def __init__(self, link: Link, store: Store, pool: Pool, registry: Registry, ceiling: Limits) -> None:
        self.link = link
        self.store = store
        self.pool = pool
        self.registry = registry
        self.ceiling = ceiling
        self.clock: Callable[[], float] = registry.clock
        self.mailbox = Mailbox()
        self.keeper = Keeper(store, registry, registry.clock)
        self.state = State.NEW
        self.worker: Worker | None = None
        self.busy = False
        """A request of the client has no answer yet."""
        self.suspended = False
        """The worker waits for the client's host to answer a call."""
        self.started = False
        """Something was fed or loaded: before that there is nothing to dump."""
        self.stuck = False
        """The worker refused to dump; it is asked again after the next turn."""
        self.heavy = False
        """What was found when the worker's size was last looked at."""
        self.parking = False
        """A park is on its way already."""
        self.leaving = False
        """The client is gone."""
        self.turns = 0
        self.turn_started: float | None = None
        self.connected_at = self.clock()
        self.active_at = self.clock()
        self.frozen_at = 0.0
        self.awaited = False
        """It was handed over with a record, for which its client may come back."""
        self.configuration: Configuration | None = None
        self.limits: Limits = ceiling
        """The limits in force, the memory limit of a restored state included."""
        self._memory_for_worker = True
        self._script_name = ""
        self._type_check = False
        self._parent: bytes | None = None
        self._must_claim: str | None = None
        self._failed_loads = 0
        self._cut_short = ""

    @property
    def session_id(self) -> bytes:
        """Empty before Configure."""
        return self.keeper.session_id

    @property
    def ephemeral(self) -> bool:
        """Never saved, and without an ID for the client."""
        return self.keeper.ephemeral

    @property
    def sent_away(self) -> bool:
        """It was handed over: only its client may end the connection."""
        return self.state is State.FROZEN

    def pause(self) -> None:
        """The client does not read: the worker's output waits."""
        if self.worker is not None:
            self.worker.pause()

    def unpause(self) -> None:
        """The client reads again."""
        if self.worker is not None:
            self.worker.unpause()

    def left(self) -> None:
        """The client is gone: what it leaves is saved by a task that nobody's connection holds."""
        if not self.leaving:
            self.leaving = True
            self.unpause()  # its turn could not end while its output waits for nobody
            self.registry.spawn(self._leave())

    def _answer(self, event: bytes) -> None:
        self.busy = False
        self.link.send(event)

    def turn_cut_short(self, why: str) -> None:
        """The server cannot wait for the running turn: its worker is killed, and the client told why."""
        if self.worker is not None and self.turn_started is not None:
            self._cut_short = why
            self.worker.kill()

    async def _died(self, death: WorkerDied | None) -> None:
        """The worker ended by itself. `None`: it has said why, and the client has read it."""
        if self._cut_short:
            self._answer(messages.fatal(f"{self._cut_short}; {self._what_is_left()}"))
        elif death is not None:
            self._answer(messages.fatal(f"{death}; {self._what_is_left()}"))
        await self._end("worker died")
        self.link.close()

    async def _died_of_dumping(self, death: WorkerDied) -> None:
        limit = self.limits.memory_bytes
        if limit is None:
            await self._died(death)
            return
        words = f"state too large to save under this session's memory limit of {limit:,} bytes ({death})"
        self._answer(messages.fatal(f"{words}; {self._what_is_left()}"))
        await self._died(None)

    def _what_is_left(self) -> str:
        if not self.ephemeral and self.keeper.saved_generation:
            return f"the last save of session {self.session_id.hex()} can be loaded"
        return "nothing was saved of this session yet"

    # Parking and waking

    async def park(self, *, at_once: bool = False) -> bool:
        """Take the worker from an idle session. Unless `at_once`, its own clock has the last word.

        Whether it is parked now.
        """
        async with self.mailbox:
            self.parking = False
            if self.state is not State.LIVE:
                return self.state is State.PARKED
            if not at_once and self.clock() - self.active_at < self.registry.times.park_after:
                return False
            try:
                return await self._park()
            except WorkerDied as death:
                await self._died(death)
                return False

    async def _park(self) -> bool:
        assert self.worker is not None
        if self.started:
            if self.is_heavy() or not (self.ephemeral or self.registry.room_for_unsaved()):
                return False
            try:
                dump = await self._dump_worker()
            except CannotDump:
                self.stuck = True
                return False
            self.keeper.hold(dump)
            if not self.ephemeral and self.keeper.dirty:
                self.keeper.put(dump)
        self._free_worker(State.PARKED)
        self.registry.parks += 1
        return True

    def is_heavy(self) -> bool:
        """Whether dumping the worker could kill it; looks at its size."""
        if self.worker is None:
            return self.heavy
        limit = self.limits.memory_bytes
        held = self.worker.resident() - EMPTY_WORKER
        self.heavy = limit is not None and held > max(HEAVY_SHARE * limit, HEAVY_FLOOR)
        return self.heavy

    def _free_worker(self, state: State) -> None:
        self.state = state
        self.registry.live.discard(self)
        if self.worker is not None:
            worker, self.worker = self.worker, None
            self.pool.free(worker)

    async def _wake(self) -> Worker:
        """The session's worker; a parked session is resumed. Raises AtCapacity, UnknownSession, NotSaved."""
        if self.worker is not None:
            return self.worker
        assert self.configuration is not None
        state = None
        if self.started:
            state = self.keeper.held.state if self.keeper.held else await self.store.reopen(self.session_id)
        worker = await self.pool.take(resume=self.started)
        try:
            if state is None:
                await worker.ask(self._configure_frame(), ignore)
            else:
                await worker.ask(self.configuration.frame(self.limits.without_memory()), ignore)
                event = await worker.ask(messages.load_frame(state), ignore)
                if messages.event_kind(event) is Event.ERROR:
                    logger.error("session %s does not resume: %r", self.session_id.hex(), event[:300])
                    raise NotSaved("its own state cannot be loaded")
        except BaseException:
            self.pool.free(worker)
            raise
        self._has(worker)
        self.keeper.release()
        self.registry.resumes += 1
        return worker

    def _has(self, worker: Worker) -> None:
        self.worker, self.state = worker, State.LIVE
        self.registry.live.add(self)
        worker.call_when_ended(self._worker_ended)

    def _worker_ended(self, worker: Worker) -> None:
        """A worker that dies while nobody asks it anything would keep its place until the next request."""
        if self.worker is worker and not self.mailbox.held:
            self.registry.spawn(self._found_dead(worker))

    async def _found_dead(self, worker: Worker) -> None:
        async with self.mailbox:
            if self.worker is worker:
                await self._died(await worker.ended())

    def _configure_frame(self) -> bytes:
        assert self.configuration is not None
        return self.configuration.frame(self.limits if self._memory_for_worker else self.limits.without_memory())

    # Dumping

    async def _dump_worker(self) -> Dump:
        """The state of the live worker. Raises CannotDump, WorkerDied."""
        assert self.worker is not None
        worker = self.worker
        asked = worker.ask(messages.DUMP, ignore)
        done, _ = await asyncio.wait({asked}, timeout=self.registry.times.dump_timeout)
        if not done:
            worker.kill()
        event = await asked
        if messages.event_kind(event) is not Event.DUMP_RESULT:
            raise CannotDump(event)
        return self._facts(bytes(messages.dump_state(event)))

    def _facts(self, state: bytes) -> Dump:
        return Dump(state, self._script_name, self._type_check, self.suspended, self.limits, self._parent)

    async def save_now(self) -> bool:
        """Somebody wants this session's newest state: save it before anything else happens to it."""
        async with self.mailbox:
            if self.state is State.LIVE and self.keeper.dirty and not self.ephemeral:
                if self.is_heavy():
                    return False
                try:
                    self.keeper.put(await self._dump_worker())
                except CannotDump:
                    return False
                except WorkerDied as death:
                    await self._died(death)
                    return False
        return await self.keeper.settle(self.registry.times.dump_answer)

    def autosave(self) -> None:
        """Save behind the client's back, if nothing is in the way."""
        if not (self.busy or self.stuck or self.mailbox.held or self.keeper.overtaken) and not self.is_heavy():
            self.registry.spawn(self._autosave())

    async def _autosave(self) -> None:
        if not self.mailbox.try_enter():
            return
        try:
            if self.state is State.LIVE and self.keeper.dirty and not self.leaving:
                dump = await self._dump_worker()
                self.keeper.put(dump)
                self.registry.autosaves += 1
                if len(dump.state) > LARGE_DUMP:
                    self.keeper.hold(dump)
                    self._free_worker(State.PARKED)
        except CannotDump:
            self.stuck = True
        except WorkerDied as death:
            await self._died(death)
        finally:
            self.mailbox.leave()

    # Ending

    async def hand_over(self, deadline: float) -> bool:
        """Save, tell the client where its state is, and freeze. Whether it is settled: nothing is left to hand over.

        `deadline`: seconds for the save; past it the client is told that there is nothing to load.
        """
        async with self.mailbox:
            if self.state is State.NEW or self.leaving:
                return False
            if self.state in (State.LIVE, State.PARKED):
                try:
                    await self._hand_over(deadline)
                except WorkerDied as death:
                    await self._died_of_dumping(death)
            return True

    async def _hand_over(self, deadline: float) -> None:
        record = None if self.ephemeral else await self._saved_for_the_client(deadline)
        self._free_worker(State.FROZEN)
        self.keeper.release()
        self.frozen_at = self.clock()
        self.awaited = record is not None
        self.busy = False
        self.link.send(messages.shutdown(record))
        await self.store.frozen(self.session_id)

    async def _saved_for_the_client(self, deadline: float) -> bytes | None:
        keeper = self.keeper
        try:
            if keeper.dirty or not self.started:
                await self._wake()
                keeper.put(await self._dump_worker(), handed_over=True)
            elif await keeper.settle(deadline):
                await self.store.mark_handed_over(self.session_id, keeper.generation)
            if await keeper.settle(deadline):
                return self.session_id
        except (CannotDump, NotSaved, Overtaken, AtCapacity) as error:
            logger.warning("session %s is handed over without its state: %s", self.session_id.hex(), error)
        return self.session_id if keeper.saved_generation and not keeper.overtaken else None

    async def end(self, reason: str) -> None:
        """Save and close: an admin asked for it, the key was revoked."""
        async with self.mailbox:
            await self._end(reason, save=True)
        self.link.close()

    def give_up(self) -> None:
        """The server's lease has run out: nothing may be saved any more, and the session ends here at once."""
        self.keeper.overtaken = True
        if self.worker is not None:
            self.worker.kill()
        self.link.close()
        self.left()

    async def _leave(self) -> None:
        if not self.busy:
            await asyncio.sleep(self.registry.times.leave_after)
        async with self.mailbox:
            await self._end("client left", save=True)

    async def _end(self, reason: str, *, save: bool = False) -> None:
        if self.state is State.CLOSED:
            return
        was, keeper = self.state, self.keeper
        if save and was is State.LIVE and keeper.dirty and not self.ephemeral and not keeper.overtaken:
            try:
                keeper.put(await self._dump_worker())
            except CannotDump as refusal:
                logger.info("session %s ends with its last save: %r", self.session_id.hex(), refusal.args[0][:200])
            except WorkerDied as death:
                logger.warning("session %s ends with its last save: %s", self.session_id.hex(), death)
        self._free_worker(State.CLOSED)
        if was is not State.NEW:
            await keeper.settle(self.registry.times.save_deadline)
            keeper.abandon()
            keeper.release()
            await self.store.ended(self.session_id, reason)
        self.registry.remove(self)


def ignore(event: bytes) -> None:
    """For requests of our own, whose events are for no client."""
