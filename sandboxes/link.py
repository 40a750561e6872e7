"""Daphne's WebSocket protocol, made fit for interpreter sessions.

It adds what Daphne lacks (backpressure, pings spread in time, a patience of its own for a silent client) and takes the
common case, one whole small binary message in one read, past autobahn's general parser. Daphne and autobahn are
pinned; `tests/sandboxes/test_link.py` fails when what is overridden here changes.
"""

from __future__ import annotations

import logging
import struct
import time
from typing import Protocol

import autobahn.websocket.protocol as autobahn_protocol
from autobahn.twisted import websocket as autobahn_twisted
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

logger = logging.getLogger(__name__)

READ_WITHIN = 30.0
"""Seconds that a client has to read what waits for it."""

UNSENT_MAX = 1024 * 1024
"""Bytes unsent at which the worker's output stops."""

_SMALL = 125
_EXTENDED = struct.Struct("!BBH")
_HUGE = struct.Struct("!BBQ")


def plain(value: object, *_: object, **__: object) -> object:
    """In the place of autobahn's functions that colour debug arguments even where nobody reads them."""
    return value


def take_colours_away() -> None:
    """autobahn colours the arguments of its debug messages before it knows whether they are wanted: 18 µs a turn."""
    for module in (autobahn_protocol, autobahn_twisted):
        for name in ("hl", "hltype", "hlval", "hlid"):
            if hasattr(module, name):
                setattr(module, name, plain)


class Guest(Protocol):
    """Whoever takes a connection's frames: a session."""

    suspended: bool

    @property
    def sent_away(self) -> bool: ...

    def receive(self, frame: bytes) -> None: ...

    def left(self) -> None: ...

    def pause(self) -> None: ...

    def unpause(self) -> None: ...


@implementer(IPushProducer)
class Throttle:
    """Stops the guest's output while its client does not read."""

    def __init__(self, link: MontyLink) -> None:
        self._link = link
        self.since: float | None = None
        """Since when the client has not read what waits for it."""

    def pauseProducing(self) -> None:
        if self.since is None:
            self.since = time.monotonic()
        if self._link.guest is not None:
            self._link.guest.pause()

    def resumeProducing(self) -> None:
        self.since = None
        if self._link.guest is not None:
            self._link.guest.unpause()

    def stopProducing(self) -> None:
        self.since = None


class MontyLink(WebSocketProtocol):  # type: ignore[misc]
    """One connection. As `sandboxes.session.Link` it is the session's way to its client."""

    guest: Guest | None = None
    throttle: Throttle | None = None
    heard = 0.0
    """When anything was last received."""
    pinged = 0.0

    # To the client

    def send(self, event: bytes) -> None:
        """One binary message; sent at once if nothing waits before it."""
        if self.state != self.STATE_OPEN:
            return
        size = len(event)
        if size <= _SMALL:
            head = bytes((0x82, size))
        elif size < 0x10000:
            head = _EXTENDED.pack(0x82, 126, size)
        else:
            head = _HUGE.pack(0x82, 127, size)
        if size < 0x10000:
            self._write(head + event)
        else:
            self._write(head)
            self._write(event)

    def _write(self, data: bytes) -> None:
        transport = self.transport
        if transport.disconnecting or transport.disconnected:
            return
        if not transport.dataBuffer and not transport._tempDataBuffer:
            try:
                sent = transport.socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                transport.abortConnection()
                return
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)

    def close(self) -> None:
        """End the connection after what was sent."""
        if self.state == self.STATE_OPEN:
            self.sendClose(code=1000)

    def adopt(self, guest: Guest) -> None:
        """From now on every binary message goes straight to `guest`."""
        self.guest = guest
        self.throttle = Throttle(self)
        self.transport.bufferSize = UNSENT_MAX
        self.transport.unregisterProducer()  # the HTTP channel, which has nothing to produce any more
        self.transport.registerProducer(self.throttle, True)

    # From the client

    def dataReceived(self, data: bytes) -> None:
        """One whole small masked binary message in one read is taken here; everything else by autobahn."""
        self.heard = time.monotonic()
        if (
            self.guest is not None
            and self.state == self.STATE_OPEN
            and not self.data
            and self.current_frame is None
            and not self.inside_message
            and len(data) >= 6
            and data[0] == 0x82
            and data[1] & 0x80
        ):
            size, at = data[1] & 0x7F, 2
            if size == 126 and len(data) >= 8:
                size, at = data[2] << 8 | data[3], 4
            if (size < 126 or at == 4) and len(data) == at + 4 + size:
                self.guest.receive(unmask(data, at, size))
                return
        super().dataReceived(data)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        self.heard = time.monotonic()
        if self.guest is not None and isBinary:
            self.guest.receive(payload)
        elif self.guest is not None:
            self.sendClose(code=1003, reason="this door takes binary messages")
        else:
            super().onMessage(payload, isBinary)

    def onOpen(self) -> None:
        self.heard = self.pinged = time.monotonic()
        super().onOpen()

    def onClose(self, wasClean: bool, code: int, reason: str) -> None:
        if self.guest is not None:
            self.guest.left()
        if self.throttle is not None:
            self.transport.unregisterProducer()
        super().onClose(wasClean, code, reason)

    def check_timeouts(self) -> None:
        """Ping a quiet client; drop one that answers no ping, or reads nothing."""
        if self.guest is None or self.state != self.STATE_OPEN:
            super().check_timeouts()
            return
        if self.guest.sent_away:
            return  # a client that has read its Shutdown reads nothing more until it calls again
        now = time.monotonic()
        factory = self.factory
        ping_every = factory.pong_within / 2
        patience = factory.pong_within_a_call if self.guest.suspended else factory.pong_within
        if now - self.heard > ping_every + patience:
            logger.info("a client answered no ping for %g s", patience)
            self.transport.abortConnection()
        elif self.throttle is not None and self.throttle.since and now - self.throttle.since > READ_WITHIN:
            logger.info("a client did not read for %g s", READ_WITHIN)
            self.transport.abortConnection()
        elif now - self.pinged > ping_every:
            self.pinged = now
            self.sendPing()


def unmask(data: bytes, at: int, size: int) -> bytes:
    """The payload of `size` bytes that begins after the 4 bytes of mask at `at`."""
    if size == 0:
        return b""
    mask = data[at : at + 4]
    whole = (mask * (size // 4 + 1))[:size]
    start = at + 4
    return (int.from_bytes(data[start : start + size], "little") ^ int.from_bytes(whole, "little")).to_bytes(
        size, "little"
    )


class MontyFactory(WebSocketFactory):  # type: ignore[misc]
    """Daphne's factory, making `MontyLink`s."""

    protocol = MontyLink
    pong_within = 10.0
    """Seconds that a client has to answer a ping."""
    pong_within_a_call = 300.0
    """The same while its host runs a function, which may be a synchronous one that keeps it from answering."""
