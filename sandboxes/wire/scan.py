"""The door: what a client sends is looked at here before anything else sees it.

Protobuf lets the last of two kinds win, so that a frame which looks like one request could carry another.
Only frames that can be read in one way pass.
"""

from __future__ import annotations

from typing import Final

from sandboxes.wire.fields import BYTES, ProtocolError, fields
from sandboxes.wire.kinds import Kind

_FIRST_OPEN_FIELD: Final = 20
"""Fields from here on are no kinds (20 is the trace parent) and pass as they came."""

_KIND_BY_FIRST_BYTE: Final = tuple(
    Kind(key >> 3) if key & 7 == BYTES and key >> 3 in list(Kind) else None for key in range(256)
)


def scan(frame: bytes) -> Kind:
    """The kind of a request.

    Raises ProtocolError unless the frame is well-formed at its top level and holds exactly one kind, once,
    with no other field below 20.
    """
    # Most frames are one short field, for which the loop below would take ten times as long.
    if len(frame) > 1 and frame[1] == len(frame) - 2 and frame[1] < 0x80:
        only = _KIND_BY_FIRST_BYTE[frame[0]]
        if only is not None:
            return only

    found: Kind | None = None
    for field in fields(frame):
        if field.number >= _FIRST_OPEN_FIELD:
            continue
        if found is not None:
            raise ProtocolError("the message holds more than one request")
        if field.number > Kind.ABORT_FEED:
            raise ProtocolError(f"the message has the field {field.number}, which is no kind of request")
        if field.wire_type != BYTES:
            raise ProtocolError(f"the request in field {field.number} is not length-delimited")
        found = Kind(field.number)
    if found is None:
        raise ProtocolError("the message holds no request")
    return found
