"""Projects, who belongs to them, and the keys of their programs."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

from django.conf import settings
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from projects.scopes import Scope

NAME = RegexValidator(
    r"\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z",
    "A project's name has up to 63 lower-case letters, digits and hyphens, and no hyphen at its ends.",
)
GIB = 2**30
MIB = 2**20


class Project(models.Model):
    """The tenant: owns keys, members, saved state, limits and a storage quota. All times are in seconds."""

    name = models.CharField(max_length=63, unique=True, validators=[NAME])
    disabled = models.BooleanField(default=False)
    created = models.DateTimeField(auto_now_add=True)

    snapshot_quota = models.PositiveBigIntegerField(default=GIB, help_text="Bytes; set by the instance's admins.")
    lower_quota = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="Bytes; set by the project's own admins, counts where it is the lower.",
    )

    memory_limit = models.PositiveBigIntegerField(
        default=256 * MIB, validators=[MinValueValidator(MIB)], help_text="Bytes of a session's interpreter."
    )
    feed_seconds = models.FloatField(default=60, validators=[MinValueValidator(0)])
    turn_seconds = models.FloatField(default=60, validators=[MinValueValidator(0)])
    sleep_seconds = models.FloatField(default=300, validators=[MinValueValidator(0)])
    recursion_limit = models.PositiveIntegerField(default=1_000, validators=[MinValueValidator(1)])
    suspensions_limit = models.PositiveIntegerField(default=10_000)
    max_sessions = models.PositiveIntegerField(default=200, help_text="Sessions connected at once.")

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def quota(self) -> int:
        """Bytes that the project may store: the lower of the instance's quota and the project's own."""
        return self.snapshot_quota if self.lower_quota is None else min(self.snapshot_quota, self.lower_quota)


class Role(models.TextChoices):
    """What a person may do in a project; a viewer sees and runs nothing."""

    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class Membership(models.Model):
    """One person in one project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=6, choices=Role.choices)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("project", "user"), name="one_membership_per_person"),)

    def __str__(self) -> str:
        return f"{self.user} in {self.project}: {self.role}"


class Refusal(StrEnum):
    """Why a key opens nothing."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    REVOKED = "revoked"
    EXPIRED = "expired"
    PROJECT_DISABLED = "project disabled"


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def usable(self, now: datetime | None = None) -> Self:
        """Those that still open something: not revoked, not expired, of a project that is not disabled."""
        lasting = Q(expires=None) | Q(expires__gt=now or timezone.now())
        return self.filter(lasting, revoked=None, project__disabled=False)


class ApiKey(models.Model):
    """A project's secret for programs. Only its hash is kept, and its first characters to know it by."""

    USE_NOTED_EVERY = timedelta(minutes=1)

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=8, db_index=True)
    sha256 = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)
    last_used = models.DateTimeField(null=True, blank=True)
    revoked = models.DateTimeField(null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ("project", "created")

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

    def allows(self, scope: Scope) -> bool:
        """Whether the key was made with this scope."""
        return scope in self.scopes

    def refusal(self, now: datetime | None = None) -> Refusal | None:
        """Why the key opens nothing at this moment, or None when it does."""
        if self.revoked is not None:
            return Refusal.REVOKED
        if self.expires is not None and self.expires <= (now or timezone.now()):
            return Refusal.EXPIRED
        if self.project.disabled:
            return Refusal.PROJECT_DISABLED
        return None

    def revoke(self) -> None:
        """Close the key for good; a second time changes nothing."""
        now = timezone.now()
        if type(self).objects.filter(pk=self.pk, revoked=None).update(revoked=now):
            self.revoked = now

    def note_use(self, now: datetime | None = None) -> None:
        """Remember that the key was used, written at most once a minute."""
        now = now or timezone.now()
        due = Q(last_used=None) | Q(last_used__lte=now - self.USE_NOTED_EVERY)
        if self.last_used is None or self.last_used <= now - self.USE_NOTED_EVERY:
            type(self).objects.filter(due, pk=self.pk).update(last_used=now)
            self.last_used = now
