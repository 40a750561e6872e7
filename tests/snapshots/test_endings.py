"""Expiry, deletion and new keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from projects.models import Project
from snapshots import expiry
from snapshots.deleting import SessionConnected, delete
from snapshots.loading import open_record
from snapshots.models import Record, Tombstone
from snapshots.saving import save_session, save_snapshot
from tests.snapshots.states import always, never, state
from vault import blobs
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
    assert len(list(store().objects())) == 3
    assert blobs.used(project.pk) == sum(Blob.objects.values_list("size", flat=True))
    assert expiry.expire() == 0


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


def test_reseal_names_what_it_cannot_read(project: Project, storage: Path, settings: Any) -> None:
    save_snapshot(state(project.pk), cancelled=never)
    settings.VAULT_KEYS = {"newer": b"\x05" * 32}
    with pytest.raises(CommandError, match="1 records cannot be read"):
        call_command("reseal", stdout=StringIO())
