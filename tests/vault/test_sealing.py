"""Sealed bytes open under the very context they were sealed under, whole and unchanged, or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from vault import sealing
from vault.sealing import Context, Unsealable, key_id_of, seal, unseal

CONTEXT = Context(7, b"\x01" * 16, "session", 3)
DATA = b"state " * 1000
DIGEST = hashlib.sha256(DATA).digest()


def opened(sealed: bytes, context: Context = CONTEXT) -> bytes:
    return unseal(sealed, context, size=len(DATA), sha256=DIGEST)


@given(st.binary(max_size=5000))
def test_what_is_sealed_opens(data: bytes) -> None:
    sealed = seal(data, CONTEXT)
    assert unseal(sealed, CONTEXT, size=len(data), sha256=hashlib.sha256(data).digest()) == data


def test_it_is_compressed_and_unreadable() -> None:
    sealed = seal(DATA, CONTEXT)
    assert len(sealed) < len(DATA) / 4
    assert b"state" not in sealed


def test_twice_the_same_is_sealed_differently() -> None:
    assert seal(DATA, CONTEXT) != seal(DATA, CONTEXT)


def test_every_flipped_bit_is_found() -> None:
    sealed = seal(DATA, CONTEXT)
    for at in range(len(sealed)):
        with pytest.raises(Unsealable):
            opened(sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :])


def test_every_truncation_is_found() -> None:
    sealed = seal(DATA, CONTEXT)
    for size in range(len(sealed)):
        with pytest.raises(Unsealable):
            opened(sealed[:size])
    with pytest.raises(Unsealable):
        opened(sealed + b"\0")


@pytest.mark.parametrize(
    "other",
    [
        replace(CONTEXT, tenant=8),
        replace(CONTEXT, name=b"\x02" * 16),
        replace(CONTEXT, kind="snapshot"),
        replace(CONTEXT, generation=2),
        replace(CONTEXT, name=CONTEXT.name + b"s", kind="ession"),
    ],
)
def test_another_context_does_not_open_it(other: Context) -> None:
    with pytest.raises(Unsealable, match="belongs to another"):
        opened(seal(DATA, CONTEXT), other)


def test_another_state_of_the_same_record_is_found() -> None:
    with pytest.raises(Unsealable, match="digest"):
        unseal(seal(DATA, CONTEXT), CONTEXT, size=len(DATA), sha256=hashlib.sha256(b"newer").digest())


def test_what_unpacks_to_more_than_the_row_says_is_refused() -> None:
    bomb = seal(bytes(10_000_000), CONTEXT)
    with pytest.raises(Unsealable, match="unpacks to 10000000 bytes"):
        unseal(bomb, CONTEXT, size=1000, sha256=DIGEST)


def test_a_size_that_the_frame_lies_about_is_refused() -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10_000_000))
    with pytest.raises(Unsealable):
        sealing._unpack(packed, 1000)


def test_a_rotated_key_still_opens_and_a_removed_one_does_not(settings: Any) -> None:
    old = dict(settings.VAULT_KEYS)
    sealed = seal(DATA, CONTEXT)
    settings.VAULT_KEYS = {"newer": b"\x05" * 32, **old}
    assert opened(sealed) == DATA
    assert key_id_of(seal(DATA, CONTEXT)) == "newer"
    settings.VAULT_KEYS = {"newer": b"\x05" * 32}
    with pytest.raises(Unsealable, match="not in VAULT_KEYS"):
        opened(sealed)


def test_a_key_of_the_same_name_with_other_bytes_does_not_open(settings: Any) -> None:
    sealed = seal(DATA, CONTEXT)
    settings.VAULT_KEYS = dict.fromkeys(settings.VAULT_KEYS, b"\x06" * 32)
    with pytest.raises(Unsealable):
        opened(sealed)
