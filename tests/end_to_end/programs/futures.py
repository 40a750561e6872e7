"""Asynchronous host functions: futures in flight, in every order in which they may settle."""

from __future__ import annotations

import asyncio

from pydantic_monty import MontyComplete

from tests.end_to_end.programs import Pool, attempt, program


@program
async def one_future(pool: Pool) -> list[object]:
    async def fetch(n: int) -> int:
        await asyncio.sleep(0.01)
        return n * 10

    async with pool.checkout() as session:
        lookup = {"fetch": fetch}
        first = await session.feed_run("x = await fetch(3)\nx + 1", external_lookup=lookup)
        return [first, await session.feed_run("x + await fetch(1)", external_lookup=lookup)]


@program
async def gathered_futures(pool: Pool) -> list[object]:
    async def double(n: int) -> int:
        await asyncio.sleep(0.02 / (n + 1))
        return n * 2

    async with pool.checkout() as session:
        code = "import asyncio\nawait asyncio.gather(*[double(n) for n in range(6)])"
        return [await session.feed_run(code, external_lookup={"double": double}), await session.feed_run("1")]


@program
async def futures_settled_backwards(pool: Pool) -> list[object]:
    gates = [asyncio.Event() for _ in range(4)]
    order: list[int] = []

    async def wait(n: int) -> int:
        if n == 3:
            gates[3].set()
        await gates[n].wait()
        order.append(n)
        if n:
            gates[n - 1].set()
        return n

    async with pool.checkout() as session:
        code = "import asyncio\nr = await asyncio.gather(wait(0), wait(1), wait(2), wait(3))\nr"
        return [await session.feed_run(code, external_lookup={"wait": wait}), order]


@program
async def tasks_that_call_again(pool: Pool) -> list[object]:
    async def step(name: str, n: int) -> str:
        await asyncio.sleep(0.002 * n)
        return f"{name}{n}"

    async with pool.checkout() as session:
        await session.feed_run(
            "import asyncio\nasync def walk(name):\n    seen = []\n    for n in range(3):\n"
            "        seen.append(await step(name, n))\n    return seen"
        )
        lookup = {"step": step}
        both = await session.feed_run("await asyncio.gather(walk('a'), walk('b'))", external_lookup=lookup)
        return [both, await session.feed_run("await walk('c')", external_lookup=lookup)]


@program
async def a_future_that_fails(pool: Pool) -> list[object]:
    async def fail(n: int) -> int:
        await asyncio.sleep(0.005)
        if n % 2:
            raise LookupError(f"odd {n}")
        return n

    async with pool.checkout() as session:
        lookup = {"fail": fail}
        caught = "try:\n    r = await fail(1)\nexcept LookupError as e:\n    r = str(e)\nr"
        return [
            await session.feed_run(caught, external_lookup=lookup),
            await attempt(session, "await fail(3)", external_lookup=lookup),
            await session.feed_run("await fail(4)", external_lookup=lookup),
        ]


@program
async def sleeps_that_overlap(pool: Pool) -> list[object]:
    code = (
        "import asyncio\nlog = []\nasync def nap(name, seconds):\n    log.append('start ' + name)\n"
        "    await asyncio.sleep(seconds)\n    log.append('end ' + name)\n    return name\n"
        "await asyncio.gather(nap('long', 0.3), nap('short', 0.01))"
    )
    async with pool.checkout() as session:
        return [await session.feed_run(code), await session.feed_run("log")]


@program
async def futures_by_hand(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        code = "import asyncio\nr = await asyncio.gather(get('a'), get('b'))\nr"
        calls: dict[int, str] = {}
        pending: list[int] = []
        step = await session.feed_start(code)
        while not isinstance(step, MontyComplete):
            if hasattr(step, "pending_call_ids"):
                pending.append(len(step.pending_call_ids))
                last = step.pending_call_ids[-1]
                step = await step.resume({last: {"return_value": calls[last] * 2}})
            elif hasattr(step, "variable_name"):
                step = await step.resume()
            else:
                calls[step.call_id] = step.args[0]
                step = await step.resume({"future": ...})
        return [step.output, pending, sorted(calls.values())]


@program
async def a_mixture_of_calls(pool: Pool) -> list[object]:
    async def slow(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    lookup = {"slow": slow, "quick": lambda n: n + 100}
    async with pool.checkout() as session:
        code = (
            "import asyncio\nasync def both(n):\n    first = quick(n)\n    second = await slow(n)\n"
            "    return first, second, quick(second)\nawait asyncio.gather(both(1), both(2))"
        )
        return [
            await session.feed_run(code, external_lookup=lookup),
            await session.feed_run("quick(1)", external_lookup=lookup),
        ]
