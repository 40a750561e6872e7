"""What all tests share: the services that they run against, and projects to act in.

The database is DATABASE_URL's, or SQLite in a file. `make test` runs the tests of what is stored on both.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from projects.models import Project
from tests.services.shared import shared


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share, and no other run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def postgres_url(run_folder: Path) -> Iterator[str]:
    """A PostgreSQL server's database: the one that the environment names, or one of this run."""
    if url := os.environ.get("TEST_POSTGRES_URL"):
        yield url
        return
    from tests.services.postgres import postgresql

    with shared(run_folder, "postgresql", postgresql) as url:
        yield url


@pytest.fixture(scope="session")
def s3_endpoint(run_folder: Path) -> Iterator[str]:
    """An S3 server: the one that the environment names, or one of this run."""
    if endpoint := os.environ.get("TEST_S3_ENDPOINT"):
        yield endpoint
        return
    from tests.services.bucket import seaweedfs

    with shared(run_folder, "seaweedfs", seaweedfs) as endpoint:
        yield endpoint


@pytest.fixture
def storage(settings: Any, tmp_path: Path) -> Path:
    """The local disk, in a folder of the test's own."""
    settings.STORAGE_URL = f"file://{tmp_path / 'blobs'}"
    return tmp_path / "blobs"


@pytest.fixture(params=["disk", "s3"])
def any_storage(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> str:
    """Each kind of storage in turn."""
    if request.param == "disk":
        settings.STORAGE_URL = f"file://{tmp_path / 'blobs'}"
    else:
        from tests.services.bucket import s3_url

        settings.STORAGE_URL = s3_url(request.getfixturevalue("s3_endpoint"), f"{tmp_path.name}-{os.getpid()}")
    return str(request.param)


@pytest.fixture
def make_project(db: None) -> Callable[..., Project]:
    """Makes projects."""
    numbers = itertools.count(1)

    def make(**fields: Any) -> Project:
        return Project.objects.create(**{"name": f"project-{next(numbers)}", **fields})

    return make


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    """A project of the usual limits."""
    return make_project()
