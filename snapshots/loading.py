"""Opening records, and taking up those that a client was told to come back for."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from snapshots.models import Record
from vault import blobs
from vault.blobs import BlobMissing
from vault.sealing import Unsealable, unseal

logger = logging.getLogger(__name__)

CLAIM_WITHIN = timedelta(hours=2)


class UnknownSession(Exception):
    """No such record for this project: never there, expired, deleted, or another project's."""


class Unreadable(Exception):
    """The record is there, but what is in storage is not what was sealed."""


@dataclass(frozen=True)
class Opened:
    """A record and its state."""

    id: bytes
    kind: str
    dump: bytes
    script_name: str
    type_check: bool
    suspended: bool
    interpreter: str
    limits: dict[str, int]
    unclaimed: bool
    """A client was told to come back for it, and has not yet."""


def find(project_id: int, record_id: bytes) -> Record:
    """The row, by one query. Raises UnknownSession."""
    alive = Q(expires__gt=timezone.now()) | Q(kept=True) | Q(held_until__gt=timezone.now())
    row = Record.objects.select_related("blob").filter(alive, pk=record_id.hex(), project_id=project_id).first()
    if row is None:
        raise UnknownSession
    return row


def open_record(project_id: int, record_id: bytes) -> Opened:
    """A record of the project with its state. Raises UnknownSession, Unreadable, vault.blobs.StorageFailed."""
    row = find(project_id, record_id)
    try:
        sealed = blobs.get(row.blob.key)
    except BlobMissing:
        row = find(project_id, record_id)  # it may have been replaced meanwhile
        try:
            sealed = blobs.get(row.blob.key)
        except BlobMissing:
            logger.error("record %s: its object %s is not in the store", row.pk, row.blob.key)
            raise UnknownSession from None
    try:
        dump = unseal(sealed, row.context, size=row.state_size, sha256=bytes(row.sha256))
    except Unsealable as error:
        logger.error("record %s of project %d is damaged or forged: %s", row.pk, project_id, error.reason)
        raise Unreadable(error.reason) from None
    return Opened(
        record_id,
        row.kind,
        dump,
        row.script_name,
        row.type_check,
        row.suspended,
        row.interpreter,
        row.limits,
        row.handed_over is not None and row.claimed is None,
    )


def hand_over(project_id: int, record_id: bytes, generation: int) -> bool:
    """A client is told to come back for this save of its session. False when that save no longer stands."""
    rows = Record.objects.filter(pk=record_id.hex(), project_id=project_id, generation=generation)
    return rows.update(handed_over=timezone.now(), claimed=None) == 1


def _unclaimed(project_id: int) -> Q:
    since = timezone.now() - CLAIM_WITHIN
    return Q(project_id=project_id, handed_over__gt=since, claimed=None)


def has_unclaimed(project_id: int) -> bool:
    """Whether a client may still come back for a record that was handed over."""
    return Record.objects.filter(_unclaimed(project_id)).exists()


def claim(project_id: int, record_id: bytes) -> bool:
    """Take up a record that was handed over; each can be taken up once."""
    return Record.objects.filter(_unclaimed(project_id), pk=record_id.hex()).update(claimed=timezone.now()) == 1
