"""The save protocol, and what each failure leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest
from django.db import DatabaseError, OperationalError, connection, connections
from django.utils import timezone

from projects.models import Project
from snapshots import deleting, loading, saving
from snapshots.models import Record
from snapshots.saving import Cancelled, Deleted, QuotaExceeded, StorageFailed, Superseded, save_session, save_snapshot
from tests.snapshots.states import always, never, state
from vault import blobs, sweeping
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
    words = saving.quota_message(project.name, used, 300)
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


def test_a_save_that_the_database_refuses_gives_everything_back(
    project: Project, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object, **kwargs: object) -> None:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(Record, "save", refused)
    with pytest.raises(StorageFailed):
        save_snapshot(state(project.pk), cancelled=never)
    assert (Blob.objects.count(), objects(), blobs.used(project.pk)) == (0, set(), 0)


class Lost:
    """The answer to the next commit is lost: either it was carried out, or it was not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, carried_out: bool) -> None:
        self.carried_out = carried_out
        self._patch = monkeypatch

    def __call__(self) -> bool:
        """To be handed in as the last question before a commit."""
        wrapper = connections["default"]
        commit = wrapper._commit

        def lose() -> None:
            self._patch.setattr(wrapper, "_commit", commit)
            if self.carried_out:
                commit()
            raise OperationalError("server closed the connection unexpectedly")

        self._patch.setattr(wrapper, "_commit", lose)
        return False


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_commit_whose_outcome_is_unknown_is_left_to_the_sweep(
    carried_out: bool, project: Project, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageFailed, match="did not confirm"):
        save_snapshot(state(project.pk), cancelled=Lost(monkeypatch, carried_out=carried_out))
    blob = Blob.objects.get()
    assert objects() == {blob.key}
    assert blobs.used(project.pk) == blob.size
    assert blob.state == (Blob.State.KEPT if carried_out else Blob.State.PENDING)
    assert Record.objects.count() == carried_out
    Blob.objects.update(created=timezone.now() - timedelta(hours=2))
    assert sweeping.sweep_pending() == (not carried_out)
    assert sweeping.sweep_unreferenced() == 0
    sweeping.remove_doomed(timedelta(0))
    assert agrees(project)
    assert len(objects()) == Record.objects.count() == carried_out


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_save_whose_outcome_was_unknown_may_be_tried_again(
    carried_out: bool, project: Project, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, saved = Lost(monkeypatch, carried_out=carried_out), state(project.pk)

    def guard() -> bool:
        return not lost()

    with pytest.raises(StorageFailed, match="did not confirm"):
        save_session(saved, generation=1, guard=guard, hold=HOLD)
    first_time = not carried_out  # what a session's own row says of this generation
    save_session(saved, generation=1, guard=lambda: first_time, hold=HOLD)
    assert loading.open_record(project.pk, saved.session).dump == saved.dump
    assert Record.objects.get().generation == 1
    assert Blob.objects.filter(state=Blob.State.KEPT).count() == 1


def test_no_generation_is_written_twice_nor_after_a_newer_one(project: Project, storage: Path) -> None:
    saved = state(project.pk)
    save_session(saved, generation=5, guard=always, hold=HOLD)
    for generation in (4, 5):
        with pytest.raises(Superseded):
            save_session(replace(saved, dump=b"other"), generation=generation, guard=always, hold=HOLD)
    assert loading.open_record(project.pk, saved.session).dump == saved.dump
    assert agrees(project)
    assert len(objects()) == 1


@pytest.mark.django_db(transaction=True)
def test_storage_is_never_waited_for_within_a_transaction(
    project: Project, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def watch(name: str) -> None:
        method = getattr(store(), name)

        def watched(*args: object) -> object:
            assert not connection.in_atomic_block
            asked.append(name)
            return method(*args)

        monkeypatch.setattr(store(), name, watched)

    for name in ("put", "get", "remove_many"):
        watch(name)
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=timedelta(0))
    save_session(replace(saved, dump=b"newer"), generation=2, guard=always, hold=timedelta(0))
    loading.open_record(project.pk, saved.session)
    with pytest.raises(Cancelled):
        save_snapshot(saved, cancelled=always)
    sweeping.remove_doomed(timedelta(0))
    deleting.delete(project.pk, [saved.session])
    assert asked == ["put", "put", "get", "put", "remove_many", "remove_many", "remove_many"]


@pytest.mark.django_db(transaction=True)
def test_twenty_at_once_fill_a_quota_for_seven(make_project: Callable[..., Project], storage: Path) -> None:
    probe = make_project()
    save_snapshot(state(probe.pk), cancelled=never)
    size = blobs.used(probe.pk)
    project = make_project(snapshot_quota=7 * size)

    together = Barrier(20)

    def save(_: int) -> bool:
        together.wait(30)
        try:
            save_snapshot(state(project.pk), cancelled=never)
        except QuotaExceeded:
            return False
        else:
            return True
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(save, range(20))) == 7
    assert blobs.used(project.pk) == 7 * size


@pytest.mark.django_db(transaction=True)
def test_saves_of_one_session_at_once_end_at_the_newest(project: Project, storage: Path) -> None:
    first, count = state(project.pk), 12
    together = Barrier(count)

    def save(number: int) -> None:
        together.wait(30)
        try:
            save_session(replace(first, dump=b"%d" % number), generation=number, guard=always, hold=HOLD)
        except Superseded:
            assert number < count
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(save, range(1, count + 1)))
    assert Record.objects.get().generation == count
    assert loading.open_record(project.pk, first.session).dump == b"%d" % count
    assert agrees(project)
    assert not Blob.objects.filter(state=Blob.State.PENDING).exists()
