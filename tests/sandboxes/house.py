"""A session with a real worker, and everything else in the test's hands: clock, store and client."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from sandboxes.isolation import Isolation
from sandboxes.pool import Pool
from sandboxes.registry import Registry, Times
from sandboxes.session import Session
from sandboxes.store import Admission, Dump, NotSaved, Overtaken, Refused, Restored, UnknownSession
from sandboxes.wire import monty_pb2 as pb
from sandboxes.wire.fields import bytes_header
from sandboxes.wire.kinds import Event, Kind
from sandboxes.wire.messages import Limits, event_kind, words
from sandboxes.worker import Worker

MIB = 1024 * 1024
CEILING = Limits(memory_bytes=256 * MIB, recursion_depth=1000, suspensions=10_000, feed_us=60_000_000)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class MemoryStore:
    """A store whose storage can be slow, failing or taken over at the test's word."""

    records: dict[bytes, Dump] = field(default_factory=dict)
    generations: dict[bytes, int] = field(default_factory=dict)
    handed_over: set[bytes] = field(default_factory=set)
    ends: dict[bytes, str] = field(default_factory=dict)
    frozen_ids: list[bytes] = field(default_factory=list)
    refusal: str | None = None
    must_claim: str | None = None
    failing: bool = False
    overtaken: bool = False
    gate: asyncio.Event | None = None
    saves: int = 0

    async def admit(self, *, ephemeral: bool, script_name: str) -> Admission:
        if self.refusal:
            raise Refused(self.refusal)
        return Admission(secrets.token_bytes(16), self.must_claim)

    async def snapshot(self, session_id: bytes, dump: Dump, abandoned: Callable[[], bool]) -> bytes:
        await self._storage()
        if abandoned():
            raise Overtaken("too late")
        record = secrets.token_bytes(16)
        self.records[record] = dump
        return record

    async def save(self, session_id: bytes, dump: Dump, generation: int, *, handed_over: bool) -> None:
        await self._storage()
        if self.overtaken or generation <= self.generations.get(session_id, 0):
            raise Overtaken("a newer save stands")
        self.saves += 1
        self.records[session_id] = dump
        self.generations[session_id] = generation
        if handed_over:
            self.handed_over.add(session_id)

    async def mark_handed_over(self, session_id: bytes, generation: int) -> None:
        await self._storage()
        self.handed_over.add(session_id)

    async def restore(self, record_id: bytes, *, claim: bool) -> Restored:
        await self._storage()
        if claim:
            if record_id not in self.handed_over:
                raise UnknownSession
            self.handed_over.discard(record_id)
        dump = self.records.get(record_id)
        if dump is None:
            raise UnknownSession
        return Restored(record_id, dump.state, dump.script_name, dump.type_check, dump.limits)

    async def reopen(self, session_id: bytes) -> bytes:
        await self._storage()
        if session_id not in self.records:
            raise UnknownSession
        return self.records[session_id].state

    async def frozen(self, session_id: bytes) -> None:
        self.frozen_ids.append(session_id)

    async def ended(self, session_id: bytes, reason: str) -> None:
        self.ends[session_id] = reason

    async def _storage(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.failing:
            raise NotSaved("storage is down")


class Client:
    """The other end of a session's link."""

    suspended = False

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.session: Session | None = None

    def send(self, event: bytes) -> None:
        self.events.put_nowait(event)

    def close(self) -> None:
        self.closed.set()
        if self.session is not None:
            self.session.left()

    async def answer(self) -> bytes:
        """The next event that ends a turn."""
        while True:
            event = await asyncio.wait_for(self.events.get(), 30)
            if event_kind(event) is not Event.PRINT:
                return event

    async def words(self) -> str:
        """What the next Error or FatalError says."""
        return words(await self.answer())


class House:
    """A server without a server."""

    def __init__(self, *, workers: int = 4, wait: float = 4.0, times: Times | None = None, **options: int) -> None:
        self.clock = Clock()
        self.store = MemoryStore()
        self.registry = Registry(
            times or Times(leave_after=0, autosave_every=5),
            clock=self.clock,
            state_cache=options.get("state_cache", 64 * MIB),
            unsaved_max=options.get("unsaved_max", 64 * MIB),
        )
        isolation = Isolation("off")

        async def start() -> Worker:
            return await Worker.start(isolation, 256 * MIB)

        self.pool = Pool(start, workers=workers, warm=0, make_room=self.registry.make_room, wait=wait)
        self.registry.pool = self.pool

    async def close(self) -> None:
        for session in list(self.registry.sessions.values()):
            session.left()
        await self.registry.finish(30)
        await self.pool.close()

    def session(self, ceiling: Limits = CEILING) -> tuple[Session, Client]:
        """A connection that has said nothing yet."""
        client = Client()
        client.session = Session(client, self.store, self.pool, self.registry, ceiling)
        return client.session, client

    async def configured(self, *, ephemeral: bool = False, memory: int | None = None) -> tuple[Session, Client]:
        """A connection with a live interpreter."""
        session, client = self.session()
        session.receive(configure(ephemeral=ephemeral, memory=memory))
        assert event_kind(await client.answer()) is Event.OK
        return session, client

    async def run(self, session: Session, client: Client, code: str) -> Event:
        """One turn; the kind of its answer."""
        session.receive(feed(code))
        return event_kind(await client.answer())


def message(number: int, *parts: bytes) -> bytes:
    """One length-delimited field."""
    body = b"".join(parts)
    return bytes_header(number, len(body)) + body


def configure(*, script: str = "main.py", ephemeral: bool = False, memory: int | None = None) -> bytes:
    """The first request of a client of version 1.4.0 (protocol version 6)."""
    wanted = pb.Configure(script_name=script, ephemeral=int(ephemeral))
    if memory is not None:
        wanted.limits.memory_bytes = memory
    version = message(5, b"1.4.0") + b"\x48\x06"
    return message(Kind.CONFIGURE, wanted.SerializeToString(), version)


def feed(code: str) -> bytes:
    """A Feed of this code."""
    return message(Kind.FEED, message(1, code.encode()))


def load(record: bytes) -> bytes:
    """A Load of the record with this ID."""
    return message(Kind.LOAD, message(1, record))
