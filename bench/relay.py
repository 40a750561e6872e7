"""The yardstick: one fresh interpreter for each WebSocket connection, frames passed both ways, and nothing else.

`python -m bench.relay` prints the URL at which it serves, until its standard input ends.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
import sys
from contextlib import suppress

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

LENGTH = struct.Struct("<I")
READ_BUFFER = 64 * 1024 * 1024


async def relay(client: ServerConnection) -> None:
    """Serve one connection."""
    monty = shutil.which("monty")
    if monty is None:
        raise FileNotFoundError("the command `monty` is not on the PATH")
    worker = await asyncio.create_subprocess_exec(
        monty, "subprocess", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={}, limit=READ_BUFFER
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    answers = asyncio.ensure_future(_answers(worker.stdout, client))
    try:
        async for request in client:
            assert isinstance(request, bytes)
            worker.stdin.write(LENGTH.pack(len(request)) + request)
            await worker.stdin.drain()
    except ConnectionClosed:
        pass
    finally:
        answers.cancel()
        with suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


async def _answers(source: asyncio.StreamReader, client: ServerConnection) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionClosed):
        while True:
            (size,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
            await client.send(await source.readexactly(size))


async def main() -> None:
    """Serve on a free port until standard input ends."""
    async with serve(relay, "127.0.0.1", 0, max_size=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        print(f"ws://127.0.0.1:{port}/", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
