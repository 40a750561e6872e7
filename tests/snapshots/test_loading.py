"""Opening records: who may, what is refused, and the claims of those who come back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from projects.models import Project
from snapshots import leases, loading
from snapshots.loading import UnknownSession, Unreadable, open_record
from snapshots.models import Record
from snapshots.saving import save_session, save_snapshot
from tests.snapshots.states import always, never, state
from vault.storage import store

pytestmark = pytest.mark.django_db
HOLD = timedelta(minutes=1)


def test_one_query(project: Project, storage: Path, django_assert_num_queries: Callable[..., object]) -> None:
    record_id = save_snapshot(state(project.pk), cancelled=never)
    with django_assert_num_queries(1):  # type: ignore[attr-defined]
        open_record(project.pk, record_id)


def test_unknown(make_project: Callable[..., Project], storage: Path) -> None:
    mine, other = make_project(), make_project()
    record_id = save_snapshot(state(mine.pk), cancelled=never)
    for project, wanted in ((mine, bytes(16)), (other, record_id), (mine, b""), (mine, record_id + b"\0")):
        with pytest.raises(UnknownSession):
            open_record(project.pk, wanted)
    Record.objects.update(expires=timezone.now())
    with pytest.raises(UnknownSession):
        open_record(mine.pk, record_id)
    Record.objects.update(kept=True)
    assert open_record(mine.pk, record_id)


def test_a_held_record_does_not_expire(project: Project, storage: Path) -> None:
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=HOLD)
    Record.objects.update(expires=timezone.now() - timedelta(days=1))
    assert open_record(project.pk, saved.session)
    leases.release([saved.session])
    with pytest.raises(UnknownSession):
        open_record(project.pk, saved.session)
    leases.renew([saved.session], timezone.now() + HOLD)
    assert open_record(project.pk, saved.session)


@pytest.mark.parametrize("damage", ["flip", "cut", "other record", "other project", "older"])
def test_damage_is_refused_and_logged(
    damage: str, make_project: Callable[..., Project], storage: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project, other = make_project(), make_project()
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=HOLD)
    key = Record.objects.get(pk=saved.session.hex()).blob.key
    sealed = store().get(key)
    replacement = {
        "flip": sealed[:-1] + bytes((sealed[-1] ^ 1,)),
        "cut": sealed[:-5],
        "other record": _sealed_of(save_snapshot(state(project.pk), cancelled=never)),
        "other project": _sealed_of(save_snapshot(state(other.pk), cancelled=never)),
        "older": sealed,
    }[damage]
    if damage == "older":
        save_session(replace(saved, dump=b"newer"), generation=2, guard=always, hold=HOLD)
        key = Record.objects.get(pk=saved.session.hex()).blob.key
    store().put(key, replacement)
    with caplog.at_level(logging.ERROR), pytest.raises(Unreadable):
        open_record(project.pk, saved.session)
    assert saved.session.hex() in caplog.text


def _sealed_of(record_id: bytes) -> bytes:
    return store().get(Record.objects.get(pk=record_id.hex()).blob.key)


def test_a_record_replaced_while_it_is_read_opens_as_its_replacement(
    project: Project, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=HOLD)
    read = loading.blobs.get

    def slow(key: str) -> bytes:
        monkeypatch.setattr(loading.blobs, "get", read)
        save_session(replace(saved, dump=b"newer"), generation=2, guard=always, hold=HOLD)
        store().remove(key)
        return read(key)

    monkeypatch.setattr(loading.blobs, "get", slow)
    assert open_record(project.pk, saved.session).dump == b"newer"


def test_a_lost_object_is_unknown(project: Project, storage: Path) -> None:
    record_id = save_snapshot(state(project.pk), cancelled=never)
    store().remove(Record.objects.get().blob.key)
    with pytest.raises(UnknownSession):
        open_record(project.pk, record_id)


def test_what_was_handed_over_is_claimed_once(make_project: Callable[..., Project], storage: Path) -> None:
    project, other = make_project(), make_project()
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=HOLD)
    assert not loading.has_unclaimed(project.pk)
    assert not loading.claim(project.pk, saved.session)
    assert not loading.hand_over(project.pk, saved.session, 2), "that save does not stand"
    assert loading.hand_over(project.pk, saved.session, 1)
    assert loading.has_unclaimed(project.pk)
    assert not loading.has_unclaimed(other.pk)
    assert not loading.claim(other.pk, saved.session)
    assert loading.claim(project.pk, saved.session)
    assert not loading.claim(project.pk, saved.session)
    assert not loading.has_unclaimed(project.pk)


def test_a_claim_lapses_after_two_hours(project: Project, storage: Path) -> None:
    saved = state(project.pk)
    save_session(saved, generation=1, guard=always, hold=HOLD, handed_over=True)
    Record.objects.update(handed_over=timezone.now() - timedelta(hours=2, minutes=1))
    assert not loading.has_unclaimed(project.pk)
    assert not loading.claim(project.pk, saved.session)
