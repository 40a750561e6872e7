"""The top level of a protobuf message, read strictly and without looking into what it holds.

Strict means: canonical varints, the four wire types that protocol 3 uses, nothing cut short. Two parsers that
differ about a message are a way past the door, so what could be read in two ways is refused.
Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}
_LARGEST_KEY: Final = (1 << 32) - 1
_LARGEST_VARINT: Final = (1 << 64) - 1


class ProtocolError(Exception):
    """A message that breaks the protocol; `str()` of it says how, in words for the sender."""


class Field(NamedTuple):
    """One field at the top level: the whole of it is `data[start:end]`, its content `data[content:end]`."""

    number: int
    wire_type: int
    start: int
    content: int
    end: int


def varint(value: int) -> bytes:
    """The canonical encoding of a number from 0 to 2**64 - 1."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_header(number: int, size: int) -> bytes:
    """What stands before the `size` bytes of a length-delimited field."""
    return varint(number << 3 | BYTES) + varint(size)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The varint at an offset and the offset after it.

    Raises ProtocolError when it is cut short, longer than it need be, or larger than 64 bits.
    """
    value = shift = 0
    size = len(data)
    while at < size and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise ProtocolError("a number in the message is encoded in more bytes than it needs")
            if value > _LARGEST_VARINT:
                raise ProtocolError("a number in the message is larger than 64 bits")
            return value, at
        shift += 7
    if shift >= 70:
        raise ProtocolError("a number in the message is larger than 64 bits")
    raise ProtocolError("the message is cut short")


def fields(data: bytes | memoryview) -> Iterator[Field]:
    """The fields of a message's top level in their order.

    Raises ProtocolError at the first thing that is not well-formed.
    """
    at = 0
    size = len(data)
    while at < size:
        start = at
        key, at = read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        if number == 0 or key > _LARGEST_KEY:
            raise ProtocolError(f"the message has a field with the impossible number {number}")
        content = at
        if wire_type == VARINT:
            _, at = read_varint(data, at)
        elif wire_type == BYTES:
            length, content = read_varint(data, at)
            at = content + length
        elif wire_type in _FIXED_SIZES:
            at += _FIXED_SIZES[wire_type]
        else:
            raise ProtocolError(f"field {number} of the message has the unknown wire type {wire_type}")
        if at > size:
            raise ProtocolError("the message is cut short")
        yield Field(number, wire_type, start, content, at)
