"""The end of what nobody keeps: rows first, in batches that fit a transaction.

The objects go five minutes later with those of replaced blobs, so that a load in flight can finish.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from snapshots.deleting import remove
from snapshots.models import Record, Tombstone

logger = logging.getLogger(__name__)

BATCH = 200
TOMBSTONES_KEPT = timedelta(days=30)


def expire() -> int:
    """Remove every record whose time has come, but for those that are kept, held or being written now. How many."""
    total = 0
    while removed := _expire_batch():
        total += removed
    if total:
        logger.info("%d records have expired", total)
    Tombstone.objects.filter(at__lt=Now() - TOMBSTONES_KEPT).delete()
    return total


def _expire_batch() -> int:
    due = Record.objects.filter(Q(held_until=None) | Q(held_until__lt=Now()), expires__lt=Now(), kept=False)
    with transaction.atomic():
        skip = connection.features.has_select_for_update_skip_locked
        rows = list(due.select_for_update(skip_locked=skip).order_by("expires")[:BATCH])
        return remove(rows).count
