"""The door's scan: agrees with protobuf about what it lets pass, and lets pass only what can be read in one way."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxes.wire.fields import ProtocolError, varint
from sandboxes.wire.kinds import Kind
from sandboxes.wire.scan import scan

FEED = bytes.fromhex("1a050a03783d31")
TRACE = b"\xa2\x01\x0700-abcd"


def every_kind():
    """A message class whose fields 1 to 11 are bytes: what protobuf makes of a request's top level."""
    file = descriptor_pb2.FileDescriptorProto(name="test_scan.proto", package="test_scan", syntax="proto3")
    message = file.message_type.add(name="Request")
    for kind in Kind:
        message.field.add(
            name=kind.name.lower(),
            number=kind,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
            proto3_optional=True,
            oneof_index=kind - 1,
        )
    for kind in Kind:
        message.oneof_decl.add(name=f"_{kind.name.lower()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test_scan.Request"))


Request = every_kind()


def padded(value: int, more: int) -> bytes:
    """A varint in `more` bytes more than it needs."""
    out = bytearray(varint(value))
    for _ in range(more):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


@st.composite
def pieces(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, bytes]:
    """The fields of a frame (number, wire type), the number of surplus bytes in its varints, and the frame."""
    numbers = st.one_of(st.integers(1, 11), st.integers(20, 40), st.integers(1, 1 << 29))
    layout = draw(st.lists(st.tuples(numbers, st.sampled_from([0, 1, 2, 2, 2, 5])), max_size=4))
    layout = [(min(number, (1 << 29) - 1), wire_type) for number, wire_type in layout]
    frame, surplus = b"", 0
    for number, wire_type in layout:
        more = draw(st.sampled_from([0, 0, 0, 0, 1]))
        surplus += more
        frame += padded(number << 3 | wire_type, more)
        if wire_type == 0:
            frame += varint(draw(st.integers(0, (1 << 64) - 1)))
        elif wire_type == 2:
            content = draw(st.binary(max_size=200))
            frame += varint(len(content)) + content
        else:
            frame += draw(st.binary(min_size=8, max_size=8) if wire_type == 1 else st.binary(min_size=4, max_size=4))
    return layout, surplus, frame


@given(pieces())
def test_lets_exactly_one_kind_pass(made):
    layout, surplus, frame = made
    low = [(number, wire_type) for number, wire_type in layout if number < 20]
    if surplus == 0 and len(low) == 1 and low[0][0] <= 11 and low[0][1] == 2:
        assert scan(frame) is Kind(low[0][0])
    else:
        with pytest.raises(ProtocolError):
            scan(frame)


def mutated() -> st.SearchStrategy[bytes]:
    """Frames that are nearly good: pieces of good ones, cut, repeated and altered."""
    part = st.sampled_from(
        [FEED, TRACE, b"\x3a\x00", b"\x42\x02\x0a\x00", b"\x62\x00", b"\x1a", b"\x80", b"\x00", b"\xff"]
    )
    joined = st.lists(st.one_of(part, st.binary(max_size=4)), max_size=5).map(b"".join)
    return st.one_of(joined, st.binary(max_size=40))


@given(mutated())
@example(FEED + FEED)
@example(FEED + TRACE)
def test_what_passes_protobuf_reads_the_same_way(frame):
    try:
        kind = scan(frame)
    except ProtocolError:
        return
    request = Request.FromString(frame)
    assert [field.number for field, _ in request.ListFields()] == [kind]
    assert all(field.field_number >= 20 for field in UnknownFieldSet(request))


@given(st.sampled_from(list(Kind)), st.binary(max_size=300), st.booleans())
def test_what_protobuf_writes_passes(kind, content, traced):
    frame = Request(**{kind.name.lower(): content}).SerializeToString() + (TRACE if traced else b"")
    assert scan(frame) is kind


@given(mutated())
def test_what_protobuf_cannot_read_never_passes(frame):
    try:
        Request.FromString(frame)
    except DecodeError:
        with pytest.raises(ProtocolError):
            scan(frame)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"", "holds no request"),
        (TRACE, "holds no request"),
        (FEED + b"\x42\x03\x0a\x01x", "more than one request"),
        (FEED + FEED, "more than one request"),
        (b"\x62\x00", "field 12, which is no kind"),
        (FEED + b"\x9a\x01\x00", "more than one request"),
        (b"\x18\x01", "not length-delimited"),
        (b"\x9a\x00\x00", "more bytes than it needs"),
        (b"\x1a\x80\x00", "more bytes than it needs"),
        (b"\x1a\x05\x0a", "cut short"),
        (b"\x1a", "cut short"),
        (FEED + b"\xa2", "cut short"),
        (FEED + b"\x02\x00", "impossible number 0"),
        (FEED + b"\xa3\x01\xa4\x01", "unknown wire type 3"),
        (FEED + b"\xa6\x01", "unknown wire type 6"),
        (FEED + b"\xa1\x01\x00\x00\x00\x00", "cut short"),
        (FEED + b"\xa0\x01" + b"\xff" * 9 + b"\x02", "larger than 64 bits"),
        (FEED + b"\xa0\x01" + b"\xff" * 11, "larger than 64 bits"),
        (FEED + b"\x80\x80\x80\x80\x10\x00", "impossible number"),
    ],
)
def test_says_what_is_wrong(frame, words):
    with pytest.raises(ProtocolError, match=words):
        scan(frame)


def test_a_kind_may_come_after_the_trace():
    assert scan(TRACE + FEED) is Kind.FEED


def test_does_not_copy_what_it_scans():
    """A frame of 60 MB is judged by its first bytes: a view that cannot be copied passes as well."""

    class Frame(bytes):
        def __getitem__(self, at):
            assert isinstance(at, int), "sliced"
            return super().__getitem__(at)

    assert scan(Frame(b"\x42" + varint(1_000_000) + bytes(1_000_000))) is Kind.LOAD
