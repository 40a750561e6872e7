"""Clients that dump, park, come and go, and remember every promise that they were given."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from pydantic_monty import AsyncMontySession, AsyncMontyWebsocket, MontyRuntimeError

from tests.end_to_end.harness import Moorage


@dataclass
class Promises:
    """What a server has acknowledged."""

    snapshots: dict[bytes, list[object]] = field(default_factory=dict)
    """The state of each snapshot by its ID."""
    sessions: dict[bytes, list[list[object]]] = field(default_factory=dict)
    """Every state that a session was in, oldest first, by its own ID."""
    witnessed: dict[bytes, int] = field(default_factory=dict)
    """How many of them were there when somebody else had loaded that one: its save was complete."""


class Traffic:
    """Clients of one server, until it dies or they are told to stop."""

    def __init__(self, server: Moorage, promises: Promises, seed: int, *, clients: int = 8) -> None:
        self._server = server
        self._promises = promises
        self._random = random.Random(seed)
        self._clients = clients
        self._stopped = False
        self.died = asyncio.Event()
        """A client has lost its server."""

    def stop(self) -> None:
        """Every client ends after its present step."""
        self._stopped = True

    async def run(self) -> None:
        """Until stopped or until the server is gone."""
        async with self._server.client() as pool:
            await asyncio.gather(*(self._client(pool, n) for n in range(self._clients)))

    async def _client(self, pool: AsyncMontyWebsocket, name: int) -> None:
        while not self._stopped and not self.died.is_set():
            try:
                async with pool.checkout() as session:
                    await self._session(pool, session, name)
            except MontyRuntimeError as error:
                if "server at capacity" not in str(error):
                    raise
            except (RuntimeError, Exception) as error:
                if type(error).__name__ == "AssertionError" or not self._gone():
                    raise
                self.died.set()

    def _gone(self) -> bool:
        """Whether the server is dead, or dying: then any error of a client is its natural end."""
        return self._server.ended() is not None or self._server.health() == 0 or self._stopped

    async def _session(self, pool: AsyncMontyWebsocket, session: AsyncMontySession, name: int) -> None:
        own = session.session_id
        assert own is not None
        state: list[object] = [name, self._random.randrange(10**9)]
        states = self._promises.sessions.setdefault(own, [])
        states.append(list(state))
        await session.feed_run(f"state = {state!r}\nballast = list(range({self._random.choice([10, 1000, 20_000])}))")
        for _ in range(self._random.randrange(1, 8)):
            if self._stopped or self.died.is_set():
                return
            what = self._random.random()
            if what < 0.45:
                item = self._random.randrange(1000)
                state.append(item)
                states.append(list(state))
                await session.feed_run(f"state.append({item})")
            elif what < 0.8:
                self._promises.snapshots[await session.dump()] = list(state)
            else:
                await self._witness(pool, own, states)

    async def _witness(self, pool: AsyncMontyWebsocket, own: bytes, states: list[list[object]]) -> None:
        async with pool.checkout(ephemeral=True) as reader:
            try:
                await reader.load_session(own)
            except MontyRuntimeError as error:
                assert "unknown session" in str(error)
                return
            found = await reader.feed_run("state")
        self._promises.witnessed[own] = max(self._promises.witnessed.get(own, 0), states.index(found) + 1)


async def check(server: Moorage, promises: Promises, *, sessions: int = 20) -> tuple[int, int]:
    """Load every snapshot, and the newest `sessions` sessions, each in a session that saves nothing; how many."""
    loaded = 0

    async with server.client(max_processes=8) as pool:

        async def snapshot(record: bytes, state: list[object]) -> None:
            async with pool.checkout(ephemeral=True) as session:
                await session.load_session(record)
                assert await session.feed_run("state") == state

        async def own(record: bytes, states: list[list[object]]) -> None:
            nonlocal loaded
            at_least = promises.witnessed.get(record, 0)
            async with pool.checkout(ephemeral=True) as session:
                try:
                    await session.load_session(record)
                except MontyRuntimeError as error:
                    assert "unknown session" in str(error)
                    assert not at_least, "a save that was complete is gone"
                    return
                found = await session.feed_run("state")
                loaded += 1
            assert states.index(found) + 1 >= at_least, "an older save than one that was complete"
            promises.witnessed[record] = states.index(found) + 1

        recent = list(promises.sessions.items())[-sessions:]
        await asyncio.gather(
            *(snapshot(record, state) for record, state in promises.snapshots.items()),
            *(own(record, states) for record, states in recent),
        )
    return len(promises.snapshots), loaded
