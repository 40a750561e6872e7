"""Expiry, deletion and new keys."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone

from projects.models import Project
from snapshots import expiry
from snapshots.deleting import SessionConnected, delete
from snapshots.loading import open_record
from snapshots.models import Record, Tombstone
from snapshots.saving import save_session, save_snapshot
from tests.snapshots.states import always, never, state
from vault import blobs, sweeping
from vault.models import Blob
from vault.storage import store

pytestmark = pytest.mark.django_db
PAST = timedelta(seconds=1)
HOLD = timedelta(minutes=1)


def test_expiry_takes_what_is_due_and_nothing_else(
    project: Project, any_storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "BATCH", 2)
    due = [save_snapshot(state(project.pk), cancelled=never) for _ in range(5)]
    kept, later = (save_snapshot(state(project.pk), cancelled=never) for _ in range(2))
    held = state(project.pk)
    save_session(held, generation=1, guard=always, hold=HOLD)
    Record.objects.exclude(pk=later.hex()).update(expires=timezone.now() - PAST)
    Record.objects.filter(pk=kept.hex()).update(kept=True)
    assert expiry.expire() == len(due)
    left = {kept.hex(), later.hex(), held.session.hex()}
    assert set(Record.objects.values_list("pk", flat=True)) == left
    assert blobs.used(project.pk) == sum(Blob.objects.filter(state__in=Blob.COUNTED).values_list("size", flat=True))
    assert len(list(store().objects())) == 8, "a load in flight can finish"
    assert sweeping.remove_doomed(timedelta(0)) == len(due)
    assert len(list(store().objects())) == 3
    assert expiry.expire() == 0


@pytest.mark.django_db(transaction=True)
def test_expiry_passes_over_what_is_being_written(project: Project, storage: Path) -> None:
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("this database has one writer at a time")
    busy, idle = (save_snapshot(state(project.pk), cancelled=never) for _ in range(2))
    Record.objects.update(expires=timezone.now() - PAST)

    def expire() -> int:
        try:
            return expiry.expire()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads, transaction.atomic():
        Record.objects.select_for_update().get(pk=busy.hex())
        assert threads.submit(expire).result(30) == 1
    assert list(Record.objects.values_list("pk", flat=True)) == [busy.hex()]
    assert idle != busy
    assert expiry.expire() == 1


def test_what_expired_may_be_saved_again(project: Project, storage: Path) -> None:
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=timedelta(0))
    Record.objects.update(expires=timezone.now() - PAST)
    assert expiry.expire() == 1
    assert not Tombstone.objects.exists()
    save_session(saved, generation=2, guard=always, hold=HOLD)
    assert open_record(project.pk, saved.session).dump == saved.dump


def test_old_tombstones_go(project: Project, storage: Path) -> None:
    saved = [state(project.pk) for _ in range(2)]
    for each in saved:
        save_session(each, generation=1, guard=always, hold=timedelta(0))
    delete(project.pk, [each.session for each in saved])
    Tombstone.objects.filter(pk=saved[0].session.hex()).update(at=timezone.now() - timedelta(days=31))
    expiry.expire()
    assert Tombstone.objects.get().pk == saved[1].session.hex()


@pytest.mark.parametrize(
    "name",
    [
        "snapshots.tasks.expire",
        "vault.tasks.reconcile",
        "vault.tasks.remove_doomed",
        "vault.tasks.sweep_orphans",
        "vault.tasks.sweep_pending",
        "vault.tasks.sweep_unreferenced",
    ],
)
def test_each_sweep_is_a_task(name: str, project: Project, storage: Path) -> None:
    save_snapshot(state(project.pk), cancelled=never)
    current_app.loader.import_default_modules()
    assert current_app.tasks[name].apply().get() == 0


def test_a_delete_is_gone_at_once(make_project: Callable[..., Project], any_storage: str) -> None:
    project, other = make_project(), make_project()
    mine = [save_snapshot(state(project.pk), cancelled=never) for _ in range(3)]
    theirs = save_snapshot(state(other.pk), cancelled=never)
    sizes = sum(Record.objects.filter(project=project).values_list("blob__size", flat=True))
    gone = delete(project.pk, [*mine, theirs, bytes(16)])
    assert (gone.count, gone.freed) == (3, sizes)
    assert blobs.used(project.pk) == 0
    assert len(list(store().objects())) == 1
    assert Blob.objects.count() == 1
    assert open_record(other.pk, theirs)
    assert delete(project.pk, mine).count == 0


def test_a_connected_session_is_not_deleted_and_neither_is_what_was_asked_with_it(
    project: Project, storage: Path
) -> None:
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=HOLD)
    snapshot = save_snapshot(state(project.pk), cancelled=never)
    with pytest.raises(SessionConnected, match="end it, then delete"):
        delete(project.pk, [snapshot, saved.session])
    assert Record.objects.count() == 2
    assert not Tombstone.objects.exists()


def test_reseal_rewrites_what_older_keys_sealed(project: Project, any_storage: str, settings: Any) -> None:
    old_keys = dict(settings.VAULT_KEYS)
    saved = [state(project.pk) for _ in range(3)]
    ids = [save_snapshot(each, cancelled=never) for each in saved]
    settings.VAULT_KEYS = {"newer": b"\x05" * 32, **old_keys}
    out = StringIO()
    call_command("reseal", stdout=out)
    assert "3 records sealed anew with key newer" in out.getvalue()
    settings.VAULT_KEYS = {"newer": b"\x05" * 32}
    for record_id, each in zip(ids, saved, strict=True):
        assert open_record(project.pk, record_id).dump == each.dump
    call_command("reseal", stdout=out)
    assert "0 records sealed anew with key newer, 3 were already" in out.getvalue()
    assert blobs.used(project.pk) == sum(Blob.objects.filter(state="kept").values_list("size", flat=True))
    assert set(Blob.objects.filter(state="kept")) == {row.blob for row in Record.objects.all()}


def test_reseal_names_what_it_cannot_read(project: Project, storage: Path, settings: Any) -> None:
    save_snapshot(state(project.pk), cancelled=never)
    settings.VAULT_KEYS = {"newer": b"\x05" * 32}
    with pytest.raises(CommandError, match="1 records cannot be read"):
        call_command("reseal", stdout=StringIO())
