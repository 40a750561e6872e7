"""What may stand between a client and a server: a recorder of frames, and a balancer of connections.

Each runs on a thread and an event loop of its own: some calls of the client library block the loop they are made on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from tests.end_to_end.waiting import PATIENCE


class Aside:
    """Something that serves on a thread of its own, from the start to the end of a `with`."""

    port: int

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)
        self._thread.start()
        self._do(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _begin(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Recorder(Aside):
    """Passes frames both ways, counts the requests by their kind, and keeps them if told to.

    `ready` is asked before a request is passed on, again and again until it says yes.
    """

    def __init__(self, url: str, *, keep: bool = False, ready: Callable[[], bool] = lambda: True) -> None:
        self._target = url
        self._keep = keep
        self._ready = ready
        self.requests: Counter[int] = Counter()
        """Requests by kind."""
        self.frames: list[bytes] = []
        """Requests as they came, when they are kept."""
        self.failures: list[BaseException] = []
        """Connections that ended because the server was never ready."""

    @property
    def url(self) -> str:
        """Where clients dial."""
        return f"ws://127.0.0.1:{self.port}/"

    async def _begin(self) -> None:
        self._server = await serve(self._bridge, "127.0.0.1", 0, max_size=None, compression=None, ping_interval=None)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def _bridge(self, client: ServerConnection) -> None:
        assert client.request is not None
        headers = {"authorization": client.request.headers.get("authorization", "")}
        options: dict[str, Any] = {"max_size": None, "compression": None, "ping_interval": None}
        async with connect(self._target, additional_headers=headers, **options) as server:

            async def up() -> None:
                async for frame in client:
                    assert isinstance(frame, bytes)
                    if self._keep:
                        self.frames.append(frame)
                    ends = asyncio.get_running_loop().time() + PATIENCE
                    while not self._ready():
                        if asyncio.get_running_loop().time() > ends:
                            raise TimeoutError("the server was never ready for the next request")
                        await asyncio.sleep(0.002)
                    self.requests[frame[0] >> 3] += 1
                    await server.send(frame)

            async def down() -> None:
                async for frame in server:
                    await client.send(frame)

            ways = [asyncio.ensure_future(up()), asyncio.ensure_future(down())]
            try:
                ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                self.failures += [error for way in ended if isinstance(error := way.exception(), TimeoutError)]
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


class Balancer(Aside):
    """Passes TCP connections to the first of the ports of `choose` that takes them, as a load balancer does."""

    def __init__(self, choose: Callable[[], tuple[int, ...]]) -> None:
        self._choose = choose
        self.dials: Counter[int] = Counter()
        """Connections by the port they went to."""

    @property
    def url(self) -> str:
        """Where clients dial."""
        return f"ws://127.0.0.1:{self.port}/monty-ws/"

    async def _begin(self) -> None:
        self._server = await asyncio.start_server(self._bridge, "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _bridge(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_writer: asyncio.StreamWriter | None = None
        try:
            for port in self._choose():
                try:
                    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    continue
                self.dials[port] += 1
                break
            else:
                return
            ways = [
                asyncio.ensure_future(_pour(reader, far_writer)),
                asyncio.ensure_future(_pour(far_reader, writer)),
            ]
            await asyncio.gather(*ways)
        except OSError:
            pass
        finally:
            for each in (writer, far_writer):
                if each is not None:
                    each.close()


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()
