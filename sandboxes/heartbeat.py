"""A server's sign of life, its sessions' activity, and what the database has to say to it, in one batch every few
seconds. The heartbeat is a lease: without it the server may not write, and gives up its sessions.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db import connection
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from sandboxes.database import keep_connected
from sandboxes.models import LiveSession, Server
from vault.transactions import relaxed

if TYPE_CHECKING:
    from sandboxes.lifecycle import Lifecycle as Session

logger = logging.getLogger(__name__)

BATCH = 500
WRITE_ACTIVITY = (
    f"UPDATE {LiveSession._meta.db_table} SET state = %s, active = %s, turns = %s, heavy = %s"  # noqa: S608
    " WHERE id = %s AND server_id = %s AND state IN (%s, %s)"
)
"""Of one session, if it is still open and still this server's."""


@dataclass(frozen=True)
class Change:
    """What became of a session since the last batch."""

    session_id: str
    state: str
    active: datetime
    turns: int
    heavy: bool

    @classmethod
    def of(cls, session: Session) -> Change:
        """As it stands now."""
        idle = timedelta(seconds=session.clock() - session.active_at)
        state = "live" if session.worker is not None else str(session.state)
        return cls(session.session_id.hex(), state, timezone.now() - idle, session.turns, session.heavy)


def adapt(moment: datetime) -> str:
    """A moment as the database's driver takes it."""
    return str(connection.ops.adapt_datetimefield_value(moment))


def register(name: str, channel: str) -> None:
    """A server begins."""
    Server.objects.create(name=name, channel=channel, heartbeat=timezone.now())


def beat(name: str, changes: list[Change], held: list[bytes]) -> bool:
    """Renew the lease of server `name` and write down `changes`; the records of `held` sessions are kept from expiry.

    False when the server was declared lost meanwhile: then nothing is written.
    """
    with relaxed():
        alive = Server.objects.filter(name=name).exclude(state__in=[Server.State.LOST, Server.State.GONE])
        if not alive.update(heartbeat=Now()):
            return False
        rows = [
            (each.state, adapt(each.active), each.turns, each.heavy, each.session_id, name, *LiveSession.OPEN)
            for each in changes
            if each.state in LiveSession.OPEN
        ]
        if rows:
            # Not bulk_update: its one large statement for 2,000 sessions takes the interpreter for a tenth of a second.
            with connection.cursor() as cursor:
                cursor.executemany(WRITE_ACTIVITY, rows)
    if held:
        keep_connected(held)
    return True


def set_state(name: str, state: Server.State) -> None:
    """The server drains, or is gone."""
    Server.objects.filter(name=name).exclude(state=Server.State.LOST).update(state=state)


def no_longer_welcome(name: str) -> list[bytes]:
    """Sessions of server `name` whose key was revoked or has expired, or whose project was disabled."""
    unwelcome = Q(key__revoked__isnull=False) | Q(key__expires__lt=Now()) | Q(project__disabled=True)
    rows = LiveSession.objects.filter(server=name, state__in=LiveSession.OPEN).filter(unwelcome)
    return [bytes.fromhex(session_id) for session_id in rows.values_list("id", flat=True)]


def close_forgotten(name: str, known: set[str]) -> int:
    """Close the rows of sessions that this server does not have any more, older than a minute. How many."""
    older = LiveSession.objects.filter(server=name, connected__lt=Now() - timedelta(minutes=1))
    rows = older.filter(state__in=[*LiveSession.OPEN, LiveSession.State.FROZEN])
    forgotten = [session_id for session_id in rows.values_list("id", flat=True) if session_id not in known]
    return LiveSession.objects.filter(id__in=forgotten[:BATCH]).update(
        state=LiveSession.State.CLOSED, ended=Now(), end_reason="forgotten"
    )
