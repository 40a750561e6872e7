"""The save protocol: seal, reserve, put, then one transaction that makes it count, then the answer.

Whatever fails on the way leaves the last save as it was, and nothing behind that the sweeps do not find.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.db import DatabaseError, IntegrityError, InterfaceError, transaction
from django.utils import timezone

from projects.models import Project
from snapshots.models import Record, Tombstone, expiry
from vault import blobs, faults, sealing
from vault.blobs import QuotaExceeded, StorageFailed
from vault.models import Blob

__all__ = [
    "Cancelled",
    "Deleted",
    "QuotaExceeded",
    "State",
    "StorageFailed",
    "Superseded",
    "quota_message",
    "save_session",
    "save_snapshot",
]

logger = logging.getLogger(__name__)

ID_BYTES = 16


class Superseded(Exception):
    """A newer save stands, or another server owns the session."""


class Deleted(Exception):
    """The record was deleted; a save must not bring it back."""


class Cancelled(Exception):
    """Nobody waits for this save any more."""


class _Unconfirmed(Exception):
    """A transaction whose commit was sent and not answered."""


class _Stands(Exception):
    """An earlier attempt at the same save was committed."""


@dataclass(frozen=True)
class State:
    """What is saved: a dump, and what must be known to restore it."""

    project_id: int
    session: bytes
    dump: bytes
    script_name: str
    type_check: bool
    suspended: bool
    interpreter: str
    limits: dict[str, int]
    parent: bytes | None
    key_id: int | None


def quota_message(project: str, used: int, limit: int) -> str:
    """What a client is told when the quota is full."""
    return (
        f"snapshot storage quota exceeded: {used:,} of {limit:,} bytes used; delete snapshots or ask an admin of"
        f" project {project} for more"
    )


def save_snapshot(state: State, *, cancelled: Callable[[], bool]) -> bytes:
    """Keep `state` as a new record and give its ID, once it is durable.

    `cancelled` is asked right before the commit. Raises QuotaExceeded, StorageFailed, Cancelled.
    """
    record_id = secrets.token_bytes(ID_BYTES)
    quota = Project.objects.get(pk=state.project_id).quota
    record = _record(state, record_id, Record.Kind.SNAPSHOT, generation=0)
    blob = _stored(record, state, quota)

    def write() -> None:
        _keep(blob)
        record.blob = blob
        record.save(force_insert=True)
        if cancelled():
            raise Cancelled("nobody waits for this snapshot any more")

    _commit(write, blob)
    return record_id


def save_session(
    state: State,
    *,
    generation: int,
    guard: Callable[[], bool],
    hold: timedelta,
    handed_over: bool = False,
) -> None:
    """Replace the record under the session's own ID, over the quota if need be.

    `guard` runs within the committing transaction, once the record's row is locked: False means that the session is no
    longer the caller's, or a newer save stands. To try again after StorageFailed is safe, even if the save that failed
    turns out to stand. Raises Superseded, Deleted, StorageFailed.
    """
    record = _record(state, state.session, Record.Kind.SESSION, generation)
    blob = _stored(record, state, limit=None)

    def write() -> None:
        now = timezone.now()
        old = Record.objects.select_for_update().filter(pk=record.pk).first()
        if old is None and Tombstone.objects.filter(pk=record.pk).exists():
            raise Deleted(f"record {record.pk} was deleted")
        if old is not None and _is_same_save(old, record):
            raise _Stands
        if old is not None and old.generation >= generation:
            raise Superseded(f"save {old.generation} of this session stands")
        if not guard():
            raise Superseded("a newer save stands, or another server owns the session")
        _keep(blob)
        record.blob = blob
        record.held_until = now + hold
        record.handed_over = now if handed_over else None
        if old is None:
            record.save(force_insert=True)
        else:
            record.created, record.name, record.note, record.kept = old.created, old.name, old.note, old.kept
            record.save(force_update=True)
            blobs.doom([old.blob_id])

    try:
        _commit(write, blob)
    except _Stands:
        logger.info("save %d of session %s stands already", generation, record.pk)


def _is_same_save(old: Record, new: Record) -> bool:
    """An earlier attempt at this very save was committed, though its caller was told that it failed."""
    return old.generation == new.generation and bytes(old.sha256) == new.sha256


def _keep(blob: Blob) -> None:
    if not blobs.keep(blob):
        raise StorageFailed("it took so long that its reservation was given back")


def _record(state: State, record_id: bytes, kind: Record.Kind, generation: int) -> Record:
    now = timezone.now()
    return Record(
        id=record_id.hex(),
        project_id=state.project_id,
        kind=kind,
        session=state.session.hex(),
        generation=generation,
        parent=state.parent.hex() if state.parent else "",
        key_id=state.key_id,
        suspended=state.suspended,
        script_name=state.script_name,
        type_check=state.type_check,
        interpreter=state.interpreter,
        limits=state.limits,
        state_size=len(state.dump),
        sha256=hashlib.sha256(state.dump).digest(),
        created=now,
        saved=now,
        expires=expiry(now),
    )


def _stored(record: Record, state: State, limit: int | None) -> Blob:
    """The sealed dump, reserved and put."""
    sealed = sealing.seal(state.dump, record.context)
    faults.reach("reserve:before")
    blob = blobs.reserve(state.project_id, len(sealed), limit)
    faults.reach("reserve:after")
    try:
        faults.reach("put:before")
        blobs.put(blob, sealed)
        faults.reach("put:after")
    except BaseException:
        _give_back(blob)
        raise
    return blob


def _commit(write: Callable[[], None], blob: Blob) -> None:
    """Run `write` in a transaction and give `blob` back if nothing of it stands. Raises StorageFailed."""
    faults.reach("commit:before")
    try:
        try:
            _transact(write)
        except IntegrityError:
            _transact(write)  # two first saves of one session came at once: now there is a row to replace
    except _Unconfirmed as error:
        logger.error("it is not known whether blob %s counts; the sweep will tell: %s", blob, error)
        raise StorageFailed("the database did not confirm the save") from error
    except (DatabaseError, InterfaceError) as error:
        _give_back(blob)
        raise StorageFailed("the database did not take the save") from error
    except BaseException:
        _give_back(blob)
        raise
    faults.reach("commit:after")
    faults.reach("answer:before")


def _transact(write: Callable[[], None]) -> None:
    """Raises _Unconfirmed when the commit was sent and its outcome is not known."""
    committing = False
    try:
        with transaction.atomic():
            write()
            committing = True
    except IntegrityError:
        raise  # the database's own word: it has taken nothing
    except (DatabaseError, InterfaceError) as error:
        if committing:
            raise _Unconfirmed(str(error)) from error
        raise


def _give_back(blob: Blob) -> None:
    """At once if the database lets us, else in an hour by the sweep."""
    try:
        blobs.discard(blob)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("blob %s is left to the sweep: %s", blob, error)
