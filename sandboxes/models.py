"""The registry of all sessions, whichever server has them: who owns each, since when, and what it did last.

A row here is also the lease under which a server may write a session's record: owner and epoch must be as expected.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from projects.models import ApiKey, Project


class Server(models.Model):
    """One server process, and its heartbeat."""

    class State(models.TextChoices):
        """What the process is doing, as far as is known."""

        SERVING = "serving"
        DRAINING = "draining"
        GONE = "gone"
        LOST = "lost"

    name = models.CharField(max_length=64, primary_key=True)
    channel = models.CharField(max_length=120)
    state = models.CharField(max_length=10, choices=State.choices, default=State.SERVING)
    started = models.DateTimeField(auto_now_add=True)
    heartbeat = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.name


class LiveSession(models.Model):
    """One session. `id` is its session ID in hex."""

    class State(models.TextChoices):
        """Where it stands; the last two are ends."""

        LIVE = "live"
        PARKED = "parked"
        FROZEN = "frozen"
        CLOSED = "closed"
        LOST = "lost"

    OPEN: ClassVar = (State.LIVE, State.PARKED)
    """The states that count for a project's cap."""

    id = models.CharField(max_length=32, primary_key=True)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="sessions")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, related_name="sessions")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="sessions")
    epoch = models.PositiveIntegerField(default=0)
    generation = models.PositiveBigIntegerField(default=0)
    ephemeral = models.BooleanField(default=False)
    state = models.CharField(max_length=10, choices=State.choices, default=State.LIVE)
    script_name = models.TextField(blank=True)
    connected = models.DateTimeField(auto_now_add=True)
    active = models.DateTimeField()
    ended = models.DateTimeField(null=True)
    end_reason = models.CharField(max_length=60, blank=True)
    turns = models.PositiveBigIntegerField(default=0)
    heavy = models.BooleanField(default=False)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["project", "state"]),
            models.Index(fields=["server", "state"]),
            models.Index(fields=["state", "active"]),
        ]

    def __str__(self) -> str:
        return self.id
