"""Making API keys and telling whose they are.

A secret is `mrg_`, 40 random characters of base 62 and a checksum of 6: secret scanners know one by sight,
and a mistyped secret is told apart from one that was revoked or never existed, without asking the database.
"""

import hashlib
import logging
import secrets
import string
import zlib
from collections.abc import Iterable
from datetime import datetime

from django.contrib.auth.models import User

from projects.models import ApiKey, Project, Refusal
from projects.scopes import FOR_PROGRAMS, Scope

logger = logging.getLogger(__name__)

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
MARK = "mrg_"
RANDOM_LENGTH = 40
CHECKSUM_LENGTH = 6
PREFIX_LENGTH = 8


class Refused(Exception):
    """A secret that opens nothing. `reason` says why; it is for the log, not for whoever sent the secret."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(f"API key refused: {reason}")
        self.reason = reason


def make(
    project: Project,
    name: str,
    scopes: Iterable[Scope] = FOR_PROGRAMS,
    *,
    expires: datetime | None = None,
    created_by: User | None = None,
) -> tuple[ApiKey, str]:
    """A new key and its secret, which is kept nowhere: this is the only moment to show it."""
    random = "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    secret = MARK + random + _checksum(random)
    key = ApiKey.objects.create(
        project=project,
        name=name,
        prefix=secret[:PREFIX_LENGTH],
        sha256=_sha256(secret),
        scopes=[str(scope) for scope in scopes],
        created_by=created_by,
        expires=expires,
    )
    logger.info("API key %s made for project %s", key.prefix, project.name)
    return key, secret


def authenticate(secret: str) -> ApiKey:
    """The key of this secret, its project loaded with it; its use is noted, at most once a minute.

    Raises Refused. Every refusal is logged with the first characters of what looks like a key, and nothing of
    what does not.
    """
    if not _well_formed(secret):
        raise _refused(secret, Refusal.MALFORMED)
    try:
        key = ApiKey.objects.select_related("project").get(sha256=_sha256(secret))
    except ApiKey.DoesNotExist:
        raise _refused(secret, Refusal.UNKNOWN) from None
    if (reason := key.refusal()) is not None:
        raise _refused(secret, reason)
    key.note_use()
    return key


def _refused(secret: str, reason: Refusal) -> Refused:
    shown = secret[:PREFIX_LENGTH] if secret.startswith(MARK) else "(none)"
    logger.warning("API key refused: %s, prefix %s", reason, ascii(shown))
    return Refused(reason)


def _well_formed(secret: str) -> bool:
    random, checksum = secret[len(MARK) : -CHECKSUM_LENGTH], secret[-CHECKSUM_LENGTH:]
    return (
        secret.startswith(MARK)
        and len(random) == RANDOM_LENGTH
        and set(secret[len(MARK) :]) <= set(ALPHABET)
        and checksum == _checksum(random)
    )


def _checksum(random: str) -> str:
    number, digits = zlib.crc32(random.encode()), ""
    for _ in range(CHECKSUM_LENGTH):  # 62 ** 6 is more than the 2 ** 32 values there are
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
