"""The servers of these trials are those of the end-to-end tests."""

from tests.end_to_end.conftest import broker, harbour, launch, pytest_runtest_makereport

__all__ = ["broker", "harbour", "launch", "pytest_runtest_makereport"]
