"""The connection: what is taken past autobahn reads and writes the same bytes as autobahn would."""

from __future__ import annotations

import inspect
import os
import struct
from importlib.metadata import version
from typing import ClassVar

import pytest
from autobahn.websocket.protocol import WebSocketProtocol
from daphne import server as _reactor  # noqa: F401  (installs the reactor that the others need)

from sandboxes.link import MontyFactory, MontyLink, plain, take_colours_away, unmask


def masked(payload: bytes, mask: bytes) -> bytes:
    """As RFC 6455 has it, octet by octet."""
    return bytes(octet ^ mask[at % 4] for at, octet in enumerate(payload))


def test_what_is_overridden_is_what_was_read() -> None:
    assert version("daphne").startswith("4.2.")
    assert version("autobahn").startswith("26.")
    source = inspect.getsource(WebSocketProtocol)
    for name in ("self.data", "self.current_frame", "self.inside_message"):
        assert f"{name} = " in source, f"{name} is no longer what tells that a message is under way"
    assert MontyFactory.protocol is MontyLink


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 125, 126, 1000, 65_535])
def test_unmask(size: int) -> None:
    payload, mask = os.urandom(size), os.urandom(4)
    assert unmask(b"xx" + mask + masked(payload, mask), 2, size) == payload


class Transport:
    """A socket that takes a little at a time."""

    disconnecting = disconnected = False
    _tempDataBuffer: ClassVar[list[bytes]] = []

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.sent = b""
        self.dataBuffer = b""
        self.socket = self

    def send(self, data: bytes) -> int:
        if self.takes == 0:
            raise BlockingIOError
        self.sent += data[: self.takes]
        return min(len(data), self.takes)

    def write(self, data: bytes) -> None:
        self.dataBuffer += data


@pytest.mark.parametrize("takes", [0, 1, 7, 1 << 30])
@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536, 200_000])
def test_a_message_is_one_frame_whatever_the_socket_takes(size: int, takes: int) -> None:
    link = MontyLink()
    link.state = link.STATE_OPEN
    link.transport = Transport(takes)
    event = os.urandom(size)
    link.send(event)
    link.send(b"next")
    out = link.transport.sent + link.transport.dataBuffer
    assert out[0] == 0x82
    if size < 126:
        head, length = 2, out[1]
    elif size < 65_536:
        head, length = 4, struct.unpack("!H", out[2:4])[0]
    else:
        head, length = 10, struct.unpack("!Q", out[2:10])[0]
    assert length == size
    assert out[head : head + size] == event
    assert out[head + size :] == b"\x82\x04next"


def test_debug_colours_are_gone() -> None:
    import autobahn.websocket.protocol as protocol

    take_colours_away()
    assert protocol.hlval is plain
    assert protocol.hlval(5) == 5
