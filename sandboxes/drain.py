"""The orderly end of a server: every session saved, every client told where its state is, then the exit."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from django.conf import settings

from sandboxes import heartbeat
from sandboxes.lifecycle import State
from sandboxes.models import Server as Row

if TYPE_CHECKING:
    from sandboxes.lifecycle import Lifecycle as Session
    from sandboxes.server import MoorageServer

logger = logging.getLogger(__name__)

PER_SECOND = 100
"""Hand-overs: more at once, and some clients would not get through to the next server within their ten seconds."""
LINGER_WITHOUT_STATE = 10.0
"""Seconds that a connection is kept whose client can load nothing: it would see no more than a better error."""
SAVE_WITHIN = 60.0
"""Seconds that one session's hand-over tries to save it."""


class Drain:
    """Drains a server once it is asked to."""

    def __init__(self, server: MoorageServer) -> None:
        self._server = server
        self._asked = 0
        self._no_grace = asyncio.Event()
        self._begun: set[Session] = set()

    def asked(self, linger: float) -> None:
        """A signal came. `linger`: seconds to wait for silent clients at the end. A second signal skips the grace."""
        self._asked += 1
        if self._asked == 1:
            self._server.spawn(self._run(linger))
        else:
            self._no_grace.set()

    async def _run(self, linger: float) -> None:
        server, house = self._server, self._server.house
        logger.info("the server drains: %d sessions", len(house.registry.sessions))
        house.draining = True
        server.listener.stop_accepting()
        try:
            await house.door.run(heartbeat.set_state, house.lease.server, Row.State.DRAINING)
        except Exception as error:
            logger.warning("nobody else is told that this server drains: %s", error)
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + settings.DRAIN_GRACE
        killed = False
        while self._unsettled():
            for session in self._unsettled():
                if session not in self._begun:
                    self._begun.add(session)
                    house.registry.spawn(self._hand_over(session))
                    await asyncio.sleep(1 / PER_SECOND)
            if not killed and (loop.time() > grace_ends or self._no_grace.is_set()):
                killed = True
                for session in list(house.registry.running):
                    session.turn_cut_short("the server stops, and the turn did not end in time")
            await asyncio.sleep(0.05)
        await house.registry.finish(SAVE_WITHIN)
        until = loop.time() + linger
        while self._silent() and loop.time() < until and self._asked < 2:
            await asyncio.sleep(0.2)
        await house.registry.finish(SAVE_WITHIN)
        await server.close()
        logger.info("the server has drained")
        server.stop()

    async def _hand_over(self, session: Session) -> None:
        if not await session.hand_over(SAVE_WITHIN):
            await asyncio.sleep(0.1)
            self._begun.discard(session)

    def _silent(self) -> list[Session]:
        """Those whose clients have not heard yet where their state is, or for a moment, that there is none."""
        registry = self._server.house.registry
        heard_by = registry.clock() - LINGER_WITHOUT_STATE
        return [each for each in registry.sessions.values() if each.awaited or each.frozen_at > heard_by]

    def _unsettled(self) -> list[Session]:
        """Sessions that are neither handed over nor closed. One whose client has left is saved by its own task."""
        return [
            session
            for session in list(self._server.house.registry.sessions.values())
            if session.state in (State.LIVE, State.PARKED) and not session.leaving
        ]
