"""The command that shows what each project stores."""

import os
import secrets
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from projects.models import Project
from snapshots.saving import State, save_snapshot
from vault import blobs

pytestmark = pytest.mark.django_db(transaction=True)


def rows(*arguments):
    out = StringIO()
    call_command("showusage", *arguments, stdout=out)
    _, *lines = out.getvalue().splitlines()
    return [line.split("  ") for line in lines]


def words(row):
    return [word.strip() for word in row if word.strip()]


def test_each_project_with_its_records_and_its_use(storage, make_project):
    full = make_project(name="full", snapshot_quota=1_048_576)
    make_project(name="empty", snapshot_quota=0)
    for _ in range(2):
        state = State(
            project_id=full.pk,
            session=secrets.token_bytes(16),
            dump=os.urandom(262_144),
            script_name="main.py",
            type_check=False,
            suspended=False,
            interpreter="1.4.0/14",
            limits={},
            parent=None,
            key_id=None,
        )
        save_snapshot(state, cancelled=lambda: False)
    empty, shown = (words(row) for row in rows())
    assert empty == ["empty", "0", "0", "0\xa0bytes", "0\xa0bytes", "-"]
    assert shown == ["full", "2", "0", "512.1\xa0KB", "1.0\xa0MB", "50%"]
    assert blobs.used(full.pk) > 524_288
    assert rows("full") == rows()[1:]


def test_a_project_that_does_not_exist():
    assert not Project.objects.exists()
    with pytest.raises(CommandError, match="no project 'nowhere'"):
        rows("nowhere")
