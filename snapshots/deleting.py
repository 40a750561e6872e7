"""Deleting: the row, the object and the quota at once; a saved session leaves a tombstone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction

from snapshots.models import Record, Tombstone
from vault import blobs
from vault.models import Blob


class SessionConnected(Exception):
    """A connected session writes this record: end the session first."""

    def __init__(self, record_id: bytes) -> None:
        super().__init__(f"session {record_id.hex()} is connected; end it, then delete its record")
        self.record_id = record_id


@dataclass(frozen=True)
class Deleted:
    """What a deletion did: how many records, and the bytes that are free again."""

    count: int
    freed: int


def delete(project_id: int, ids: Sequence[bytes]) -> Deleted:
    """Delete records of the project; IDs that it does not have are passed over.

    Nothing is deleted when one of them is being written: raises SessionConnected.
    """
    names = [record_id.hex() for record_id in ids]
    with transaction.atomic():
        rows = list(Record.objects.select_for_update().filter(pk__in=names, project_id=project_id).order_by("pk"))
        for row in rows:
            if row.is_held():
                raise SessionConnected(bytes.fromhex(row.pk))
        sessions = [row for row in rows if row.kind == Record.Kind.SESSION]
        Tombstone.objects.bulk_create(
            [Tombstone(id=row.pk, project_id=row.project_id) for row in sessions], ignore_conflicts=True
        )
        deleted = remove(rows)
        doomed = list(Blob.objects.filter(pk__in=[row.blob_id for row in rows], state=Blob.State.DOOMED))
    blobs.erase(doomed)
    return deleted


def remove(rows: Sequence[Record]) -> Deleted:
    """Delete locked rows and doom their blobs, within the caller's transaction."""
    _, by_model = Record.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return Deleted(by_model.get(Record._meta.label, 0), blobs.doom(row.blob_id for row in rows))
