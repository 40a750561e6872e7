"""The services that tests run beside: they serve, are shared, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Event

import psutil
import psycopg
import pytest

from tests.services.postgres import postgresql
from tests.services.shared import shared


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_postgresql_serves_and_leaves_nothing() -> None:
    before = children()
    with postgresql() as url:
        assert children() > before
        with psycopg.connect(url) as session:
            assert session.execute("SELECT current_database()").fetchone() == ("moorage",)
            folder = Path(str(session.execute("SHOW data_directory").fetchone()[0]))  # type: ignore[index]
    assert children() <= before
    assert not folder.parent.exists()


def test_a_service_is_started_once_and_ended_by_the_last(tmp_path: Path) -> None:
    users, together, done = 5, Barrier(5), Event()
    events: list[str] = []

    @contextmanager
    def service() -> Iterator[str]:
        events.append("started")
        yield "its address"
        events.append("ended")

    def use(number: int) -> str:
        with shared(tmp_path, "service", service) as address:
            together.wait(30)  # all are in
            if number:
                done.wait(30)
            else:
                done.set()
            assert events == ["started"]
        return address

    with ThreadPoolExecutor(users) as threads:
        assert set(threads.map(use, range(users))) == {"its address"}
    assert events == ["started", "ended"]
    with shared(tmp_path, "service", service):
        assert events == ["started", "ended", "started"]


RUN = [sys.executable, "-m", "tests.services.run"]
SERVICES = {"TEST_POSTGRES_URL": "postgres://here", "TEST_S3_ENDPOINT": "http://there"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", 'test "$TEST_S3_ENDPOINT" = http://there && test -z "$DATABASE_URL"'], 0),
        (["--on-postgres", "sh", "-c", 'test "$DATABASE_URL" = postgres://here'], 0),
    ],
)
def test_run_passes_the_addresses_on_and_the_exit_code_back(arguments: list[str], code: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | SERVICES
    assert subprocess.run([*RUN, *arguments], env=environment, timeout=60, stderr=subprocess.DEVNULL).returncode == code


def test_run_takes_its_command_along_when_it_is_told_to_end() -> None:
    command = [*RUN, "sh", "-c", "echo $$; exec sleep 600"]
    with subprocess.Popen(command, env=os.environ | SERVICES, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        inner = int(run.stdout.readline())
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 30
    while psutil.pid_exists(inner) and psutil.Process(inner).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
