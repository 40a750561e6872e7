"""Holds: a record that a connected session writes does not expire under it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from snapshots.models import Record

BATCH = 500


def renew(ids: Sequence[bytes], until: datetime) -> None:
    """Hold these saved sessions until then."""
    _set(ids, until)


def release(ids: Sequence[bytes]) -> None:
    """Nobody writes these any more."""
    _set(ids, None)


def _set(ids: Sequence[bytes], until: datetime | None) -> None:
    for start in range(0, len(ids), BATCH):
        batch = [record_id.hex() for record_id in ids[start : start + BATCH]]
        Record.objects.filter(pk__in=batch, kind=Record.Kind.SESSION).update(held_until=until)
