"""A client that sends what it likes: the frames of the protocol by hand, over a plain WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.end_to_end.harness import Moorage
from tests.end_to_end.waiting import PATIENCE

CONFIGURE, INSTALL, FEED, RESUME_CALL, RESUME_NAME, RESUME_FUTURES, DUMP, LOAD, RESET, SHUTDOWN, ABORT = range(1, 12)
(
    PRINT,
    FUNCTION_CALL,
    OS_CALL,
    NAME_LOOKUP,
    FUTURES,
    COMPLETE,
    ERROR,
    TYPING_ERROR,
    DUMPED,
    OK,
    FATAL,
    ENDING,
) = range(1, 13)
SESSION_ID = 28
PRINT_FIRST_BYTE = 0x0A


def varint(value: int) -> bytes:
    """A number in base 128, least first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at this offset and the offset behind it. Raises IndexError where the data ends too soon."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def number(field: int, value: int) -> bytes:
    """One field that is a number."""
    return varint(field << 3) + varint(value)


def message(field: int, body: bytes = b"") -> bytes:
    """One field that is bytes, text or a message."""
    return varint(field << 3 | 2) + varint(len(body)) + body


def fields(data: bytes) -> dict[int, Any]:
    """The top-level fields of a well-formed message: numbers and bytes, the last of each."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            found[key >> 3], at = read_varint(data, at)
        elif key & 7 == 2:
            size, at = read_varint(data, at)
            found[key >> 3], at = data[at : at + size], at + size
        elif key & 7 == 1:
            found[key >> 3], at = data[at : at + 8], at + 8
        else:
            raise ValueError(f"wire type {key & 7}")
    return found


def kind(event: bytes) -> int:
    """Which event this is."""
    return event[0] >> 3


def words(event: bytes) -> str:
    """What an Error or a FatalError says."""
    inner = fields(fields(event)[kind(event)])
    text = inner[1] if kind(event) == FATAL else fields(inner[1]).get(2, b"")
    return str(text, "utf-8", "replace")


def configure(*, ephemeral: bool = False, limits: bytes = b"", extra: bytes = b"") -> bytes:
    """A Configure as the client library sends it."""
    body = message(1, b"main.py") + (message(2, limits) if limits else b"") + message(5, b"1.4.0") + number(9, 6)
    return message(CONFIGURE, body + (number(12, 1) if ephemeral else b"") + extra)


def feed(code: str | bytes) -> bytes:
    """A Feed of this code."""
    return message(FEED, message(1, code.encode() if isinstance(code, str) else code) + message(5, b"/"))


def load(state: bytes) -> bytes:
    """A Load of an ID, or of what shall pass for one."""
    return message(LOAD, message(1, state))


class Wire:
    """An open connection. Every wait of it has an end."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, frame: bytes) -> None:
        """Send one frame."""
        await asyncio.wait_for(self.socket.send(frame), PATIENCE)

    async def event(self) -> bytes:
        """The next event that ends a turn; prints before it are dropped. Raises ConnectionClosed."""
        while True:
            event = await asyncio.wait_for(self.socket.recv(decode=False), PATIENCE)
            if event[0] != PRINT_FIRST_BYTE:
                return event

    async def ask(self, frame: bytes) -> bytes:
        """Send a frame, and give what ends its turn."""
        await self.send(frame)
        return await self.event()

    async def closed(self) -> None:
        """Wait until the server has closed the connection."""
        await asyncio.wait_for(self.socket.wait_closed(), PATIENCE)


@asynccontextmanager
async def wire(server: Moorage, key: str = "main", **options: Any) -> AsyncIterator[Wire]:
    """Connect by the key of this name. Leaving ends the connection as clients do, by closing TCP."""
    headers = {"authorization": f"Bearer {server.keys.get(key, key)}"}
    options = {
        "max_size": None,
        "ping_interval": None,
        "compression": None,
        "open_timeout": PATIENCE,
        **options,
    }
    socket = await connect(server.url, additional_headers=headers, **options)
    try:
        yield Wire(socket)
    finally:
        socket.transport.abort()
