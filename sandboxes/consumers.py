"""The doors. `MontyConsumer` is the binary one, for the clients of the Monty protocol.

A door tells who comes and makes the session; the frames then go from the connection straight to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from projects.keys import Refused
from sandboxes.database import DatabaseStore, identify
from sandboxes.house import House
from sandboxes.session import Session

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class MontyConsumer:
    """`/monty-ws/`: an API key at the upgrade, then one session."""

    @classmethod
    def as_asgi(cls) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        """The ASGI application: one consumer a connection."""

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await cls()(scope, receive, send)

        return application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        house: House = scope["moorage.house"]
        message = await receive()
        if message["type"] != "websocket.connect":
            return
        try:
            visitor = await house.door.run(identify, bearer(scope))
        except Refused:
            await send({"type": "websocket.close"})
            return
        link = scope["moorage.link"]
        store = DatabaseStore(visitor, house.threads, house.lease, house.owners)
        session = Session(link, store, house.pool, house.registry, visitor.ceiling)
        link.adopt(session)
        await send({"type": "websocket.accept"})
        while message["type"] != "websocket.disconnect":
            message = await receive()
        session.left()


def bearer(scope: Scope) -> str:
    """The secret in the Authorization header; empty when there is none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, secret = value.decode("latin1").partition(" ")
            return secret.strip() if kind.lower() == "bearer" else ""
    return ""
