"""Requests for a worker, as a client of protocol version 6 writes them."""

from __future__ import annotations

from sandboxes.wire.fields import bytes_header, varint
from sandboxes.wire.kinds import Kind

MIB = 1 << 20


def field(number: int, content: bytes) -> bytes:
    return bytes_header(number, len(content)) + content


def number(at: int, value: int) -> bytes:
    return varint(at << 3) + varint(value)


def configure(memory_bytes: int | None = None, *, version: int = 6) -> bytes:
    limits = b"" if memory_bytes is None else field(2, number(2, memory_bytes))
    return field(Kind.CONFIGURE, field(1, b"main.py") + limits + number(9, version))


def feed(code: str) -> bytes:
    return field(Kind.FEED, field(1, code.encode()) + field(3, b"") + field(5, b"/"))
