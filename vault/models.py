"""What is in the store, row by row, and what each tenant uses of it."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Blob(models.Model):
    """One object in the store. A pending one is the reservation of its bytes; a doomed one waits to be removed."""

    class State(models.TextChoices):
        """Pending and kept blobs count for their tenant."""

        PENDING = "pending"
        KEPT = "kept"
        DOOMED = "doomed"

    COUNTED: ClassVar = (State.PENDING, State.KEPT)

    tenant = models.BigIntegerField()
    key = models.CharField(max_length=120, unique=True)
    size = models.PositiveBigIntegerField(help_text="Bytes in storage.")
    state = models.CharField(max_length=7, choices=State.choices, default=State.PENDING)
    created = models.DateTimeField(auto_now_add=True)
    doomed_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["tenant", "state"]),
            models.Index(fields=["state", "created"]),
            models.Index(fields=["state", "doomed_at"]),
        ]

    def __str__(self) -> str:
        return self.key


class Usage(models.Model):
    """The bytes of a tenant's pending and kept blobs, moved by the very statements that move the blobs."""

    tenant = models.BigIntegerField(primary_key=True)
    bytes = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"tenant {self.tenant}: {self.bytes} bytes"


class Correction(models.Model):
    """A difference that the reconciliation found and put right."""

    tenant = models.BigIntegerField()
    found = models.DateTimeField(auto_now_add=True)
    counted = models.BigIntegerField(help_text="Bytes as they were counted.")
    actual = models.BigIntegerField(help_text="Bytes of the blobs that are there.")
    missing_objects = models.PositiveIntegerField(default=0, help_text="Kept blobs without an object.")

    def __str__(self) -> str:
        return f"tenant {self.tenant}: {self.counted} -> {self.actual}"
