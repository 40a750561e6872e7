"""Settings: read from the environment, each of them documented, clear when one is wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from config import settings
from config.celery import app
from config.secrets import make_vault_key

CHECKOUT = Path(settings.__file__).resolve().parent.parent
ROW = re.compile(r"^\| `(?P<name>[A-Z_]+)` \| (?P<default>[^|]+) \| (?P<meaning>[^|]+) \|$", re.MULTILINE)


def load(tmp_path, expression, **environment):
    """What an expression gives in a process that reads the settings from this environment alone."""
    return subprocess.run(
        [sys.executable, "-c", f"from config.settings import *; print([{expression}])"],
        cwd=CHECKOUT,
        env={"VAR_DIR": str(tmp_path / "var"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def secrets():
    return {"SECRET_KEY": "k" * 50, "VAULT_KEYS": make_vault_key("first")}


def documented():
    return {row["name"]: row for row in ROW.finditer((CHECKOUT / "docs" / "settings.md").read_text())}


def test_every_setting_is_documented_and_every_documented_one_exists():
    assert list(documented()) == list(settings.SCHEME)


@pytest.mark.parametrize("name", settings.SCHEME)
def test_the_documented_default_is_the_real_one(name):
    default = settings.SCHEME[name][1]
    shown = documented()[name]["default"].strip()
    if default == []:
        assert shown == "none"
    elif default is not None:
        assert shown == f"`{int(default) if isinstance(default, bool) else default}`"
    else:  # it depends, so that words say on what
        assert not re.fullmatch("`[^`]*`", shown)


def test_no_setting_is_read_past_the_scheme():
    source = Path(settings.__file__).read_text()
    read = re.findall(r'\b(?:setting|secret)\("([A-Z_]+)"', source)
    assert {*read, "VAR_DIR"} == set(settings.SCHEME)
    assert "os.environ[" not in source


def test_settings_come_from_the_environment(tmp_path):
    shown = load(
        tmp_path,
        "HOST, PORT, WORKERS, AUTOSAVE_EVERY, PARK_EVERY_TURN, ALLOWED_HOSTS[0], REDIS_URL",
        **secrets(),
        HOST="0.0.0.0",
        PORT="80",
        WORKERS="3",
        AUTOSAVE_EVERY="0.5",
        PARK_EVERY_TURN="1",
        ALLOWED_HOSTS="moorage.example",
        REDIS_URL="redis://valkey:6379/0",
    )
    expected = "['0.0.0.0', 80, 3, 0.5, True, 'moorage.example', 'redis://valkey:6379/0']"
    assert shown.stdout.strip() == expected, shown.stderr


def test_what_is_empty_has_its_default(tmp_path):
    shown = load(tmp_path, "PORT, WORKERS == 8 * os.cpu_count()", **secrets(), PORT="", WORKERS="")
    assert shown.stdout.strip() == "[8000, True]", shown.stderr


@pytest.mark.parametrize(("production", "expected"), [("0", "['auto', 0]"), ("1", "['required', 30]")])
def test_production_is_stricter(tmp_path, production, expected):
    shown = load(tmp_path, "WORKER_ISOLATION, STOP_LINGER", **secrets(), PRODUCTION=production)
    assert shown.stdout.strip() == expected, shown.stderr


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"SECRET_KEY": ""}, "SECRET_KEY is not set. `make up` makes one"),
        ({"VAULT_KEYS": ""}, "VAULT_KEYS is not set. `make up` makes one"),
        ({"VAULT_KEYS": "first:c2hvcnQ="}, "entry 1 of VAULT_KEYS is not ID:KEY"),
        ({"WORKER_ISOLATION": "maybe"}, "WORKER_ISOLATION is 'maybe'; it must be required, auto or off"),
        ({"PORT": "http"}, "PORT is 'http'; it must be a whole number"),
        ({"TURN_TIMEOUT": "long"}, "TURN_TIMEOUT is 'long'; it must be a number"),
    ],
)
def test_a_wrong_setting_is_told_clearly(tmp_path, wrong, words):
    shown = load(tmp_path, "PORT", **(secrets() | wrong))
    assert shown.returncode != 0
    assert f"ImproperlyConfigured: {words}" in shown.stderr


def test_sqlite_is_set_up_to_keep_what_it_committed(tmp_path):
    program = (
        "__import__('django').setup() or [__import__('django.db').db.connection.cursor()"
        ".execute(f'PRAGMA {name}').fetchone()[0] for name in ('journal_mode', 'synchronous', 'busy_timeout')]"
    )
    shown = load(tmp_path, program, **secrets(), DJANGO_SETTINGS_MODULE="config.settings")
    assert shown.stdout.strip() == "[['wal', 2, 20000]]", shown.stderr


def test_postgresql_is_taken_by_its_url(tmp_path):
    url = "postgres://ann:secret@db:5433/moorage"
    shown = load(
        tmp_path, "[DATABASES['default'][k] for k in ('ENGINE', 'HOST', 'PORT')]", **secrets(), DATABASE_URL=url
    )
    assert shown.stdout.strip() == "[['django.db.backends.postgresql', 'db', 5433]]", shown.stderr


def test_every_scheduled_task_exists():
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert scheduled <= set(app.tasks)


def test_tests_use_the_settings_of_the_site():
    assert os.environ["DJANGO_SETTINGS_MODULE"] == "tests.settings"
