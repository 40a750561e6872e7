"""One interpreter session: what a client's frames make of it.

A session does no I/O of its own. It is handed a link to its client, a pool of workers, a store, and the registry of its
process with the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sandboxes.lifecycle import CannotDump, Lifecycle, State, ignore
from sandboxes.pool import AtCapacity
from sandboxes.store import Admission, NotSaved, NoWorkerForVersion, Overtaken, QuotaFull, Refused, UnknownSession
from sandboxes.wire import messages
from sandboxes.wire.fields import ProtocolError
from sandboxes.wire.kinds import SUSPENSIONS, Event, Kind
from sandboxes.wire.messages import Configuration, Limits
from sandboxes.wire.scan import scan
from sandboxes.worker import Worker, WorkerDied

logger = logging.getLogger(__name__)

FAILED_LOADS = 3
"""The failed Load that closes the connection."""

EPHEMERAL_DUMP = "this session is ephemeral, so it cannot be dumped"
UNKNOWN = "unknown session: no saved state has this ID, or it has expired or was deleted"
PASSED_ON = frozenset(
    {Kind.INSTALL_DEPENDENCIES, Kind.FEED, Kind.RESUME_CALL, Kind.RESUME_NAME_LOOKUP, Kind.RESUME_FUTURES}
    | {Kind.ABORT_FEED}
)
PRINT = 0x0A


class Session(Lifecycle):
    """An interpreter's life on one connection."""

    # What the client sends

    def receive(self, frame: bytes) -> None:
        """One frame from the client. A second one during a turn closes the connection."""
        if self.leaving or self.state in (State.FROZEN, State.CLOSED):
            return
        if self.busy:
            self.link.close()
            return
        self.active_at = self.clock()
        if len(frame) > (limit := self.registry.frame_max):
            self.link.send(messages.error(f"a frame holds at most {limit:,} bytes; this one has {len(frame):,}"))
            return
        try:
            kind = scan(frame)
        except ProtocolError as error:
            self.link.send(messages.error(str(error)))
            return
        self.busy = True
        worker = self.worker
        plain = kind in PASSED_ON and not self._must_claim and not self.registry.park_every_turn
        if plain and worker and worker.alive and self.mailbox.try_enter():
            self._turn_begins()
            turn = worker.ask(frame, self._event)
            turn.add_done_callback(self._turn_is_over)
        else:
            self.registry.spawn(self._serve(kind, frame))

    async def _serve(self, kind: Kind, frame: bytes) -> None:
        async with self.mailbox:
            if self.leaving or self.state in (State.FROZEN, State.CLOSED):
                return
            try:
                await self._request(kind, frame)
            except WorkerDied as death:
                await self._died(death)
            except Exception:
                logger.exception("session %s failed", self.session_id.hex())
                self._answer(messages.fatal("the server failed at this request; the last save can be loaded"))
                await self._end("failed")
                self.link.close()
            finally:
                self._turn_ends()

    async def _request(self, kind: Kind, frame: bytes) -> None:
        if self._must_claim is not None and kind is not Kind.LOAD:
            self._answer(messages.error(self._must_claim))
            await self._end("refused")
            self.link.close()
        elif kind is Kind.CONFIGURE:
            await self._configure(frame)
        elif self.state is State.NEW:
            self._answer(messages.error("protocol violation: session has not been configured"))
        elif kind is Kind.LOAD:
            await self._load(frame)
        elif kind is Kind.DUMP:
            await self._dump()
        elif kind in (Kind.RESET, Kind.SHUTDOWN):
            if kind is Kind.RESET:
                self._answer(messages.OK)
            await self._end("ended by its client", save=True)
            self.link.close()
        else:
            await self._pass_on(kind, frame)

    # A turn

    def _turn_begins(self) -> None:
        self.turn_started = self.clock()
        self.registry.frames_passed += 1
        self.registry.running.add(self)

    def _event(self, event: bytes) -> None:
        if event[0] != PRINT:
            kind = messages.event_kind(event)
            self.busy = False
            self.started = self.keeper.dirty = True
            self.suspended = kind in SUSPENSIONS
            self.stuck = False
            self.turns += 1
        if len(event) > (limit := self.registry.frame_max):
            event = messages.error(f"the answer has {len(event):,} bytes; one frame holds at most {limit:,}")
        self.link.send(event)

    def _turn_is_over(self, turn: asyncio.Future[bytes]) -> None:
        if turn.cancelled() or turn.exception() is not None or messages.event_kind(turn.result()) is Event.FATAL_ERROR:
            self.registry.spawn(self._turn_failed(turn))
            return
        self._turn_ends()
        self.mailbox.leave()
        self.registry.turn_ended(self)

    async def _turn_failed(self, turn: asyncio.Future[bytes]) -> None:
        try:
            error = None if turn.cancelled() else turn.exception()
            await self._died(error if isinstance(error, WorkerDied) else None)
        finally:
            self._turn_ends()
            self.mailbox.leave()

    def _turn_ends(self) -> None:
        self.turn_started = None
        self.registry.running.discard(self)
        self.active_at = self.clock()

    async def _pass_on(self, kind: Kind, frame: bytes) -> None:
        try:
            worker = await self._wake()
        except (AtCapacity, UnknownSession, NotSaved) as error:
            if kind is not Kind.FEED:
                await self._hand_over(5.0)
            elif isinstance(error, AtCapacity):
                self._answer(messages.error(f"server at capacity: {error}; try again in a moment"))
            else:
                self._answer(messages.error("the state of this session cannot be read for the moment; try again"))
            return
        self._turn_begins()
        event = await worker.ask(frame, self._event)
        if messages.event_kind(event) is Event.FATAL_ERROR:
            await self._died(None)
        elif self.registry.park_every_turn:
            await self._park()
        else:
            self.registry.after(self.registry.turn_ended, self)

    # Beginning

    async def _configure(self, frame: bytes) -> None:
        if self.state is not State.NEW:
            self._answer(messages.error("protocol violation: session has already been configured"))
            return
        try:
            wanted = Configuration.read(frame)
        except ProtocolError as error:
            self._answer(messages.error(str(error)))
            return
        if len(self.registry.sessions) >= self.registry.max_sessions:
            self._answer(messages.error("server at capacity: it holds as many sessions as it may; try again later"))
            return
        configuration = wanted.clamped(self.ceiling)
        admitting = asyncio.ensure_future(
            self.store.admit(ephemeral=configuration.ephemeral, script_name=configuration.script_name)
        )
        admission: Admission | None = None
        worker: Worker | None = None
        try:
            worker = await self.pool.take(resume=False)
            reply = await worker.ask(configuration.frame(), ignore)
            admission = await admitting
            if messages.event_kind(reply) is not Event.OK:
                self._answer(reply)
                return
            self._admitted(configuration, admission, worker)
            worker = admission = None
        except AtCapacity as error:
            self._answer(messages.error(f"server at capacity: {error}; try again in a moment"))
        except Refused as refusal:
            self._answer(messages.error(str(refusal)))
        except WorkerDied as death:
            self._answer(messages.fatal(str(death)))
        else:
            self._answer(self._with_id(reply))
        finally:
            if worker is not None:
                self.pool.free(worker)
            if self.state is State.NEW:
                await self._withdraw(admitting, admission)

    def _with_id(self, reply: bytes) -> bytes:
        return reply if self.ephemeral else messages.with_session_id(reply, self.session_id)

    async def _withdraw(self, admitting: asyncio.Future[Admission], admission: Admission | None) -> None:
        """Nothing came of it: the row of a session that was admitted goes."""
        try:
            admission = admission or await admitting
        except Refused:
            return
        await self.store.ended(admission.session_id, "never began")

    def _admitted(self, configuration: Configuration, admission: Admission, worker: Worker) -> None:
        self.configuration = configuration
        self.limits = configuration.limits
        self._script_name = configuration.script_name
        self._type_check = configuration.type_check
        self._must_claim = admission.must_claim
        self.keeper.session_id = admission.session_id
        self.keeper.ephemeral = configuration.ephemeral
        self._has(worker)
        self.registry.add(self)

    async def _load(self, frame: bytes) -> None:
        if self.started:
            self._answer(messages.error("protocol violation: Load requires a session that has not started"))
            return
        must_claim, self._must_claim = self._must_claim, None
        try:
            restored = await self.store.restore(messages.load_id(frame), claim=must_claim is not None)
            await self._restore(restored.state, restored.limits)
        except (UnknownSession, ProtocolError):
            self._failed_loads += 1
            self._answer(messages.error(UNKNOWN if must_claim is None else must_claim))
            if self._failed_loads >= FAILED_LOADS or must_claim is not None:
                await self._end("failed loads")
                self.link.close()
        except NoWorkerForVersion as error:
            self._answer(messages.error(str(error)))
        except NotSaved:
            self._answer(
                messages.error("storage does not answer for the moment; the saved state is not lost: try again")
            )
        except AtCapacity:
            await self._hand_over(5.0)
        else:
            self._parent = restored.record_id
            self._script_name, self._type_check = restored.script_name, restored.type_check

    async def _restore(self, state: bytes, recorded: Limits) -> None:
        """Load `state`, under the lower of its limits and the client's, and announce what it waits for.

        A state brings its own memory limit, and could not be loaded under the same one: the worker is told a memory
        limit only where the client's is the lower.
        """
        assert self.configuration is not None
        worker = await self._wake()
        asked = self.configuration.limits
        self.limits = asked.lower(recorded)
        self._memory_for_worker = self.limits.memory_bytes != recorded.memory_bytes
        await worker.ask(messages.RESET, ignore)
        await worker.ask(self._configure_frame(), ignore)
        event = await worker.ask(messages.load_frame(state), ignore)
        kind = messages.event_kind(event)
        if kind is Event.ERROR:
            logger.error("a record that was sealed here cannot be loaded: %r", event[:300])
            raise UnknownSession
        self.started = self.keeper.dirty = True
        self.suspended = kind in SUSPENSIONS
        self._answer(self._with_id(event))

    # Dumping

    async def _dump(self) -> None:
        if self.ephemeral:
            self._answer(messages.error(EPHEMERAL_DUMP))
            return
        clock = self.clock
        give_up = clock() + self.registry.times.dump_answer
        work = asyncio.ensure_future(self._snapshot(lambda: clock() > give_up))
        done, _ = await asyncio.wait({work}, timeout=self.registry.times.dump_answer)
        if not done:
            self._answer(messages.error("the snapshot is not saved: storage took too long; try again"))
        try:
            event = await work
        except WorkerDied as death:
            await self._died_of_dumping(death)
            return
        except AtCapacity:
            await self._hand_over(5.0)
            return
        if done:
            self._answer(event)

    async def _snapshot(self, abandoned: Callable[[], bool]) -> bytes:
        """The answer to a Dump."""
        try:
            if self.worker is None and self.keeper.held is not None:
                dump = self.keeper.held
            else:
                await self._wake()
                dump = await self._dump_worker()
            return messages.dump_result(await self.store.snapshot(self.session_id, dump, abandoned))
        except CannotDump as refusal:
            event: bytes = refusal.args[0]
            return event
        except QuotaFull as full:
            return messages.error(str(full))
        except (NotSaved, UnknownSession, Overtaken) as error:
            logger.warning("no snapshot of session %s: %s", self.session_id.hex(), error)
            return messages.error("the snapshot is not saved: storage failed; try again")
