"""The servers of these tests. A module shares what it launches: starts are the most expensive part."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.end_to_end.harness import Broker, Harbour, Moorage, running


class Launch(Protocol):
    """Starts a server with these settings, which ends with the module."""

    def __call__(self, name: str = ..., **settings: object) -> Moorage: ...


@pytest.fixture(scope="session")
def harbour(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Harbour:
    """What all servers of this run begin with."""
    base = tmp_path_factory.getbasetemp()
    return Harbour.shared((base if worker_id == "master" else base.parent) / "harbour")


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """The URL of a Valkey that the servers of this process share."""
    found = Broker()
    yield found.url
    found.close()


@pytest.fixture(scope="module")
def launch(harbour: Harbour, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Starts servers for this module. All of them are ended with it, and must leave nothing."""
    launched: list[Moorage] = []

    def start(name: str = "server", **settings: object) -> Moorage:
        folder: Path = tmp_path_factory.mktemp(name)
        server = Moorage(harbour, folder, **{"REDIS_URL": broker, **settings})
        launched.append(server)
        return server.start().ready()

    yield start
    errors = []
    for server in launched:
        try:
            server.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup("servers that did not end well", errors)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows what its servers said."""
    report = yield
    if report.failed:
        names: set[Any] = set(getattr(item, "fixturenames", ()))
        if {"launch", "harbour"} & names:
            report.sections.extend((f"log of {each.folder.name}", each.tail()) for each in list(running))
    return report
