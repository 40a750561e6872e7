"""What is kept is sealed: an object that was read, changed, swapped or lost in storage never reaches a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_monty import AsyncMontyWebsocket, MontyRuntimeError

from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import Moorage
from tests.end_to_end.waiting import until


@pytest.fixture(scope="module")
def server(launch: Launch) -> Moorage:
    """A server that keeps nothing in memory."""
    return launch("sealing", STATE_CACHE=0, AUTOSAVE_EVERY=0)


async def snapshot(pool: AsyncMontyWebsocket, text: str) -> bytes:
    """A snapshot of a session that holds `text`."""
    async with pool.checkout() as session:
        await session.feed_run(f"text = {text!r}")
        return await session.dump()


def object_of(server: Moorage, record: bytes) -> Path:
    """The file in which a record's state is."""
    rows = server.sql(
        "SELECT b.key FROM snapshots_record r JOIN vault_blob b ON b.id = r.blob_id WHERE r.id = ?",
        [record.hex()],
    )
    (path,) = [path for path in server.storage.rglob("*") if path.is_file() and str(path).endswith(str(rows[0][0]))]
    return path


async def load(pool: AsyncMontyWebsocket, record: bytes) -> object:
    """The text that a record holds, or what loading it says."""
    async with pool.checkout() as session:
        try:
            await session.load_session(record)
        except MontyRuntimeError as error:
            assert await session.feed_run("1 + 1") == 2
            return error.display()
        return await session.feed_run("text")


async def test_an_object_cannot_be_read(server: Moorage) -> None:
    async with server.client() as pool:
        record = await snapshot(pool, "a secret sentence " * 10)
    sealed = object_of(server, record).read_bytes()
    assert b"secret" not in sealed
    assert b"MONTY" not in sealed
    assert record not in sealed
    for path in server.storage.rglob("*"):
        assert record.hex() not in path.name, "an object's name gives no ID away"


@pytest.mark.parametrize("damage", ["first", "middle", "last", "cut", "emptied", "longer", "lost", "nonsense"])
async def test_a_damaged_object(server: Moorage, damage: str) -> None:
    async with server.client() as pool:
        record = await snapshot(pool, "whole")
        path = object_of(server, record)
        whole = path.read_bytes()
        damaged = {
            "first": bytes([whole[0] ^ 1]) + whole[1:],
            "middle": whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 128]) + whole[len(whole) // 2 + 1 :],
            "last": whole[:-1] + bytes([whole[-1] ^ 1]),
            "cut": whole[:-5],
            "emptied": b"",
            "longer": whole + b"\0",
            "nonsense": b"nonsense" * 100,
        }
        if damage == "lost":
            path.unlink()
        else:
            path.write_bytes(damaged[damage])
        unknown = await load(pool, bytes(16))
        assert await load(pool, record) == unknown, "told as one that never was"
        path.write_bytes(whole)
        assert await load(pool, record) == "whole"


async def test_objects_that_were_swapped(server: Moorage) -> None:
    async with server.client() as pool, server.client("other") as others:
        first, second = await snapshot(pool, "first"), await snapshot(pool, "secnd")
        theirs = await snapshot(others, "other")
        paths = [object_of(server, record) for record in (first, second, theirs)]
        contents = [path.read_bytes() for path in paths]
        for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
            path.write_bytes(content)
        for reader, record in ((pool, first), (pool, second), (others, theirs)):
            assert "unknown session" in str(await load(reader, record))


async def test_an_older_save_of_a_session_put_back(server: Moorage) -> None:
    async with server.client() as pool:
        async with pool.checkout() as session:
            await session.feed_run("text = 'older'")
            own = session.session_id
            assert own is not None
            assert await load(pool, own) == "older"
            older = object_of(server, own).read_bytes()
            await session.feed_run("text = 'newer'")
            assert await load(pool, own) == "newer"
        await until(lambda: not server.status()["sessions"], "the session closed")
        object_of(server, own).write_bytes(older)
        assert "unknown session" in str(await load(pool, own))
