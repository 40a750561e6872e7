"""Messages come out of the stream whole and in order, however it was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.wire.fields import ProtocolError
from sandboxes.wire.framing import Deframer, length


@given(st.lists(st.binary(max_size=70), max_size=8), st.lists(st.integers(1, 40), max_size=60))
def test_any_cut_gives_the_same_messages(messages, cuts):
    stream = b"".join(length(message) + message for message in messages)
    deframer, found, at = Deframer(70), [], 0
    for cut in cuts:
        found += deframer.feed(stream[at : at + cut])
        at += cut
    found += deframer.feed(stream[at:])
    assert found == messages


def test_a_message_is_given_as_soon_as_it_is_whole():
    deframer = Deframer(10)
    assert deframer.feed(b"\x02\x00\x00\x00a") == []
    assert deframer.feed(b"b\x01\x00\x00") == [b"ab"]
    assert deframer.feed(b"\x00c") == [b"c"]


def test_too_large_a_message_is_refused_at_its_announcement():
    with pytest.raises(ProtocolError, match="11 bytes is larger than the limit of 10"):
        Deframer(10).feed(b"\x0b\x00\x00\x00")


def test_a_long_message_is_put_together_once():
    pieces = [bytes(1000) for _ in range(1000)]
    deframer = Deframer(1_000_000)
    assert deframer.feed(length(bytes(1_000_000))) == []
    for piece in pieces[:-1]:
        assert deframer.feed(piece) == []
    assert all(kept is piece for kept, piece in zip(deframer._pieces[1:], pieces[:-1], strict=True))
    assert deframer.feed(pieces[-1]) == [bytes(1_000_000)]
