"""Bytes are counted exactly, whatever happens at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from django.utils import timezone

from projects.models import Project
from snapshots import loading
from snapshots.models import Record
from snapshots.saving import save_snapshot
from tests.snapshots.states import never, state
from vault import blobs, sweeping
from vault.blobs import QuotaExceeded, StorageFailed
from vault.models import Blob, Correction, Usage
from vault.storage import BlobMissing, store

TENANT = 41


def counted() -> int:
    return Blob.objects.filter(tenant=TENANT, state__in=Blob.COUNTED).aggregate(total=Sum("size"))["total"] or 0


def old(blob: Blob) -> None:
    Blob.objects.filter(pk=blob.pk).update(created=timezone.now() - timedelta(hours=2))


@pytest.mark.django_db(transaction=True)
def test_parallel_reservations_fill_the_quota_to_the_last_that_fits(storage: Path) -> None:
    together = Barrier(20)

    def reserve(_: int) -> bool:
        together.wait(30)
        try:
            blobs.reserve(TENANT, 100, 700)
        except QuotaExceeded as full:
            assert full.limit == 700
            return False
        else:
            return True
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as threads:
        results = list(threads.map(reserve, range(20)))
    assert sum(results) == 7
    assert blobs.used(TENANT) == counted() == 700


@pytest.mark.django_db
def test_a_reservation_over_the_limit_leaves_nothing(storage: Path) -> None:
    with pytest.raises(QuotaExceeded) as full:
        blobs.reserve(TENANT, 101, 100)
    assert (full.value.used, full.value.limit, full.value.asked) == (0, 100, 101)
    blobs.reserve(TENANT, 60, 100)
    with pytest.raises(QuotaExceeded):
        blobs.reserve(TENANT, 41, 100)
    assert blobs.used(TENANT) == counted() == 60
    blobs.reserve(TENANT, 500, None)
    assert blobs.used(TENANT) == counted() == 560


@pytest.mark.django_db
def test_a_release_counts_what_really_moved(storage: Path) -> None:
    one, two = blobs.reserve(TENANT, 10, None), blobs.reserve(TENANT, 20, None)
    assert blobs.keep(one)
    with transaction.atomic():
        assert blobs.doom([one.pk, two.pk, 999_999]) == 30
        assert blobs.doom([one.pk, two.pk]) == 0
    assert blobs.used(TENANT) == counted() == 0
    assert not blobs.keep(two), "what was given back cannot be kept any more"


@pytest.mark.django_db
def test_discard_removes_row_and_object(storage: Path) -> None:
    blob = blobs.reserve(TENANT, 10, None)
    blobs.put(blob, b"x" * 10)
    blobs.discard(blob)
    assert not Blob.objects.exists()
    with pytest.raises(BlobMissing):
        blobs.get(blob.key)
    assert blobs.used(TENANT) == 0


@pytest.mark.django_db
def test_doomed_objects_stay_for_five_minutes(storage: Path) -> None:
    blob = blobs.reserve(TENANT, 10, None)
    blobs.put(blob, b"x" * 10)
    blobs.keep(blob)
    blobs.doom([blob.pk])
    assert sweeping.remove_doomed() == 0
    assert blobs.get(blob.key)
    Blob.objects.update(doomed_at=timezone.now() - timedelta(minutes=6))
    assert sweeping.remove_doomed() == 1
    assert list(store().objects()) == []


@pytest.mark.django_db
def test_all_that_is_due_is_removed_in_one_sweep(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 2)
    doomed = [blobs.reserve(TENANT, 1, None) for _ in range(5)]
    for blob in doomed:
        blobs.put(blob, b"x")
    blobs.doom(blob.pk for blob in doomed)
    assert sweeping.remove_doomed(timedelta(0)) == 5
    assert not Blob.objects.exists()
    assert list(store().objects()) == []


@pytest.mark.django_db
def test_a_store_that_fails_is_tried_again_by_the_next_sweep(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = blobs.reserve(TENANT, 1, None)
    blobs.put(blob, b"x")

    def down(keys: object) -> set[str]:
        raise StorageFailed("the bucket is away")

    with monkeypatch.context() as away:
        away.setattr(store(), "remove_many", down)
        blobs.discard(blob)
        assert sweeping.remove_doomed(timedelta(0)) == 0
    assert blobs.used(TENANT) == 0, "its bytes are free all the same"
    assert sweeping.remove_doomed(timedelta(0)) == 1
    assert list(store().objects()) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sweep", [sweeping.sweep_pending, sweeping.sweep_unreferenced])
def test_a_blob_that_comes_into_use_during_a_sweep_stays(
    storage: Path, project: Project, sweep: Callable[[], int]
) -> None:
    record_id = save_snapshot(state(project.pk), cancelled=never)
    blob = Blob.objects.get()
    unused = Blob.State.PENDING if sweep is sweeping.sweep_pending else Blob.State.KEPT
    other = blobs.reserve(project.pk, 5, None)
    Record.objects.update(blob=other)
    Blob.objects.filter(pk=other.pk).update(state=Blob.State.KEPT)
    Blob.objects.filter(pk=blob.pk).update(state=unused, created=timezone.now() - timedelta(hours=2))

    def swept() -> int:
        try:
            return sweep()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            Blob.objects.filter(pk=blob.pk).update(state=Blob.State.KEPT)
            Record.objects.filter(pk=record_id.hex()).update(blob=blob)
            sweeping_now = threads.submit(swept)
            # The sweep now waits for this transaction, or has looked before it: whichever, it must not doom the blob.
            wait([sweeping_now], timeout=0.3)
        assert sweeping_now.result(30) == 0
    assert Blob.objects.get(pk=blob.pk).state == Blob.State.KEPT
    assert loading.open_record(project.pk, record_id)


@pytest.mark.django_db
def test_an_abandoned_reservation_is_swept_and_a_fresh_one_is_not(storage: Path) -> None:
    fresh, abandoned = blobs.reserve(TENANT, 10, None), blobs.reserve(TENANT, 20, None)
    old(abandoned)
    assert sweeping.sweep_pending() == 1
    assert blobs.used(TENANT) == counted() == 10
    assert blobs.keep(fresh)


@pytest.mark.django_db
def test_what_a_row_points_at_is_never_swept(storage: Path, project: Project) -> None:
    save_snapshot(state(project.pk), cancelled=never)
    Blob.objects.update(created=timezone.now() - timedelta(days=3))
    assert sweeping.sweep_unreferenced() == sweeping.sweep_pending() == sweeping.sweep_orphans(timedelta(0)) == 0
    assert Blob.objects.get().state == Blob.State.KEPT


def test_no_relation_to_blobs_is_hidden_from_the_sweep() -> None:
    hidden = [field for field in Blob._meta.get_fields(include_hidden=True) if field.is_relation and field.hidden]
    assert hidden == [], "a related_name of + would have its blobs swept"


@pytest.mark.django_db
def test_a_kept_blob_that_nothing_points_at_is_swept(storage: Path) -> None:
    fresh, lonely = blobs.reserve(TENANT, 10, None), blobs.reserve(TENANT, 20, None)
    for blob in (fresh, lonely):
        blobs.keep(blob)
    old(lonely)
    assert sweeping.sweep_unreferenced() == 1
    assert blobs.used(TENANT) == counted() == 10


@pytest.mark.django_db
def test_an_object_without_a_row_is_swept_once_it_is_old(any_storage: str) -> None:
    blob = blobs.reserve(TENANT, 10, None)
    blobs.put(blob, b"x" * 10)
    store().put("41/zz/orphan", b"x")
    assert sweeping.sweep_orphans() == 0
    assert sweeping.sweep_orphans(timedelta(0)) == 1
    assert [key for key, _ in store().objects()] == [blob.key]


@pytest.mark.django_db
def test_reconciliation_corrects_the_count_and_tells(any_storage: str) -> None:
    blob = blobs.reserve(TENANT, 10, None)
    blobs.put(blob, b"x" * 10)
    blobs.keep(blob)
    assert sweeping.reconcile() == []
    Usage.objects.filter(tenant=TENANT).update(bytes=777)
    (correction,) = sweeping.reconcile()
    assert (correction.tenant, correction.counted, correction.actual) == (TENANT, 777, 10)
    assert blobs.used(TENANT) == 10
    assert Correction.objects.count() == 1
    assert sweeping.reconcile() == []


@pytest.mark.django_db
def test_reconciliation_takes_the_sizes_from_the_store(any_storage: str) -> None:
    blob, fresh = blobs.reserve(TENANT, 10, None), blobs.reserve(TENANT, 10, None)
    for each in (blob, fresh):
        blobs.keep(each)
        blobs.put(each, b"x" * 25)
    old(blob)
    (correction,) = sweeping.reconcile()
    assert (correction.counted, correction.actual, correction.missing_objects) == (20, 35, 0)
    assert blobs.used(TENANT) == counted() == 35
    assert sweeping.reconcile() == []


@pytest.mark.django_db
def test_reconciliation_reports_a_lost_object(storage: Path) -> None:
    blob = blobs.reserve(TENANT, 10, None)
    blobs.keep(blob)
    old(blob)
    (correction,) = sweeping.reconcile()
    assert correction.missing_objects == 1
    assert blobs.used(TENANT) == 10
