"""What other processes say to a server about its sessions: one channel a server, the session's ID in the message.

Every message may be lost, late or sent twice without harm: sweeps send them again, and a session asks its own clock.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

from channels.layers import get_channel_layer

from sandboxes.registry import Registry

logger = logging.getLogger(__name__)

SAVE_WITHIN = 3.0
"""Seconds that the owner of a session has to save it before its last save serves."""


class Channel:
    """The server's ear and its way to ask other servers."""

    def __init__(self, registry: Registry, server: str) -> None:
        self.name = f"moorage.server.{server}"
        self._registry = registry
        self._layer: Any = get_channel_layer()
        self._asked: dict[str, asyncio.Event] = {}

    async def listen(self) -> None:
        """Take messages, for ever; the channel layer may come and go."""
        pause = 0.1
        while True:
            try:
                message = await self._layer.receive(self.name)
                pause = 0.1
            except asyncio.CancelledError:
                raise
            except Exception as error:
                logger.warning("the channel layer does not answer (%s); next try in %g s", error, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
                continue
            try:
                self._hear(message)
            except Exception:
                logger.exception("a message could not be understood: %r", message)

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "session.saved":
            if (event := self._asked.get(message["token"])) is not None:
                event.set()
            return
        for session_id in message["ids"]:
            session = self._registry.sessions.get(bytes.fromhex(session_id))
            if session is None:
                continue
            if kind == "session.park":
                if not session.parking:
                    session.parking = True
                    self._registry.spawn(session.park(at_once=message.get("at_once", False)))
            elif kind == "session.end":
                self._registry.spawn(session.end("ended by a person"))
            elif kind == "session.move":
                self._registry.spawn(session.hand_over(30.0))
            elif kind == "session.save":
                self._registry.spawn(self._save_for(session_id, message))

    async def _save_for(self, session_id: str, message: dict[str, Any]) -> None:
        await self._save_here(session_id)
        try:
            await self._layer.send(message["reply"], {"type": "session.saved", "token": message["token"]})
        except Exception as error:
            logger.warning("nobody was told that session %s is saved: %s", session_id, error)

    async def _save_here(self, session_id: str) -> None:
        session = self._registry.sessions.get(bytes.fromhex(session_id))
        if session is not None and session.started:
            await session.save_now()

    async def ask_to_save(self, session_id: str, server: str, channel: str) -> None:
        """Have the owner of a session save it; returns when it has, or after `SAVE_WITHIN` seconds."""
        try:
            async with asyncio.timeout(SAVE_WITHIN):
                if channel == self.name:
                    await self._save_here(session_id)
                else:
                    await self._ask(session_id, channel)
        except TimeoutError:
            logger.info("server %s did not save session %s in time: its last save serves", server, session_id)
        except Exception as error:
            logger.warning("server %s could not be asked to save session %s: %s", server, session_id, error)

    async def _ask(self, session_id: str, channel: str) -> None:
        token = secrets.token_hex(8)
        self._asked[token] = asyncio.Event()
        try:
            request = {"type": "session.save", "ids": [session_id], "reply": self.name, "token": token}
            await self._layer.send(channel, request)
            await self._asked[token].wait()
        finally:
            del self._asked[token]
