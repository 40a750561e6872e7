"""The Django app."""

from django.apps import AppConfig


class SnapshotsConfig(AppConfig):
    """Saved state."""

    name = "snapshots"
