"""What this server reads from messages and writes into them. Everything else passes as it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Final

from google.protobuf.message import DecodeError

from sandboxes.wire import monty_pb2 as pb
from sandboxes.wire.fields import BYTES, ProtocolError, bytes_header, fields, read_varint
from sandboxes.wire.kinds import Event, Kind
from sandboxes.wire.scan import scan

DUMP: Final = bytes_header(Kind.DUMP, 0)
RESET: Final = bytes_header(Kind.RESET, 0)
OK: Final = bytes_header(Event.OK, 0)

_STATE: Final = 1
_EPHEMERAL: Final = 1
_SCRIPT_NAME: Final = 23
_SESSION_ID: Final = 28

_EVENT_BY_FIRST_BYTE: Final = {event << 3 | BYTES: event for event in Event}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a session may use; `None` is no limit. Times are in microseconds, memory in bytes."""

    memory_bytes: int | None = None
    gc_interval: int | None = None
    recursion_depth: int | None = None
    suspensions: int | None = None
    feed_us: int | None = None
    turn_us: int | None = None
    sleep_us: int | None = None

    def lower(self, other: Limits) -> Limits:
        """Limit by limit the lower of the two; one that only one of them sets is that one."""
        mine, theirs = asdict(self), asdict(other)
        return Limits(**{name: _lower(value, theirs[name]) for name, value in mine.items()})

    def without_memory(self) -> Limits:
        """The same without the memory limit: a state that is loaded brings its own."""
        return replace(self, memory_bytes=None)

    def to_dict(self) -> dict[str, int]:
        """The limits that are set, by name, for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> Limits:
        """The inverse of `to_dict`; names that it does not know are passed over."""
        return cls(**{name: values[name] for name in LIMIT_NAMES if name in values})


LIMIT_NAMES: Final = tuple(field.name for field in dataclass_fields(Limits))


def _lower(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A Configure as the client sent it, and as a worker gets it."""

    script_name: str
    type_check: bool
    ephemeral: bool
    profile: str
    limits: Limits
    received: bytes
    """The frame that it was read from, in which the rest of what the client set is kept."""

    @classmethod
    def read(cls, frame: bytes) -> Configuration:
        """Reads a Configure. Raises ProtocolError when the frame is none, or is malformed."""
        configure = _request(frame, Kind.CONFIGURE).configure
        limits = configure.limits
        return cls(
            script_name=configure.script_name,
            type_check=configure.type_check,
            ephemeral=configure.ephemeral == _EPHEMERAL,
            profile=configure.profile,
            limits=Limits(**{name: getattr(limits, name) for name in LIMIT_NAMES if limits.HasField(name)}),
            received=frame,
        )

    def clamped(self, ceiling: Limits) -> Configuration:
        """The same with each limit the lower of its own and the ceiling's."""
        return replace(self, limits=self.limits.lower(ceiling))

    def frame(self, limits: Limits | None = None) -> bytes:
        """The request for a worker, under `limits`, or its own when none are given.

        The flag `ephemeral` and the profile are for this server and are left out.
        """
        request = pb.Request.FromString(self.received)
        configure = request.configure
        configure.ClearField("ephemeral")
        configure.ClearField("profile")
        for name, value in asdict(self.limits if limits is None else limits).items():
            if value is not None:
                setattr(configure.limits, name, value)
            elif configure.HasField("limits"):
                configure.limits.ClearField(name)
        return request.SerializeToString()


def _request(frame: bytes, kind: Kind) -> pb.Request:
    found = scan(frame)
    if found is not kind:
        raise ProtocolError(f"the message is a {found.name}, not a {kind.name}")
    try:
        return pb.Request.FromString(frame)
    except DecodeError:
        raise ProtocolError(f"the {kind.name} in the message is malformed") from None


def load_id(frame: bytes) -> bytes:
    """The ID that a client's Load names. Raises ProtocolError when the frame is no Load, or is malformed."""
    return _request(frame, Kind.LOAD).load.state


def load_frame(dump: bytes | memoryview) -> bytes:
    """The Load of a dump, for a worker. The dump is copied once."""
    inner = bytes_header(_STATE, len(dump))
    return b"".join((bytes_header(Kind.LOAD, len(inner) + len(dump)), inner, dump))


def event_kind(event: bytes) -> Event:
    """The kind of an event, told by its first byte. Raises ProtocolError when it is none."""
    kind = _EVENT_BY_FIRST_BYTE.get(event[0]) if event else None
    if kind is None:
        raise ProtocolError("the worker sent something that is no event")
    return kind


def dump_state(event: bytes) -> bytes:
    """The state in a DumpResult, cut out without decoding it. Raises ProtocolError when there is none."""
    if event_kind(event) is not Event.DUMP_RESULT:
        raise ProtocolError("the worker's answer holds no dump")
    size, at = read_varint(event, 1)
    end = at + size
    if at < end <= len(event) and event[at] == bytes_header(_STATE, 0)[0]:
        length, at = read_varint(event, at + 1)
        if length and at + length == end:
            return event[at:end]
    raise ProtocolError("the worker's dump is malformed")


def with_session_id(event: bytes, session_id: bytes) -> bytes:
    """The event with that session ID in place of any other. Raises ProtocolError when it is malformed."""
    kept = [event[field.start : field.end] for field in fields(event) if field.number != _SESSION_ID]
    return b"".join((*kept, bytes_header(_SESSION_ID, len(session_id)), session_id))


def script_name(event: bytes) -> str | None:
    """The script name, which the reply to a Load tells. Raises ProtocolError when the event is malformed."""
    found = None
    for field in fields(event):
        if field.number == _SCRIPT_NAME and field.wire_type == BYTES:
            found = event[field.content : field.end].decode(errors="replace")
    return found


def words(event: bytes) -> str:
    """What an Error or a FatalError says; "" for any other event. Raises ProtocolError when malformed."""
    try:
        message = pb.Event.FromString(event)
    except DecodeError:
        raise ProtocolError("the worker sent a malformed event") from None
    return message.error.exception.message or message.fatal_error.message


def error(message: str) -> bytes:
    """An Error that the client's program sees as `MontyRuntimeError`; the session goes on."""
    exception = pb.Exception(type="RuntimeError", message=message)
    return pb.Event(error=pb.Error(exception=exception)).SerializeToString()


def fatal(message: str) -> bytes:
    """A FatalError that the client's program sees as `MontyCrashedError`; the session is over."""
    return pb.Event(fatal_error=pb.FatalError(message=message)).SerializeToString()


def shutdown(record_id: bytes | None) -> bytes:
    """A Shutdown that names what to load, or that there is nothing to load."""
    return pb.Event(shutdown=pb.Shutdown(dump=record_id)).SerializeToString()


def dump_result(record_id: bytes) -> bytes:
    """The answer to a client's Dump: to the client, a record's ID is the dump."""
    return pb.Event(dump_result=pb.DumpResult(state=record_id)).SerializeToString()
