"""The sweeps that keep rows, objects and the count of bytes in agreement. Each may run twice, late or never."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import islice

from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from vault import blobs
from vault.models import Blob, Correction, Usage
from vault.storage import store

logger = logging.getLogger(__name__)

GRACE = timedelta(minutes=5)
"""A load that read a row just before its blob was replaced still finds the object."""
ABANDONED = timedelta(hours=1)
BATCH = 500


def batches(items: Iterable[str]) -> Iterator[list[str]]:
    """Lists of up to BATCH items."""
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def remove_doomed(older_than: timedelta = GRACE) -> int:
    """Remove what was doomed that long ago. The number of blobs."""
    due = Blob.objects.filter(state=Blob.State.DOOMED, doomed_at__lte=timezone.now() - older_than)
    return blobs.erase(due.order_by("doomed_at")[: 10 * BATCH])


def sweep_pending(older_than: timedelta = ABANDONED) -> int:
    """Give back reservations that nobody will finish any more. The number of blobs."""
    return _doom(Blob.objects.filter(state=Blob.State.PENDING, created__lte=timezone.now() - older_than))


def sweep_unreferenced(older_than: timedelta = ABANDONED) -> int:
    """Doom kept blobs that no row of any app points at. The number of blobs."""
    lonely = Blob.objects.filter(state=Blob.State.KEPT, created__lte=timezone.now() - older_than)
    for relation in Blob._meta.related_objects:
        lonely = lonely.filter(**{f"{relation.name}__isnull": True})
    return _doom(lonely)


def _doom(rows: QuerySet[Blob]) -> int:
    ids = list(rows.values_list("pk", flat=True)[: 10 * BATCH])
    with transaction.atomic():
        freed = blobs.doom(ids)
    if ids:
        logger.warning("swept %d blobs that nothing points at: %d bytes are free again", len(ids), freed)
    return len(ids)


def sweep_orphans(older_than: timedelta = ABANDONED) -> int:
    """Remove objects that have no row. The number of objects."""
    before = timezone.now() - older_than
    old = (key for key, written in store().objects() if written <= before)
    removed = 0
    for batch in batches(old):
        known = set(Blob.objects.filter(key__in=batch).values_list("key", flat=True))
        for key in batch:
            if key not in known:
                logger.warning("object %s has no row: it is removed", key)
                blobs.remove(key)
                removed += 1
    return removed


def reconcile() -> list[Correction]:
    """Count every tenant's bytes anew, compare the kept blobs with the store, and put differences right.

    The corrections, which are also logged and kept for the admin to see. A kept blob without an object is reported and
    left alone: what points at it says so when it is read.
    """
    present = {key for key, _ in store().objects()}
    missing: dict[int, int] = {}
    settled = timezone.now() - ABANDONED
    for tenant, key in Blob.objects.filter(state=Blob.State.KEPT, created__lte=settled).values_list("tenant", "key"):
        if key not in present:
            missing[tenant] = missing.get(tenant, 0) + 1
            logger.error("blob %s of tenant %d is kept, but its object is not in the store", key, tenant)
    corrections = []
    tenants = set(Usage.objects.values_list("tenant", flat=True)) | set(Blob.objects.values_list("tenant", flat=True))
    for tenant in sorted(tenants):
        with transaction.atomic():
            Usage.objects.get_or_create(tenant=tenant)
            counted = Usage.objects.select_for_update().get(tenant=tenant).bytes
            rows = Blob.objects.filter(tenant=tenant, state__in=Blob.COUNTED)
            actual = rows.aggregate(total=Sum("size"))["total"] or 0
            if actual == counted and tenant not in missing:
                continue
            Usage.objects.filter(tenant=tenant).update(bytes=actual)
            found = Correction.objects.create(
                tenant=tenant, counted=counted, actual=actual, missing_objects=missing.get(tenant, 0)
            )
        corrections.append(found)
        logger.error("tenant %d: %d bytes were counted, its blobs have %d: corrected", tenant, counted, actual)
    return corrections
