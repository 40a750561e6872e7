"""What Moorage is for, as its users do it: go away and pick up again, roll back, fork, keep nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from pydantic_monty import (
    AsyncMonty,
    AsyncMontyWebsocket,
    CollectStreams,
    MontyComplete,
    MontyCrashedError,
    MontyRuntimeError,
)

from tests.end_to_end.conftest import Launch
from tests.end_to_end.harness import CHECKOUT, Moorage
from tests.end_to_end.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def server(launch: Launch) -> Moorage:
    """A server with the settings that it has by itself."""
    return launch("acceptance")


LATER = """
import asyncio, sys
import logfire

logfire.configure()

async def main():
    async with logfire.agent_sandboxes() as pool:
        async with pool.checkout() as session:
            await session.load_session(bytes.fromhex(sys.argv[1]))
            print(await session.feed_run("total + 2"))
            print(session.session_id.hex())

asyncio.run(main())
"""


async def test_another_process_picks_up_later(server: Moorage) -> None:
    async with server.client() as pool, pool.checkout() as session:
        await session.feed_run("total = 40")
        kept = await session.dump()
        own = session.session_id
    assert len(kept) >= 16
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        LATER,
        kept.hex(),
        env={
            **server.env,
            "LOGFIRE_BASE_URL": server.http,
            "LOGFIRE_API_KEY": server.keys["main"],
            "LOGFIRE_SEND_TO_LOGFIRE": "false",
        },
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, said = await asyncio.wait_for(process.communicate(), 2 * PATIENCE)
    lines = printed.decode().splitlines()  # not its exit code: the client may abort once all its work is done
    assert lines[:1] == ["42"], said.decode()
    assert bytes.fromhex(lines[1]) not in (kept, own)


async def test_a_closed_session_is_loaded_by_its_own_id(server: Moorage) -> None:
    async with server.client() as pool:
        async with pool.checkout(script_name="agent.py") as session:
            await session.feed_run("seen = [1]")
            await session.feed_run("seen.append(2)")
            own = session.session_id
        assert own is not None
        found = await load_soon(pool, own, "seen, __file__")
    assert found == ([1, 2], "/agent.py")


async def load_soon(pool: AsyncMontyWebsocket, session_id: bytes, code: str) -> object:
    """What `code` gives in the session of this ID, once it is saved: the save after a close takes a moment."""
    ends = asyncio.get_running_loop().time() + PATIENCE
    while True:
        async with pool.checkout() as session:
            try:
                await session.load_session(session_id)
            except MontyRuntimeError as error:
                assert "unknown session" in str(error)
                assert asyncio.get_running_loop().time() < ends
                await asyncio.sleep(0.05)
            else:
                return await session.feed_run(code)


async def test_a_connected_session_is_loaded_as_it_is(server: Moorage) -> None:
    async with server.client() as pool, pool.checkout() as first:
        await first.feed_run("n = 1")
        await first.feed_run("n += 1")
        assert first.session_id is not None
        async with pool.checkout() as second:
            await second.load_session(first.session_id)
            assert await second.feed_run("n") == 2
            await second.feed_run("n = 100")
        assert await first.feed_run("n") == 2


async def test_roll_back_and_fork(server: Moorage) -> None:
    async with server.client() as pool:
        async with pool.checkout() as session:
            await session.feed_run("items = [1, 2, 3]")
            base = await session.dump()
            await session.feed_run("items.clear()")
            emptied = await session.dump()

        async def branch(name: str) -> tuple[object, bytes | None]:
            async with pool.checkout() as fork:
                await fork.load_session(base)
                await fork.feed_run(f"items.append({name!r})")
                return await fork.feed_run("items"), fork.session_id

        branches = await asyncio.gather(*map(branch, "abc"))
        assert [items for items, _ in branches] == [[1, 2, 3, name] for name in "abc"]
        assert len({own for _, own in branches} | {None}) == 4, "each has an ID of its own"
        for state, items in ((base, [1, 2, 3]), (emptied, []), (base, [1, 2, 3])):
            async with pool.checkout() as session:
                await session.load_session(state)
                assert await session.feed_run("items") == items


async def test_lineage_is_kept(server: Moorage) -> None:
    async with server.client() as pool:
        async with pool.checkout() as session:
            await session.feed_run("x = 1")
            first = await session.dump()
        async with pool.checkout() as session:
            await session.load_session(first)
            second = await session.dump()
    assert server.sql("SELECT parent FROM snapshots_record WHERE id = ?", [second.hex()]) == [(first.hex(),)]


async def test_an_ephemeral_session_leaves_nothing(server: Moorage) -> None:
    await until(lambda: not server.status()["sessions"], "the sessions before it closed")
    before = server.sql("SELECT count(*) FROM snapshots_record")
    async with server.client() as pool:
        async with pool.checkout(ephemeral=True) as session:
            await session.feed_run("secret = 42")
            assert session.session_id is None
            with pytest.raises(MontyRuntimeError, match="this session is ephemeral, so it cannot be dumped"):
                await session.dump()
            assert await session.feed_run("secret") == 42
        await until(lambda: not server.status()["sessions"], "the session closed")
    assert server.sql("SELECT count(*) FROM snapshots_record") == before


async def test_an_ephemeral_session_may_load(server: Moorage) -> None:
    async with server.client() as pool:
        async with pool.checkout() as session:
            await session.feed_run("x = 5")
            kept = await session.dump()
        async with pool.checkout(ephemeral=True) as session:
            await session.load_session(kept)
            assert await session.feed_run("x + 1") == 6
            assert session.session_id is None


async def test_what_is_no_id_is_an_unknown_session(server: Moorage) -> None:
    async with AsyncMonty() as local, local.checkout() as session:
        await session.feed_run("planted = True")
        forged = await session.dump()
    async with server.client() as pool:
        for state in (bytes(16), b"", b"short", forged, bytes(1000)):
            async with pool.checkout() as session:
                with pytest.raises(MontyRuntimeError, match="unknown session"):
                    await session.load_session(state)
                assert await session.feed_run("1 + 1") == 2
                with pytest.raises(MontyRuntimeError, match="NameError"):
                    await session.feed_run("raise NameError('NameError') if 'x' else planted")


async def test_suspended_in_a_call(server: Moorage) -> None:
    async with server.client() as pool:
        async with pool.checkout() as session:
            paused = await session.feed_start("fetch(3) + 1")
            kept = await asyncio.to_thread(paused.dump)
            done = await paused.resume({"return_value": 30})
            assert isinstance(done, MontyComplete)
            assert done.output == 31
        for answer in (300, 400):
            async with pool.checkout() as session:
                again = await session.load_snapshot(kept)
                assert (again.function_name, again.args) == ("fetch", (3,))
                done = await again.resume({"return_value": answer})
                assert done.output == answer + 1


async def test_a_client_that_leaves_within_a_call(server: Moorage) -> None:
    async with server.client() as pool:
        async with pool.checkout() as session:
            paused = await session.feed_start("x = fetch(1)\nx * 2")
            assert paused.function_name == "fetch"
            own = session.session_id
        assert own is not None
        ends = asyncio.get_running_loop().time() + PATIENCE
        while True:
            async with pool.checkout() as session:
                try:
                    again = await session.load_snapshot(own)
                except MontyRuntimeError:
                    assert asyncio.get_running_loop().time() < ends
                    await asyncio.sleep(0.05)
                    continue
                assert (await again.resume({"return_value": 21})).output == 42
                return


async def test_host_functions_and_output(server: Moorage) -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(0.01)
        return n * 2

    def price(sku: str) -> int:
        raise ValueError("no such sku")

    output = CollectStreams()
    async with server.client() as pool, pool.checkout(limits={"max_feed_duration_secs": 5}) as session:
        await session.feed_run("import sys\nprint('a')\nprint('b', file=sys.stderr)", print_callback=output)
        assert [stream for stream, _ in output.output] == ["stdout", "stderr"]
        code = "import asyncio\nawait asyncio.gather(double(1), double(2), double(3))"
        assert await session.feed_run(code, external_lookup={"double": double}) == [2, 4, 6]
        with pytest.raises(MontyRuntimeError) as caught:
            await session.feed_run("price('x')", external_lookup={"price": price})
        assert caught.value.display("type-msg") == "ValueError: no such sku"
        assert await session.feed_run("'still here'") == "still here"


async def test_a_profile_changes_nothing_yet(server: Moorage) -> None:
    async with server.client() as pool, pool.checkout(profile="large", ephemeral=False) as session:
        assert await session.feed_run("1 + 1") == 2
        assert session.session_id


async def test_the_projects_ceiling_holds(server: Moorage) -> None:
    async with server.client("small") as pool:
        async with pool.checkout() as session:
            with pytest.raises(MontyRuntimeError, match="memory limit exceeded"):
                await session.feed_run("x = 'x' * 100_000_000")
        async with pool.checkout(limits={"max_memory": 10**9}) as session:
            with pytest.raises(MontyRuntimeError, match="memory limit exceeded"):
                await session.feed_run("x = 'x' * 100_000_000")
        async with pool.checkout(limits={"max_memory": 2_000_000}) as session:
            with pytest.raises(MontyRuntimeError, match="memory limit exceeded"):
                await session.feed_run("x = 'x' * 3_000_000")


async def test_a_feed_may_take_what_its_project_allows(server: Moorage) -> None:
    async with server.client("quick") as pool, pool.checkout() as session:
        with pytest.raises((MontyRuntimeError, MontyCrashedError)):
            await session.feed_run("while True:\n    pass")
