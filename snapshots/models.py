"""Records of saved interpreter state. IDs are bytes on the wire and lower-case hex here."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone

from projects.models import ApiKey, Project
from vault.models import Blob
from vault.sealing import Context


def expiry(saved: datetime) -> datetime:
    """When a record that was saved then expires."""
    return saved + timedelta(seconds=settings.RECORD_TTL)


class Record(models.Model):
    """A saved session, replaced by each later save of that session, or a snapshot, which never changes."""

    class Kind(models.TextChoices):
        """A saved session has its session's ID."""

        SESSION = "session"
        SNAPSHOT = "snapshot"

    id = models.CharField(max_length=64, primary_key=True)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="records")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    session = models.CharField(max_length=64, help_text="The session that wrote it.")
    generation = models.PositiveBigIntegerField(default=0, help_text="Of a saved session: counts its saves.")
    parent = models.CharField(max_length=64, blank=True, help_text="The record its session was restored from.")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, related_name="records")
    name = models.CharField(max_length=200, blank=True)
    note = models.TextField(blank=True)
    suspended = models.BooleanField(default=False)
    script_name = models.TextField(blank=True)
    type_check = models.BooleanField(default=False)
    interpreter = models.CharField(max_length=40)
    limits = models.JSONField(default=dict)
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="records")
    state_size = models.PositiveBigIntegerField(help_text="Bytes of the dump.")
    sha256 = models.BinaryField(max_length=32, help_text="Of the dump.")
    created = models.DateTimeField()
    saved = models.DateTimeField()
    expires = models.DateTimeField()
    held_until = models.DateTimeField(null=True)
    kept = models.BooleanField(default=False)
    handed_over = models.DateTimeField(null=True)
    claimed = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["project", "saved"]),
            models.Index(fields=["project", "parent"]),
            models.Index(fields=["expires"]),
            models.Index(fields=["project", "handed_over"]),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def context(self) -> Context:
        """What its blob is sealed under."""
        return Context(self.project_id, bytes.fromhex(self.id), self.kind, self.generation)

    def is_held(self) -> bool:
        """Whether a connected session writes it."""
        return self.held_until is not None and self.held_until > timezone.now()


class Tombstone(models.Model):
    """A saved session that was deleted: no later save brings it back."""

    id = models.CharField(max_length=64, primary_key=True)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.id
