"""What is read out of messages and written into them, and that all the rest stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.wire import messages
from sandboxes.wire import monty_pb2 as pb
from sandboxes.wire.fields import ProtocolError, bytes_header, fields, varint
from sandboxes.wire.kinds import Event, Kind
from sandboxes.wire.messages import LIMIT_NAMES, Configuration, Limits
from sandboxes.wire.scan import scan

# What `AsyncMontyWebsocket` of pydantic-monty 1.4.0 sends, with a memory limit of 64 MiB.
REAL_CONFIGURE = bytes.fromhex(
    "0a380a076d61696e2e7079120b108080802020e80728e8072a05312e342e30307838014806"
    "5a130a0022020a002a070a050880ade20432004a00"
)

numbers = st.one_of(st.none(), st.integers(0, (1 << 64) - 1))
limits = st.builds(Limits, **dict.fromkeys(LIMIT_NAMES, numbers))


def field(number: int, content: bytes) -> bytes:
    return bytes_header(number, len(content)) + content


def inside(frame: bytes) -> dict[int, list[bytes]]:
    """The fields of a Configure, as bytes, by number."""
    (configure,) = (frame[f.content : f.end] for f in fields(frame) if f.number == Kind.CONFIGURE)
    found: dict[int, list[bytes]] = {}
    for part in fields(configure):
        found.setdefault(part.number, []).append(configure[part.start : part.end])
    return found


class TestLimits:
    @given(limits, limits)
    def test_the_lower_of_two_never_exceeds_either(self, one, other):
        lower = one.lower(other)
        for name in LIMIT_NAMES:
            values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
            assert getattr(lower, name) == (min(values) if values else None)

    @given(limits)
    def test_survive_as_a_dict(self, some):
        assert Limits.from_dict(some.to_dict()) == some
        assert None not in some.to_dict().values()

    def test_pass_over_names_of_another_version(self):
        assert Limits.from_dict({"memory_bytes": 1, "colour": 2}) == Limits(memory_bytes=1)

    def test_without_memory(self):
        assert Limits(memory_bytes=1, feed_us=2).without_memory() == Limits(feed_us=2)


class TestConfiguration:
    def test_of_the_real_client(self):
        assert scan(REAL_CONFIGURE) is Kind.CONFIGURE
        read = Configuration.read(REAL_CONFIGURE)
        assert read.script_name == "main.py"
        assert not read.type_check
        assert not read.ephemeral
        assert read.limits == Limits(memory_bytes=64 << 20, recursion_depth=1000, suspensions=1000)

    @given(limits, st.text(), st.booleans(), st.booleans(), st.text())
    def test_reads_what_protobuf_writes(self, some, script_name, type_check, ephemeral, profile):
        configure = pb.Configure(
            script_name=script_name, type_check=type_check, ephemeral=int(ephemeral), profile=profile
        )
        configure.limits.CopyFrom(pb.Limits(**some.to_dict()))
        read = Configuration.read(pb.Request(configure=configure).SerializeToString())
        assert (read.script_name, read.type_check, read.ephemeral, read.profile) == (
            script_name,
            type_check,
            ephemeral,
            profile,
        )
        assert read.limits == some

    def test_the_frame_keeps_all_that_is_not_ours(self):
        extra = b"".join((field(4, b"stubs"), field(5, b"1.4.0"), b"\x30\x78", b"\x48\x06", field(11, b"\x0a\x00")))
        new = field(21, b"of a later version")
        ours = b"\x60\x01" + field(13, b"profile")
        trace = field(20, b"00-trace")
        frame = Configuration.read(field(1, field(1, b"a.py") + extra + ours + new) + trace).frame()
        assert inside(frame) == inside(field(1, field(1, b"a.py") + extra + new) + trace)
        assert frame.endswith(trace)

    def test_the_frame_carries_the_limits_that_it_is_given(self):
        read = Configuration.read(REAL_CONFIGURE)
        assert Configuration.read(read.frame()).limits == read.limits
        assert Configuration.read(read.frame(Limits(turn_us=7))).limits == Limits(turn_us=7)

    @given(limits, limits)
    def test_clamped_by_a_ceiling(self, asked, ceiling):
        configure = pb.Configure(script_name="a.py")
        configure.limits.CopyFrom(pb.Limits(**asked.to_dict()))
        clamped = Configuration.read(pb.Request(configure=configure).SerializeToString()).clamped(ceiling)
        assert Configuration.read(clamped.frame()).limits == asked.lower(ceiling)

    def test_limits_sent_twice_are_clamped_after_they_are_merged(self):
        twice = field(2, b"\x10" + varint(1)) + field(2, b"\x10" + varint(1 << 60))
        clamped = Configuration.read(field(1, twice)).clamped(Limits(memory_bytes=1 << 20))
        assert inside(clamped.frame()) == {2: [field(2, b"\x10" + varint(1 << 20))]}

    def test_malformed(self):
        for bad in (field(1, b"\x0a\x05ab"), field(1, field(1, b"\xff")), field(3, b""), b"", field(1, b"") * 2):
            with pytest.raises(ProtocolError):
                Configuration.read(bad)


class TestLoad:
    @given(st.binary(max_size=300))
    def test_carries_bytes_there_and_back(self, state):
        frame = messages.load_frame(state)
        assert messages.load_id(frame) == state
        assert pb.Request.FromString(frame).load.state == state
        assert messages.load_frame(memoryview(state)) == frame

    def test_a_load_without_an_id(self):
        assert messages.load_id(field(8, b"")) == b""

    def test_malformed(self):
        for bad in (field(8, b"\x0a\x05ab"), field(1, b""), b"\x42"):
            with pytest.raises(ProtocolError):
                messages.load_id(bad)

    def test_the_requests_without_content(self):
        assert scan(messages.DUMP) is Kind.DUMP
        assert scan(messages.RESET) is Kind.RESET


class TestDumpState:
    @given(st.binary(min_size=1, max_size=300), st.booleans())
    def test_is_what_protobuf_reads(self, state, with_time):
        event = pb.Event(dump_result=pb.DumpResult(state=state), execution_us=5 if with_time else None)
        assert messages.dump_state(event.SerializeToString()) == state

    @pytest.mark.parametrize(
        "event",
        [
            b"",
            b"\x52\x00",  # Ok
            b"\x4a\x00",  # no state
            b"\x4a\x02\x0a\x00",  # an empty one
            b"\x4a\x04\x0a\x05abc",  # longer than its message
            b"\x4a\x09\x0a\x02ab",  # the message longer than the event
            b"\x4a\x06\x0a\x02ab\x10\x01",  # something after it
            b"\x4a\x03\x12\x01a",  # another field
            b"\x4a",
        ],
    )
    def test_malformed(self, event):
        with pytest.raises(ProtocolError):
            messages.dump_state(event)


class TestEvents:
    def test_kinds(self):
        for kind in Event:
            assert messages.event_kind(field(kind, b"")) is kind
        for bad in (b"", b"\x6a\x00", b"\x02", b"\xff", b"\x50\x01"):
            with pytest.raises(ProtocolError):
                messages.event_kind(bad)

    @given(st.binary(max_size=40), st.lists(st.binary(max_size=5), max_size=2), st.integers(0, 1 << 40))
    def test_a_session_id_replaces_any_other(self, session_id, others, time):
        event = field(Event.OK, b"") + b"".join(field(28, other) for other in others) + b"\xa0\x01" + varint(time)
        out = messages.with_session_id(event, session_id)
        assert pb.Event.FromString(out).session_id == session_id
        assert [f.number for f in fields(out)] == [Event.OK, 20, 28]
        assert pb.Event.FromString(out).execution_us == time

    def test_a_script_name(self):
        told = field(Event.OK, b"") + pb.Event(execution_us=300, script_name="päge.py").SerializeToString()
        assert messages.script_name(told) == "päge.py"
        assert messages.script_name(field(Event.OK, b"")) is None

    def test_our_own(self):
        assert messages.words(messages.error("no quota")) == "no quota"
        assert messages.event_kind(messages.error("no quota")) is Event.ERROR
        assert messages.words(messages.fatal("gone")) == "gone"
        assert messages.event_kind(messages.fatal("gone")) is Event.FATAL_ERROR
        assert messages.words(messages.OK) == ""
        assert messages.event_kind(messages.OK) is Event.OK
        assert messages.dump_state(messages.dump_result(b"id")) == b"id"
        assert pb.Event.FromString(messages.shutdown(b"id")).shutdown.dump == b"id"
        empty = pb.Event.FromString(messages.shutdown(None))
        assert empty.HasField("shutdown")
        assert not empty.shutdown.HasField("dump")

    def test_malformed_words(self):
        with pytest.raises(ProtocolError):
            messages.words(b"\x3a\x05")


@pytest.mark.parametrize(("sent", "ephemeral"), [(None, False), (1, True), (2, False)])
def test_only_the_first_of_the_clients_two_answers_means_ephemeral(sent, ephemeral):
    # Client 1.4.0 sends nothing, 1 for `ephemeral=True` and 2 for `ephemeral=False`.
    configure = pb.Configure(script_name="main.py")
    if sent is not None:
        configure.ephemeral = sent
    assert Configuration.read(pb.Request(configure=configure).SerializeToString()).ephemeral is ephemeral
