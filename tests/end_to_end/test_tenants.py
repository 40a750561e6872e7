"""Nothing is visible across projects, and whatever a key may not have looks the same as what never was."""

from __future__ import annotations

import secrets

import pytest
from pydantic_monty import AsyncMonty, AsyncMontyWebsocket, MontyRuntimeError

from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import Moorage
from tests.end_to_end.waiting import until


@pytest.fixture(scope="module")
def server(launch: Launch) -> Moorage:
    """A server for these tests."""
    return launch("tenants")


async def saved(pool: AsyncMontyWebsocket, value: int) -> tuple[bytes, bytes]:
    """A snapshot that holds `value`, and the ID of the session that made it."""
    async with pool.checkout() as session:
        await session.feed_run(f"secret = {value}")
        kept = await session.dump()
        assert session.session_id is not None
        return kept, session.session_id


async def refusal(pool: AsyncMontyWebsocket, state: bytes) -> str:
    """What loading this says."""
    async with pool.checkout() as session:
        with pytest.raises(MontyRuntimeError) as caught:
            await session.load_session(state)
        assert await session.feed_run("'on'") == "on"
        return caught.value.display()


async def test_all_that_cannot_be_loaded_looks_the_same(server: Moorage) -> None:
    async with AsyncMonty() as local, local.checkout() as session:
        await session.feed_run("secret = 0")
        a_raw_dump = await session.dump()
    async with server.client("main") as mine, server.client("other") as others:
        theirs, their_session = await saved(others, 1)
        expired, _ = await saved(mine, 2)
        deleted, _ = await saved(mine, 3)
        good, _ = await saved(mine, 4)
        assert server.delete("main", deleted)["count"] == 1
        server.sql("UPDATE snapshots_record SET expires = '2020-01-01' WHERE id = ?", [expired.hex()])

        said = {
            name: await refusal(mine, state)
            for name, state in {
                "another project's": theirs,
                "another project's session": their_session,
                "expired": expired,
                "deleted": deleted,
                "random": secrets.token_bytes(len(good)),
                "of no length": b"",
                "a raw dump": a_raw_dump,
                "one bit off": bytes([good[0] ^ 1]) + good[1:],
            }.items()
        }
        assert len(set(said.values())) == 1, said
        assert "unknown session" in said["random"]

        for pool, state, value in ((others, theirs, 1), (mine, good, 4)):
            async with pool.checkout() as session:
                await session.load_session(state)
                assert await session.feed_run("secret") == value


async def test_the_session_of_another_project_while_it_is_connected(server: Moorage) -> None:
    async with server.client("main") as mine, server.client("other") as others, others.checkout() as session:
        await session.feed_run("secret = 1")
        assert session.session_id is not None
        assert "unknown session" in await refusal(mine, session.session_id)


async def test_nothing_is_logged_of_a_key_but_its_prefix(server: Moorage) -> None:
    for name in ("revoked", "expired"):
        async with server.client(name) as pool:
            with pytest.raises(RuntimeError, match="403"):
                async with pool.checkout():
                    pass
        assert server.keys[name][:8] in server.tail(10**7)
    log = server.tail(10**7)
    assert not [name for name, secret in server.keys.items() if secret in log]


@pytest.mark.parametrize("key", ["revoked", "expired", "disabled", "mrg_nonsense", "", "not a key", "mrg_" + "A" * 46])
async def test_a_key_that_opens_nothing(server: Moorage, key: str) -> None:
    async with server.client(key) as pool:
        with pytest.raises(RuntimeError, match="403"):
            async with pool.checkout():
                pass


async def test_no_key_at_all(server: Moorage) -> None:
    async with AsyncMontyWebsocket(server.url) as pool:
        with pytest.raises(RuntimeError, match="403"):
            async with pool.checkout():
                pass


async def test_a_key_without_the_scope(server: Moorage) -> None:
    async with server.client("reader") as pool:
        with pytest.raises(MontyRuntimeError, match="project:execute_agent_sandboxes"):
            async with pool.checkout():
                pass


async def test_a_key_that_is_revoked_meanwhile(server: Moorage) -> None:
    async with server.client("leaver") as pool, pool.checkout() as session:
        await session.feed_run("kept = 'kept'")
        own = session.session_id
        assert own is not None
        server.command("revokekey", server.keys["leaver"][:8], "--name", "to be revoked")
        await until(lambda: not server.status()["sessions"], "its session closed")
        with pytest.raises(Exception, match=r".") as caught:
            await session.feed_run("kept")
        assert type(caught.value).__name__ in ("MontyDisconnectError", "MontyShutdown", "MontyCrashedError")
    async with server.client("main") as pool, pool.checkout() as session:
        await session.load_session(own)
        assert await session.feed_run("kept") == "kept"
