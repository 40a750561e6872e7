"""Rewriting what older keys sealed, so that they can be taken out of VAULT_KEYS."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from django.db import transaction

from snapshots.models import Record
from vault import blobs, sealing
from vault.blobs import BlobMissing, StorageFailed

logger = logging.getLogger(__name__)


@dataclass
class Resealed:
    """What a run did."""

    rewritten: int = 0
    current: int = 0
    """Sealed with the newest key already."""
    unreadable: int = 0
    replaced_meanwhile: int = 0


def reseal() -> Resealed:
    """Seal anew, with the newest key, every record that an older one sealed. May be broken off and run again."""
    result = Resealed()
    for pk in Record.objects.order_by("pk").values_list("pk", flat=True).iterator(chunk_size=500):
        row = Record.objects.select_related("blob").filter(pk=pk).first()
        if row is not None:
            _reseal_one(row, result)
    return result


def _reseal_one(row: Record, result: Resealed) -> None:
    try:
        sealed = blobs.get(row.blob.key)
        if sealing.key_id_of(sealed) == sealing.newest_key_id():
            result.current += 1
            return
        dump = sealing.unseal(sealed, row.context, size=row.state_size, sha256=bytes(row.sha256))
    except (BlobMissing, sealing.Unsealable) as error:
        logger.error("record %s cannot be read, so it is not sealed anew: %s", row.pk, error)
        result.unreadable += 1
        return
    fresh = sealing.seal(dump, row.context)
    blob = blobs.reserve(row.project_id, len(fresh), None)
    try:
        blobs.put(blob, fresh)
    except StorageFailed:
        blobs.discard(blob)
        raise
    with transaction.atomic():
        same = Record.objects.filter(pk=row.pk, blob_id=row.blob_id)
        switched = blobs.keep(blob) and same.update(blob=blob) == 1
        if switched:
            blobs.doom([row.blob_id])
    if switched:
        result.rewritten += 1
    else:
        blobs.discard(blob)
        result.replaced_meanwhile += 1
