"""A crowd of sessions that were used once and then left alone: `python -m bench.crowd URL KEY COUNT`.

Prints a line once all of them are open, and keeps them open until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys

from pydantic_monty import AsyncMontyWebsocket

AT_ONCE = 16


async def main(url: str, key: str, count: int) -> None:
    """Open `count` sessions, and close them at the end of standard input."""
    headers = {"authorization": f"Bearer {key}"}
    gate, all_open, over = asyncio.Semaphore(AT_ONCE), asyncio.Event(), asyncio.Event()
    open_now = 0

    async with AsyncMontyWebsocket(
        url, connect_headers=lambda: headers, max_processes=count, request_timeout=60
    ) as pool:

        async def one(n: int) -> None:
            nonlocal open_now
            async with gate:
                session = pool.checkout()
                await session.__aenter__()
                await session.feed_run(f"n = {n}")
            open_now += 1
            if open_now == count:
                all_open.set()
            await over.wait()
            await session.__aexit__(None, None, None)

        sessions = [asyncio.ensure_future(one(n)) for n in range(count)]
        await all_open.wait()
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        over.set()
        await asyncio.gather(*sessions)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
