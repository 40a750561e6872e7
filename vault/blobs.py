"""Blobs and the bytes they count for. Whoever reserves must have room; whoever dooms gives back what really moved."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Collection, Iterable

from django.db.models import F
from django.utils import timezone

from vault.models import Blob, Usage
from vault.storage import BlobMissing, StorageFailed, store
from vault.transactions import relaxed

__all__ = [
    "BlobMissing",
    "QuotaExceeded",
    "StorageFailed",
    "discard",
    "doom",
    "get",
    "keep",
    "put",
    "remove",
    "reserve",
    "used",
]

logger = logging.getLogger(__name__)


class QuotaExceeded(Exception):
    """There is no room: `used` of `limit` bytes are taken, and `asked` more were wanted."""

    def __init__(self, used: int, limit: int, asked: int) -> None:
        super().__init__(f"{used:,} of {limit:,} bytes are used; {asked:,} more do not fit")
        self.used = used
        self.limit = limit
        self.asked = asked


def used(tenant: int) -> int:
    """Bytes that count for a tenant now."""
    return Usage.objects.filter(tenant=tenant).values_list("bytes", flat=True).first() or 0


def reserve(tenant: int, size: int, limit: int | None) -> Blob:
    """A pending blob of `size` bytes, if the tenant's use stays within `limit`. Raises QuotaExceeded."""
    with relaxed():
        if not _charge(tenant, size, limit):
            assert limit is not None
            raise QuotaExceeded(used(tenant), limit, size)
        key = secrets.token_hex(16)
        return Blob.objects.create(tenant=tenant, key=f"{tenant}/{key[:2]}/{key}", size=size)


def _charge(tenant: int, size: int, limit: int | None) -> bool:
    """Add `size` in one conditional UPDATE; whether there was room."""
    rows = Usage.objects.filter(tenant=tenant)
    if limit is not None:
        rows = rows.filter(bytes__lte=limit - size)
    charge = {"bytes": F("bytes") + size}
    if rows.update(**charge):
        return True
    # Nothing was charged for want of room, or because this is the tenant's first blob.
    Usage.objects.bulk_create([Usage(tenant=tenant)], ignore_conflicts=True)
    return rows.update(**charge) == 1


def put(blob: Blob, data: bytes) -> None:
    """Write a blob's object, durably. Raises StorageFailed."""
    store().put(blob.key, data)


def get(key: str) -> bytes:
    """Read an object. Raises BlobMissing, StorageFailed."""
    return store().get(key)


def remove(key: str) -> None:
    """Remove an object; absent is as good. Raises StorageFailed."""
    store().remove(key)


def keep(blob: Blob) -> bool:
    """The object is there and something points at it. Within the caller's transaction. False when it was swept."""
    return Blob.objects.filter(pk=blob.pk, state=Blob.State.PENDING).update(state=Blob.State.KEPT) == 1


def doom(blob_ids: Iterable[int]) -> int:
    """Nothing points at these any more; their bytes are free at once. Within the caller's transaction.

    The bytes freed: those of blobs that really were pending or kept.
    """
    ids = list(blob_ids)
    counted = Blob.objects.select_for_update().filter(pk__in=ids, state__in=Blob.COUNTED).order_by("pk")
    freed: Counter[int] = Counter()
    moved = []
    for pk, tenant, size in counted.values_list("pk", "tenant", "size"):
        freed[tenant] += size
        moved.append(pk)
    Blob.objects.filter(pk__in=moved).update(state=Blob.State.DOOMED, doomed_at=timezone.now())
    for tenant, size in sorted(freed.items()):
        Usage.objects.filter(tenant=tenant).update(bytes=F("bytes") - size)
    return freed.total()


def discard(blob: Blob) -> None:
    """A reservation that came to nothing: its bytes are given back and its object removed, now or by the sweep."""
    with relaxed():
        doom([blob.pk])
    erase([blob])


def erase(doomed: Collection[Blob]) -> int:
    """Remove the objects and rows of doomed blobs. How many; the others are left for the next sweep."""
    rows = {blob.key: blob.pk for blob in doomed}
    try:
        gone = store().remove_many(rows)
    except StorageFailed as error:
        logger.warning("%d objects stay for the next sweep: %s", len(rows), error)
        return 0
    Blob.objects.filter(pk__in=[rows[key] for key in gone], state=Blob.State.DOOMED).delete()
    return len(gone)
