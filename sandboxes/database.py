"""The store of a session, on the database and the vault.

Each method of `DatabaseStore` is one hop to a thread; what happens there is plain, synchronous Django code.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ParamSpec, Protocol, TypeVar

from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections, connection
from django.utils import timezone

from projects.keys import authenticate
from projects.models import ApiKey, Project
from projects.scopes import Scope
from sandboxes.models import LiveSession
from sandboxes.store import (
    Admission,
    Dump,
    NotSaved,
    NoWorkerForVersion,
    Overtaken,
    QuotaFull,
    Refused,
    Restored,
    UnknownSession,
)
from sandboxes.wire.messages import Limits
from sandboxes.worker import INTERPRETER
from snapshots import leases, loading, saving
from vault.models import Usage
from vault.transactions import relaxed

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

HEARTBEATS_MISSED = 2.5
"""A server that missed so many heartbeats is not asked for anything."""

HOLD = timedelta(minutes=10)
"""How long a connected session keeps its record from expiring; renewed at half of it."""


_SESSIONS = LiveSession._meta.db_table
PROJECT_NOW = (
    "SELECT disabled, max_sessions, snapshot_quota, lower_quota,"  # noqa: S608
    f" (SELECT count(*) FROM {_SESSIONS} WHERE project_id = p.id AND state IN (%s, %s)),"
    f" coalesce((SELECT bytes FROM {Usage._meta.db_table} WHERE tenant = p.id), 0)"
    f" FROM {Project._meta.db_table} p WHERE p.id = %s"
)
"""All that decides whether a session may begin. Written out, for the ORM would take a fifth of its time to build it."""
NEW_SESSION = (
    f"INSERT INTO {_SESSIONS} (id, project_id, key_id, server_id, ephemeral, script_name, connected, active,"  # noqa: S608
    " epoch, generation, state, end_reason, turns, heavy)"
    f" VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 0, 0, '{LiveSession.State.LIVE}', '', 0, false)"
)


class Threads:
    """A bounded executor of this server's own for calls to the database and to storage."""

    def __init__(self, size: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(size, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`call` in a thread, on a database connection that is looked after."""

        def looked_after() -> T:
            close_old_connections()
            return call(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._executor, looked_after)

    def close(self) -> None:
        """Let running calls end; start no more. The threads' database connections are closed with them."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class Owners(Protocol):
    """Finds the session that owns a record and has it save first: see `channel.Channel`."""

    async def ask_to_save(self, session_id: str, server: str, channel: str) -> None:
        """Returns when it has saved, or after 3 s at most."""


class Lease:
    """This server's right to write: as long as its heartbeat gets through."""

    MARGIN = 0.8
    """The share of its time after which a server itself takes its lease for lost, before others may."""

    def __init__(self, server: str, lasts: float) -> None:
        self.server = server
        self._lasts = lasts * self.MARGIN
        self._until = time.monotonic() + self._lasts
        self._lost = False

    def renewed(self, began: float | None = None) -> None:
        """The heartbeat that `began` then (monotonic seconds) got through."""
        self._until = (time.monotonic() if began is None else began) + self._lasts

    def lose(self) -> None:
        """Another process has declared this server lost."""
        self._lost = True

    @property
    def lost(self) -> bool:
        """Another process may own this server's sessions by now."""
        return self._lost or time.monotonic() > self._until


@dataclass(frozen=True)
class Visitor:
    """Who is at the door: a key, its project and what that project allows."""

    project_id: int
    project_name: str
    key_id: int
    may_execute: bool
    ceiling: Limits


def identify(secret: str) -> Visitor:
    """The owner of an API key. Raises projects.keys.Refused."""
    key = authenticate(secret)
    return visitor(key.project, key)


def visitor(project: Project, key: ApiKey) -> Visitor:
    """What `key` may do in `project`."""
    may = Scope.EXECUTE.value in key.scopes
    return Visitor(project.pk, project.name, key.pk, may, ceiling(project))


def ceiling(project: Project) -> Limits:
    """A project's limits in the units of the wire."""
    return Limits(
        memory_bytes=min(project.memory_limit, settings.WORKER_MEMORY),
        recursion_depth=project.recursion_limit,
        suspensions=project.suspensions_limit,
        feed_us=int(project.feed_seconds * 1_000_000),
        turn_us=int(project.turn_seconds * 1_000_000),
        sleep_us=int(project.sleep_seconds * 1_000_000),
    )


@dataclass
class DatabaseStore:
    """See `sandboxes.store.Store`, whose methods these are."""

    visitor: Visitor
    threads: Threads
    lease: Lease
    owners: Owners
    epoch: int = field(default=0, init=False)

    async def admit(self, *, ephemeral: bool, script_name: str) -> Admission:
        if not self.visitor.may_execute:
            raise Refused(f"this API key lacks the scope {Scope.EXECUTE.value}; make one that has it")
        if self.lease.lost:
            raise Refused("this server has lost its lease and takes no new sessions; connect again")
        return await self.threads.run(self._admit, ephemeral, script_name)

    def _admit(self, ephemeral: bool, script_name: str) -> Admission:
        with relaxed(), connection.cursor() as cursor:
            cursor.execute(PROJECT_NOW, [*LiveSession.OPEN, self.visitor.project_id])
            disabled, max_sessions, quota, lower_quota, count, used = cursor.fetchone()
            if disabled:
                raise Refused(f"project {self.visitor.project_name} is disabled; ask an admin of this instance")
            quota = quota if lower_quota is None else min(quota, lower_quota)
            refusal = self._full(ephemeral, count, max_sessions, used, quota)
            if refusal and (ephemeral or not loading.has_unclaimed(self.visitor.project_id)):
                raise Refused(refusal)
            session_id = secrets.token_bytes(16)
            now = connection.ops.adapt_datetimefield_value(timezone.now())
            visitor = self.visitor
            row = (session_id.hex(), visitor.project_id, visitor.key_id, self.lease.server, ephemeral, script_name)
            cursor.execute(NEW_SESSION, (*row, now, now))
        return Admission(session_id, must_claim=refusal)

    def _full(self, ephemeral: bool, count: int, max_sessions: int, used: int, quota: int) -> str | None:
        """Why the project admits no more sessions of this kind."""
        name = self.visitor.project_name
        if count >= max_sessions:
            return (
                f"project {name} has {count} of {max_sessions} sessions open; end one, or ask an admin of this instance"
                " for more"
            )
        if used >= quota and not ephemeral:
            return saving.quota_message(name, used, quota)
        return None

    async def snapshot(self, session_id: bytes, dump: Dump, abandoned: Callable[[], bool]) -> bytes:
        def too_late() -> bool:
            return abandoned() or self.lease.lost

        if too_late():
            raise Overtaken("this server has lost its lease")
        try:
            return await self.threads.run(saving.save_snapshot, self._state(session_id, dump), cancelled=too_late)
        except saving.QuotaExceeded as full:
            raise QuotaFull(saving.quota_message(self.visitor.project_name, full.used, full.limit)) from full
        except (saving.StorageFailed, DatabaseError, InterfaceError) as error:
            raise NotSaved(str(error)) from error
        except saving.Cancelled as error:
            raise Overtaken("nobody waits for this snapshot any more") from error

    async def save(self, session_id: bytes, dump: Dump, generation: int, *, handed_over: bool) -> None:
        def is_ours() -> bool:
            return self._generation_is(session_id, generation)

        try:
            await self.threads.run(
                saving.save_session,
                self._state(session_id, dump),
                generation=generation,
                guard=is_ours,
                hold=HOLD,
                handed_over=handed_over,
            )
        except (saving.Superseded, saving.Deleted) as error:
            raise Overtaken(str(error)) from error
        except (saving.StorageFailed, DatabaseError, InterfaceError) as error:
            raise NotSaved(str(error)) from error

    def _generation_is(self, session_id: bytes, generation: int) -> bool:
        """Write this generation, in the caller's transaction, if the session is still ours and it is a newer one."""
        ours = LiveSession.objects.filter(id=session_id.hex(), server=self.lease.server, epoch=self.epoch)
        return ours.filter(generation__lt=generation).update(generation=generation) == 1

    def _state(self, session_id: bytes, dump: Dump) -> saving.State:
        return saving.State(
            project_id=self.visitor.project_id,
            session=session_id,
            dump=dump.state,
            script_name=dump.script_name,
            type_check=dump.type_check,
            suspended=dump.suspended,
            interpreter=INTERPRETER,
            limits=dump.limits.to_dict(),
            parent=dump.parent,
            key_id=self.visitor.key_id,
        )

    async def mark_handed_over(self, session_id: bytes, generation: int) -> None:
        try:
            marked = await self.threads.run(loading.hand_over, self.visitor.project_id, session_id, generation)
        except (DatabaseError, InterfaceError) as error:
            raise NotSaved(str(error)) from error
        if not marked:
            raise Overtaken("the record was replaced or deleted")

    async def restore(self, record_id: bytes, *, claim: bool) -> Restored:
        if not 16 <= len(record_id) <= 32:
            raise UnknownSession
        try:
            owner = await self.threads.run(self._owner, record_id)
            if owner is not None:
                await self.owners.ask_to_save(record_id.hex(), *owner)
            return await self.threads.run(self._restore, record_id, claim)
        except (saving.StorageFailed, DatabaseError, InterfaceError) as error:
            raise NotSaved(str(error)) from error

    def _owner(self, record_id: bytes) -> tuple[str, str] | None:
        """Server and channel of the session that lives under this ID now; a server that is silent is not asked."""
        mine = LiveSession.objects.filter(id=record_id.hex(), project_id=self.visitor.project_id, ephemeral=False)
        beating = timezone.now() - timedelta(seconds=HEARTBEATS_MISSED * settings.HEARTBEAT_EVERY)
        mine = mine.filter(state__in=LiveSession.OPEN, server__heartbeat__gt=beating)
        return mine.values_list("server_id", "server__channel").first()

    def _restore(self, record_id: bytes, claim: bool) -> Restored:
        if claim and not loading.claim(self.visitor.project_id, record_id):
            raise UnknownSession
        opened = self._open(record_id)
        if opened.interpreter != INTERPRETER:
            raise NoWorkerForVersion(
                f"this state was saved by interpreter {opened.interpreter}; this server has workers of {INTERPRETER}"
                " only: load it on a server that has the other"
            )
        if opened.unclaimed:
            loading.claim(self.visitor.project_id, record_id)
        limits = Limits.from_dict(opened.limits)
        return Restored(record_id, opened.dump, opened.script_name, opened.type_check, limits)

    async def reopen(self, session_id: bytes) -> bytes:
        try:
            return (await self.threads.run(self._open, session_id)).dump
        except (saving.StorageFailed, DatabaseError, InterfaceError) as error:
            raise NotSaved(str(error)) from error

    def _open(self, record_id: bytes) -> loading.Opened:
        try:
            return loading.open_record(self.visitor.project_id, record_id)
        except (loading.UnknownSession, loading.Unreadable) as error:
            raise UnknownSession from error

    async def frozen(self, session_id: bytes) -> None:
        await self._left(session_id, LiveSession.State.FROZEN, "handed over")

    async def ended(self, session_id: bytes, reason: str) -> None:
        await self._left(session_id, LiveSession.State.CLOSED, reason)

    async def _left(self, session_id: bytes, state: LiveSession.State, reason: str) -> None:
        try:
            await self.threads.run(self._leave, session_id, state, reason)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("the end of session %s is not written down yet: %s", session_id.hex(), error)

    def _leave(self, session_id: bytes, state: LiveSession.State, reason: str) -> None:
        with relaxed():
            mine = LiveSession.objects.filter(id=session_id.hex(), server=self.lease.server, epoch=self.epoch)
            ended = timezone.now() if state == LiveSession.State.CLOSED else None
            mine.update(state=state, end_reason=reason[:60], ended=ended)
            leases.release([session_id])


def keep_connected(session_ids: list[bytes]) -> None:
    """The records of these sessions are held for another while."""
    leases.renew(session_ids, timezone.now() + HOLD)
