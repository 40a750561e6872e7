"""`python -m bench`: starts a relay and a server, measures them in turn, and prints what it found as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from pydantic_monty import AsyncMontyWebsocket

from bench import figures
from tests.end_to_end.harness import Broker, Harbour, Moorage

RESUMED = 40
"""Sessions whose first turn after a park is timed."""
PAUSE = 0.15
"""Seconds in which a park is over and its worker replaced."""


@contextmanager
def running(*command: str) -> Iterator[str]:
    """Run one of our modules until the end of the block; the line that it prints once it is ready."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{command[0]} did not start")
        yield line
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def compare(relay_url: str, server: Moorage, rounds: int) -> dict[str, object]:
    """Relay and server by turns: the median of each figure and their ratio; of dump and restore the server's alone."""
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in figures.COMPARED}
    dumps, restores = [], []
    async with AsyncMontyWebsocket(relay_url) as relay, server.client() as pool:
        for _ in range(rounds):
            for name, trial in figures.COMPARED.items():
                seen[name][0].extend(await trial(relay))
                seen[name][1].extend(await trial(pool))
            dump, restore = await figures.dump_and_restore(pool)
            dumps.append(dump)
            restores.append(restore)
    report: dict[str, object] = {}
    for name, (of_relay, of_server) in seen.items():
        ours, theirs = statistics.median(of_server), statistics.median(of_relay)
        report[name] = {
            "relay_ms": round(theirs, 3),
            "server_ms": round(ours, 3),
            "ratio": round(ours / theirs, 2),
        }
    report["dump_ms"] = round(statistics.median(dumps), 2)
    report["restore_ms"] = round(statistics.median(restores), 2)
    return report


async def after_a_park(server: Moorage) -> float:
    """A turn of a session that was parked, with a warm worker at hand, in ms: the median."""
    async with server.client() as pool, pool.checkout() as session:
        await session.feed_run("x = 1")
        times = []
        for _ in range(RESUMED):
            await asyncio.sleep(PAUSE)
            times.append(await figures.milliseconds(session.feed_run("x + 1")))
    return statistics.median(times)


async def beside_a_crowd(server: Moorage, crowd: int, seconds: float) -> dict[str, object]:
    """One live session beside many parked ones, and the first turns of sessions that were parked for their sake."""
    async with server.client("roomy") as pool, AsyncExitStack() as stack:
        early = [await stack.enter_async_context(pool.checkout()) for _ in range(RESUMED)]
        for session in early:
            await session.feed_run("x = 1")
        with running("bench.crowd", server.url, server.keys["roomy"], str(crowd)):
            live = await stack.enter_async_context(pool.checkout())
            await live.feed_run("x = 1")
            parked = server.status()["sessions"].get("parked", 0)
            memory = server.server().memory_info().rss
            times = sorted(await figures.turns_for(live, seconds))
            before = server.status()["resumes"]
            resumed = await figures.first_turns(early)
            if server.status()["resumes"] - before < RESUMED:
                raise RuntimeError("sessions that should have been parked were live: let the crowd be larger")
    return {
        "turn_after_park_for_want_of_workers_ms": round(statistics.median(resumed), 2),
        "live_turn_beside_parked": {
            "parked": parked,
            "server_mib": round(memory / 2**20),
            "turns": len(times),
            "median_ms": round(statistics.median(times), 3),
            "p99_ms": round(times[len(times) * 99 // 100], 3),
            "worst_ms": round(times[-1], 2),
        },
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="how often relay and server take turns")
    parser.add_argument("--crowd", type=int, default=2000, help="parked sessions beside the live one")
    parser.add_argument("--seconds", type=float, default=15, help="how long the live one is watched")
    asked = parser.parse_args()

    broker = Broker()
    try:
        with tempfile.TemporaryDirectory(prefix="moorage-bench-") as name:
            folder = Path(name)
            harbour = Harbour.shared(folder / "harbour")
            with Moorage(harbour, folder / "server", REDIS_URL=broker.url, WORKER_ISOLATION="auto") as server:
                with running("bench.relay") as relay_url:
                    report = asyncio.run(compare(relay_url, server, asked.rounds))
                report |= asyncio.run(beside_a_crowd(server, asked.crowd, asked.seconds))
            with Moorage(harbour, folder / "parks", REDIS_URL=broker.url, PARK_EVERY_TURN=1) as server:
                report["turn_after_park_ms"] = round(asyncio.run(after_a_park(server)), 2)
    finally:
        broker.close()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
