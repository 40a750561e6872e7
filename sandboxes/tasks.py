"""The sweeps over sessions that Celery beat starts. Each may run twice, late or never without harm."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import timedelta

from asgiref.sync import async_to_sync
from celery import shared_task
from channels.exceptions import ChannelFull
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from sandboxes.models import LiveSession, Server
from snapshots import leases

logger = logging.getLogger(__name__)

CHUNK = 500
"""Sessions named in one message."""

REMEMBER_ENDED = timedelta(days=7)


def ago(seconds: float) -> object:
    """A moment in the past by the database's clock."""
    return Now() - timedelta(seconds=seconds)


@shared_task(name="sandboxes.tasks.park_idle")
def park_idle() -> int:
    """Tell servers which of their sessions look idle. The number of sessions named."""
    idle: dict[str, list[str]] = defaultdict(list)
    rows = LiveSession.objects.filter(
        state=LiveSession.State.LIVE, heavy=False, active__lt=ago(settings.SESSION_PARK_AFTER)
    )
    for session_id, channel in rows.values_list("id", "server__channel"):
        idle[channel].append(session_id)
    layer = get_channel_layer()
    named = 0
    for channel, ids in idle.items():
        for start in range(0, len(ids), CHUNK):
            message = {"type": "session.park", "ids": ids[start : start + CHUNK]}
            try:
                async_to_sync(layer.send)(channel, message)
                named += len(message["ids"])
            except ChannelFull:
                logger.warning("a server does not take messages; its idle sessions are named again in the next sweep")
                break
    return named


@shared_task(name="sandboxes.tasks.mark_lost")
def mark_lost() -> int:
    """Declare servers lost whose heartbeat stopped, and their sessions with them. The number of sessions."""
    silent = Server.objects.filter(
        state__in=[Server.State.SERVING, Server.State.DRAINING], heartbeat__lt=ago(settings.SERVER_LOST_AFTER)
    )
    return sum(declare_lost(name) for name in silent.values_list("name", flat=True))


def declare_lost(server: str) -> int:
    """From now on nothing that `server` writes about its sessions counts; their last saves stay.

    The number of sessions that it had.
    """
    with transaction.atomic():
        still_silent = Server.objects.filter(
            name=server,
            state__in=[Server.State.SERVING, Server.State.DRAINING],
            heartbeat__lt=ago(settings.SERVER_LOST_AFTER),
        )
        if not still_silent.update(state=Server.State.LOST):
            return 0
        theirs = LiveSession.objects.filter(server=server, state__in=[*LiveSession.OPEN, LiveSession.State.FROZEN])
        ids = list(theirs.values_list("id", flat=True))
        theirs.update(state=LiveSession.State.LOST, epoch=F("epoch") + 1, ended=Now(), end_reason="its server was lost")
    leases.release([bytes.fromhex(session_id) for session_id in ids])
    logger.warning("server %s is lost, and %d sessions with it; their last saves can be loaded", server, len(ids))
    return len(ids)


@shared_task(name="sandboxes.tasks.forget_ended")
def forget_ended() -> int:
    """Remove the rows of sessions and servers that ended long ago. The number of sessions."""
    long_ago = Now() - REMEMBER_ENDED
    gone, _ = LiveSession.objects.filter(ended__lt=long_ago).delete()
    Server.objects.filter(state__in=[Server.State.GONE, Server.State.LOST], heartbeat__lt=long_ago).filter(
        sessions=None
    ).delete()
    return gone
