"""The sweeps that keep rows, objects and the count of bytes in agreement. Each may run twice, late or never."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from vault import blobs
from vault.models import Blob, Correction, Usage
from vault.storage import batched, store

logger = logging.getLogger(__name__)

GRACE = timedelta(minutes=5)
"""A load that read a row just before its blob was replaced still finds the object."""
ABANDONED = timedelta(hours=1)
BATCH = 500


def remove_doomed(older_than: timedelta = GRACE) -> int:
    """Remove what was doomed that long ago. The number of blobs."""
    due = Blob.objects.filter(state=Blob.State.DOOMED, doomed_at__lte=timezone.now() - older_than)
    removed = last = 0
    while batch := list(due.filter(pk__gt=last).order_by("pk")[:BATCH]):
        gone = blobs.erase(batch)
        removed += gone
        last = batch[-1].pk
        if not gone:
            break  # storage fails: the next sweep tries again
    return removed


def sweep_pending(older_than: timedelta = ABANDONED) -> int:
    """Give back reservations that nobody will finish any more. The number of blobs."""
    return _doom(Blob.objects.filter(state=Blob.State.PENDING, created__lte=timezone.now() - older_than))


def sweep_unreferenced(older_than: timedelta = ABANDONED) -> int:
    """Doom kept blobs that no row of any app points at. The number of blobs."""
    lonely = Blob.objects.filter(state=Blob.State.KEPT, created__lte=timezone.now() - older_than)
    for relation in Blob._meta.related_objects:
        lonely = lonely.filter(**{f"{relation.name}__isnull": True})
    return _doom(lonely)


def _doom(abandoned: QuerySet[Blob]) -> int:
    """Doom these, batch by batch; each is looked at again once it is locked: it may be in use by now."""
    doomed = last = 0
    while found := list(abandoned.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:BATCH]):
        last = found[-1]
        with transaction.atomic():
            locked = list(Blob.objects.select_for_update().filter(pk__in=found).order_by("pk"))
            still = list(abandoned.filter(pk__in=[blob.pk for blob in locked]).values_list("pk", flat=True))
            freed = blobs.doom(still)
        if still:
            logger.warning("swept %d blobs that nothing points at: %d bytes are free again", len(still), freed)
        doomed += len(still)
    return doomed


def sweep_orphans(older_than: timedelta = ABANDONED) -> int:
    """Remove objects that have no row. The number of objects."""
    before = timezone.now() - older_than
    removed = 0
    for batch in batched((key for key, facts in store().objects() if facts.written <= before), BATCH):
        known = set(Blob.objects.filter(key__in=batch).values_list("key", flat=True))
        orphans = [key for key in batch if key not in known]
        if orphans:
            logger.warning("objects without a row are removed: %s", ", ".join(orphans))
            removed += len(store().remove_many(orphans))
    return removed


def reconcile() -> list[Correction]:
    """Compare the kept blobs with the objects in the store, count every tenant's bytes anew, put differences right.

    The corrections, which are also logged and kept for the admin to see. A kept blob without an object is reported and
    left alone: what points at it says so when it is read.
    """
    missing, resized = _compare_with_store()
    tenants = set(Usage.objects.values_list("tenant", flat=True)) | set(Blob.objects.values_list("tenant", flat=True))
    found = (_recount(tenant, missing[tenant], resized[tenant]) for tenant in sorted(tenants))
    return [correction for correction in found if correction is not None]


def _recount(tenant: int, missing: int, resized: dict[int, int]) -> Correction | None:
    """Make a tenant's use the sum of its blobs, once these have the sizes of their objects."""
    with transaction.atomic():
        for pk, size in sorted(resized.items()):
            Blob.objects.filter(pk=pk, state=Blob.State.KEPT).update(size=size)
        Usage.objects.get_or_create(tenant=tenant)
        # Whoever moves a blob moves this row too: while it is locked, it and the blobs that count stand still.
        counted = Usage.objects.select_for_update().get(tenant=tenant).bytes
        actual = Blob.objects.filter(tenant=tenant, state__in=Blob.COUNTED).aggregate(total=Sum("size"))["total"] or 0
        if actual == counted and not missing:
            return None
        Usage.objects.filter(tenant=tenant).update(bytes=actual)
        correction = Correction.objects.create(tenant=tenant, counted=counted, actual=actual, missing_objects=missing)
    logger.error("tenant %d: %d bytes were counted, its blobs have %d: corrected", tenant, counted, actual)
    return correction


def _compare_with_store() -> tuple[Counter[int], defaultdict[int, dict[int, int]]]:
    """By tenant: how many kept blobs have no object, and the true sizes of those that have another than their row."""
    sizes = {key: facts.size for key, facts in store().objects()}
    missing: Counter[int] = Counter()
    resized: defaultdict[int, dict[int, int]] = defaultdict(dict)
    settled = Blob.objects.filter(state=Blob.State.KEPT, created__lte=timezone.now() - ABANDONED)
    for blob in settled.order_by("pk").iterator(chunk_size=BATCH):
        size = sizes.get(blob.key)
        if size is None:
            if Blob.objects.filter(pk=blob.pk, state=Blob.State.KEPT).exists():  # else removed since the listing
                missing[blob.tenant] += 1
                logger.error("blob %s of tenant %d is kept, but its object is not in the store", blob, blob.tenant)
        elif size != blob.size:
            resized[blob.tenant][blob.pk] = size
            logger.error("blob %s of tenant %d has %d bytes, not %d", blob, blob.tenant, size, blob.size)
    return missing, resized
