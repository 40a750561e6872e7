"""Whole messages out of a stream of bytes, and into one: on a worker's pipes each has its length before it."""

from __future__ import annotations

import struct
from typing import Final

from sandboxes.wire.fields import ProtocolError

_LENGTH: Final = struct.Struct("<I")

LARGEST_MESSAGE: Final = (1 << 32) - 1
"""What the four bytes of a length can say."""


def length(message: bytes) -> bytes:
    """What stands before a message in the stream. Raises ProtocolError when it is too long for it."""
    if len(message) > LARGEST_MESSAGE:
        raise ProtocolError(f"a message of {len(message)} bytes cannot be sent")
    return _LENGTH.pack(len(message))


class Deframer:
    """Takes bytes as they come and gives whole messages. A message in many pieces is put together once, at its end."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._head = b""
        self._pieces: list[bytes] = []
        self._missing = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete, in order.

        Raises ProtocolError when a message is announced that is larger than `largest` bytes.
        """
        if self._head:
            data = self._head + data
            self._head = b""
        whole: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if not self._missing:
                if end - at < _LENGTH.size:
                    self._head = data[at:]
                    break
                (self._missing,) = _LENGTH.unpack_from(data, at)
                at += _LENGTH.size
                if self._missing > self._largest:
                    raise ProtocolError(
                        f"a message of {self._missing} bytes is larger than the limit of {self._largest}"
                    )
            piece = data[at : at + self._missing]
            at += len(piece)
            self._missing -= len(piece)
            if self._missing:
                self._pieces.append(piece)
            elif self._pieces:
                whole.append(b"".join((*self._pieces, piece)))
                self._pieces = []
            else:
                whole.append(piece)
        return whole
