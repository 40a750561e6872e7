"""The save protocol, and what each failure leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import DatabaseError, connection

from projects.models import Project
from snapshots import deleting, loading, saving
from snapshots.models import Record
from snapshots.saving import Cancelled, Deleted, QuotaExceeded, StorageFailed, Superseded, save_session, save_snapshot
from tests.snapshots.states import always, never, state
from vault import blobs
from vault.models import Blob
from vault.storage import store

pytestmark = pytest.mark.django_db
HOLD = timedelta(minutes=1)


def objects() -> set[str]:
    return {key for key, _ in store().objects()}


def agrees(project: Project) -> bool:
    """Rows, objects and the count are one."""
    kept = Blob.objects.filter(tenant=project.pk, state=Blob.State.KEPT)
    pointed_at = set(Record.objects.filter(project=project).values_list("blob__key", flat=True))
    return (
        set(kept.values_list("key", flat=True)) == pointed_at
        and pointed_at <= objects()
        and blobs.used(project.pk) == sum(Blob.objects.filter(state__in=Blob.COUNTED).values_list("size", flat=True))
    )


def test_a_snapshot_opens_as_it_was(project: Project, any_storage: str) -> None:
    saved = state(project.pk, script_name="a.py", type_check=True, suspended=True, parent=b"\x07" * 16)
    record_id = save_snapshot(saved, cancelled=never)
    opened = loading.open_record(project.pk, record_id)
    assert (opened.dump, opened.script_name, opened.type_check, opened.suspended) == (saved.dump, "a.py", True, True)
    assert opened.limits == {"memory_bytes": 1000}
    row = Record.objects.get()
    assert row.parent == "07" * 16
    assert bytes(row.sha256) == hashlib.sha256(saved.dump).digest()
    assert row.expires - row.saved == timedelta(days=7)
    assert agrees(project)


def test_a_saved_session_is_replaced_and_charged_the_difference(project: Project, storage: Path) -> None:
    first = state(project.pk, dump=b"x" * 100_000)
    save_session(first, generation=1, guard=always, hold=HOLD)
    Record.objects.update(name="kept name")
    second = replace(first, dump=b"y")
    save_session(second, generation=2, guard=always, hold=HOLD)
    row = Record.objects.get()
    assert (row.generation, row.name, row.kind) == (2, "kept name", "session")
    assert loading.open_record(project.pk, first.session).dump == b"y"
    assert blobs.used(project.pk) == row.blob.size
    assert Blob.objects.filter(state=Blob.State.DOOMED).count() == 1
    assert len(objects()) == 2, "the replaced object stays for loads in flight"


def test_a_guard_that_says_no_changes_nothing(project: Project, storage: Path) -> None:
    first = state(project.pk)
    save_session(first, generation=5, guard=always, hold=HOLD)
    with pytest.raises(Superseded):
        save_session(replace(first, dump=b"late"), generation=4, guard=never, hold=HOLD)
    assert loading.open_record(project.pk, first.session).dump == first.dump
    assert len(objects()) == 1, "the loser deletes its own object only"
    assert agrees(project)


def test_a_deleted_session_is_not_brought_back(project: Project, storage: Path) -> None:
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=timedelta(0))
    deleting.delete(project.pk, [saved.session])
    with pytest.raises(Deleted):
        save_session(saved, generation=2, guard=always, hold=HOLD)
    assert not Record.objects.exists()
    assert objects() == set()
    assert blobs.used(project.pk) == 0


def test_a_full_quota_refuses_a_snapshot_and_says_how_full(make_project: Callable[..., Project], storage: Path) -> None:
    project = make_project(snapshot_quota=300)
    with pytest.raises(QuotaExceeded):
        for _ in range(3):
            save_snapshot(state(project.pk), cancelled=never)
    assert agrees(project)
    used = blobs.used(project.pk)
    words = saving.quota_message(project, used, 300)
    assert words == (
        f"snapshot storage quota exceeded: {used} of 300 bytes used; delete snapshots or ask an admin of project"
        f" {project.name} for more"
    )
    save_session(state(project.pk, dump=b"z" * 900), generation=1, guard=always, hold=HOLD)
    assert agrees(project), "a running session is always saved"


def test_a_cancelled_snapshot_leaves_nothing(project: Project, storage: Path) -> None:
    with pytest.raises(Cancelled):
        save_snapshot(state(project.pk), cancelled=always)
    assert (Record.objects.count(), objects(), blobs.used(project.pk)) == (0, set(), 0)


def test_storage_that_fails_gives_the_reservation_back(
    project: Project, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(blob: Blob, data: bytes) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(blobs, "put", fail)
    with pytest.raises(StorageFailed):
        save_snapshot(state(project.pk), cancelled=never)
    assert (Blob.objects.count(), blobs.used(project.pk)) == (0, 0)


def test_a_commit_whose_outcome_is_unknown_leaves_the_blob_to_the_sweep(
    project: Project, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*args: object, **kwargs: object) -> None:
        raise DatabaseError("server closed the connection unexpectedly")

    monkeypatch.setattr(Record, "save", lost)
    with pytest.raises(StorageFailed):
        save_snapshot(state(project.pk), cancelled=never)
    assert Blob.objects.get().state == Blob.State.PENDING
    assert len(objects()) == 1


@pytest.mark.django_db(transaction=True)
def test_twenty_at_once_fill_a_quota_for_seven(make_project: Callable[..., Project], storage: Path) -> None:
    probe = make_project()
    save_snapshot(state(probe.pk), cancelled=never)
    size = blobs.used(probe.pk)
    project = make_project(snapshot_quota=7 * size)

    def save(_: int) -> bool:
        try:
            save_snapshot(state(project.pk), cancelled=never)
        except QuotaExceeded:
            return False
        else:
            return True
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(save, range(20))) == 7
    assert blobs.used(project.pk) == 7 * size


@pytest.mark.django_db(transaction=True)
def test_saves_of_one_session_at_once_leave_one_whole_record(project: Project, storage: Path) -> None:
    first = state(project.pk)

    def save(number: int) -> None:
        try:
            save_session(replace(first, dump=b"%d" % number), generation=number, guard=always, hold=HOLD)
        except (Superseded, StorageFailed):
            pass
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(save, range(1, 25)))
    row = Record.objects.get()
    assert loading.open_record(project.pk, first.session).dump == b"%d" % row.generation
    assert Blob.objects.filter(state=Blob.State.KEPT).count() == 1
    assert blobs.used(project.pk) == sum(Blob.objects.filter(state__in=Blob.COUNTED).values_list("size", flat=True))
    assert not Blob.objects.filter(state=Blob.State.PENDING).exists()
