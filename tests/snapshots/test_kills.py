"""A process that is killed at any step of a save leaves the old state or the new one, and nothing that stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connections

from projects.models import Project
from snapshots import loading
from snapshots.models import Record
from snapshots.saving import State, save_session, save_snapshot
from tests.snapshots.states import always, never, state
from vault import blobs, faults, sweeping
from vault.models import Blob
from vault.storage import store

pytestmark = pytest.mark.django_db(transaction=True)
HOLD = timedelta(minutes=1)
BEFORE = ["reserve:before", "reserve:after", "put:before", "put:torn", "put:after", "commit:before"]
AFTER = ["commit:after", "answer:before"]


def killed_at(fault: str, save: Callable[[], object]) -> None:
    """Run `save` in a process of its own, which dies at this step."""
    connections.close_all()  # a connection must not have two processes
    child = os.fork()
    if not child:
        faults._NAME = fault
        try:
            save()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the save never came to {fault}"
    assert os.WTERMSIG(status) == signal.SIGKILL


def everything_agrees_after_the_sweeps(project: Project) -> bool:
    """Rows, objects and the count are one, and no byte more is kept than the records have."""
    at_once = timedelta(0)
    sweeping.sweep_pending(at_once)
    sweeping.sweep_unreferenced(at_once)
    sweeping.remove_doomed(at_once)
    sweeping.sweep_orphans(at_once)
    keys = set(Record.objects.values_list("blob__key", flat=True))
    return (
        {key for key, _ in store().objects()} == keys == set(Blob.objects.values_list("key", flat=True))
        and blobs.used(project.pk) == sum(Blob.objects.values_list("size", flat=True))
        and sweeping.reconcile() == []
    )


@pytest.mark.parametrize("fault", BEFORE + AFTER)
def test_of_a_snapshot(fault: str, project: Project, storage: Path) -> None:
    saved = state(project.pk)
    killed_at(fault, lambda: save_snapshot(saved, cancelled=never))
    records = list(Record.objects.all())
    assert len(records) == (fault in AFTER)
    for record in records:
        assert loading.open_record(project.pk, bytes.fromhex(record.pk)).dump == saved.dump
    assert everything_agrees_after_the_sweeps(project)
    assert len(list(store().objects())) == len(records)


@pytest.mark.parametrize("fault", BEFORE + AFTER)
def test_of_a_session_that_was_saved_before(fault: str, project: Project, storage: Path) -> None:
    older = state(project.pk)
    newer = replace(older, dump=b"newer")
    save_session(older, generation=1, guard=always, hold=HOLD)
    killed_at(fault, lambda: save_session(newer, generation=2, guard=always, hold=HOLD))
    stands: State = newer if fault in AFTER else older
    assert loading.open_record(project.pk, older.session).dump == stands.dump
    assert everything_agrees_after_the_sweeps(project)
    assert loading.open_record(project.pk, older.session).dump == stands.dump
