"""Sessions dumped and loaded, between feeds and in the middle of one; states from nothing up to what a limit allows."""

from __future__ import annotations

import asyncio

from pydantic_monty import MontyComplete

from tests.end_to_end.programs import Pool, attempt, program


@program
async def a_session_without_a_feed(pool: Pool) -> list[object]:
    async with pool.checkout():
        pass
    async with pool.checkout() as session:
        return [await session.feed_run("1")]


@program
async def empty_feeds(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        return [
            await session.feed_run(""),
            await session.feed_run("pass"),
            await session.feed_run("# only words"),
        ]


@program
async def dump_and_load(pool: Pool) -> list[object]:
    async with pool.checkout(script_name="first.py") as session:
        await session.feed_run("items = [1, 2]\nsame = items\ndef total():\n    return sum(items)")
        kept = await session.dump()
        await session.feed_run("items.clear()")
        emptied = await session.feed_run("total()")
    async with pool.checkout(script_name="second.py") as session:
        await session.load_session(kept)
        await session.feed_run("items.append(3)")
        return [emptied, await session.feed_run("total(), same is items"), await attempt(session, "1 / 0")]


@program
async def load_before_the_first_dump(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        kept = await session.dump()
        await session.feed_run("x = 1")
    async with pool.checkout() as session:
        await session.load_session(kept)
        return [await attempt(session, "x"), await session.feed_run("x = 2\nx")]


@program
async def forks(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        await session.feed_run("import random\nrandom.seed(5)\nlog = ['root']")
        kept = await session.dump()

    async def branch(name: str) -> object:
        async with pool.checkout() as fork:
            await fork.load_session(kept)
            await fork.feed_run(f"log.append({name!r})")
            return await fork.feed_run("log, random.random()")

    return list(await asyncio.gather(branch("a"), branch("b"), branch("c")))


@program
async def a_chain_of_loads(pool: Pool) -> list[object]:
    kept = b""
    for n in range(5):
        async with pool.checkout() as session:
            if kept:
                await session.load_session(kept)
                await session.feed_run(f"chain.append({n})")
            else:
                await session.feed_run("chain = [0]")
            kept = await session.dump()
            result = await session.feed_run("chain")
    return [result]


@program
async def roll_back(pool: Pool) -> list[object]:
    kept, results = [], list[object]()
    async with pool.checkout() as session:
        for n in range(4):
            await session.feed_run(f"n = {n}\nhistory = (history if n else []) + [n]")
            kept.append(await session.dump())
    for state in reversed(kept):
        async with pool.checkout() as session:
            await session.load_session(state)
            results.append(await session.feed_run("n, history"))
    return results


@program
async def dump_within_a_call(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        step = await session.feed_start("x = 5\ny = fetch(3) + x\ny")
        kept = await asyncio.to_thread(step.dump)
        done = await step.resume({"return_value": 30})
        first = [done.output, await session.feed_run("y")]
    async with pool.checkout() as session:
        again = await session.load_snapshot(kept)
        name = (again.function_name, again.args, again.position.dict())
        done = await again.resume({"return_value": 300})
        return [*first, name, done.output, await session.feed_run("y + 1")]


@program
async def dump_within_a_loop(pool: Pool) -> list[object]:
    results: list[object] = []
    async with pool.checkout() as session:
        step = await session.feed_start("seen = []\nfor i in range(4):\n    seen.append(ask(i))\nseen")
        kept = []
        while not isinstance(step, MontyComplete):
            kept.append(await asyncio.to_thread(step.dump))
            step = await step.resume({"return_value": step.args[0] * 2})
        results.append(step.output)
    for state in kept:
        async with pool.checkout() as session:
            step = await session.load_snapshot(state)
            while not isinstance(step, MontyComplete):
                step = await step.resume({"return_value": -1})
            results.append(step.output)
    return results


@program
async def dump_within_a_name_lookup(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        step = await session.feed_start("2 * unknown_name")
        kept = await asyncio.to_thread(step.dump)
        first = await step.resume(value=21)
    async with pool.checkout() as session:
        step = await session.load_snapshot(kept)
        second = await step.resume(value="ab")
        return [first.output, second.output]


@program
async def dump_with_futures_in_flight(pool: Pool) -> list[object]:
    code = "import asyncio\nawait asyncio.gather(get('a'), get('b'))"
    async with pool.checkout() as session:
        step = await session.feed_start(code)
        calls: dict[int, str] = {}
        while not hasattr(step, "pending_call_ids"):
            calls[step.call_id] = step.args[0]
            step = await step.resume({"future": ...})
        kept = await asyncio.to_thread(step.dump)
        done = await step.resume({i: {"return_value": name * 2} for i, name in calls.items()})
        first = done.output
    async with pool.checkout() as session:
        step = await session.load_snapshot(kept)
        pending = sorted(calls[i] for i in step.pending_call_ids)
        done = await step.resume({i: {"return_value": name * 3} for i, name in calls.items()})
        return [first, pending, done.output]


@program
async def load_with_functions_again(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        step = await session.feed_start("a = price('x')\nb = price('y')\n[a, b]")
        kept = await asyncio.to_thread(step.dump)
        await step.resume({"return_value": 0})
    async with pool.checkout() as session:
        step = await session.load_snapshot(kept, external_lookup={"price": lambda sku: ord(sku)})
        while not isinstance(step, MontyComplete):
            step = await step.resume_auto()
        return [step.output]


@program
async def loads_that_fail(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        try:
            await session.load_session(b"neither an ID nor a dump")
            failed = False
        except Exception:
            failed = True
        return [failed, await session.feed_run("1 + 1")]


@program
async def load_after_a_feed(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        await session.feed_run("x = 1")
        kept = await session.dump()
        try:
            await session.load_session(kept)
            failed = False
        except Exception:
            failed = True
        return [failed, await session.feed_run("x")]


@program
async def limits_come_back_with_the_state(pool: Pool) -> list[object]:
    async with pool.checkout(limits={"max_recursion_depth": 40}) as session:
        await session.feed_run("def f(n):\n    return n and f(n - 1)")
        kept = await session.dump()
    async with pool.checkout() as session:
        await session.load_session(kept)
        return [await session.feed_run("f(30)"), await attempt(session, "f(90)")]


@program
async def type_checking_comes_back(pool: Pool) -> list[object]:
    async with pool.checkout(type_check=True, type_check_format="concise") as session:
        await session.feed_run("def f(n: int) -> int:\n    return n")
        kept = await session.dump()
    async with pool.checkout(type_check_format="concise") as session:
        await session.load_session(kept)
        return [
            await session.feed_run("f(1)"),
            "invalid-argument-type" in str(await attempt(session, "f('x')")),
        ]


@program
async def states_of_every_size(pool: Pool) -> list[object]:
    results: list[object] = []
    for size in (1, 1_000, 30_000, 200_000):
        async with pool.checkout() as session:
            await session.feed_run(f"a = list(range({size}))\nb = {{str(i): i for i in range({size} // 10)}}")
            kept = await session.dump()
            results.append(await session.feed_run("len(a), len(b)"))
        async with pool.checkout() as session:
            await session.load_session(kept)
            results.append(await session.feed_run("a[-1], sum(a), len(b)"))
    return results


@program
async def a_state_near_its_limit(pool: Pool) -> list[object]:
    async with pool.checkout(limits={"max_memory": 40_000_000}) as session:
        await session.feed_run("text = 'x' * 4_000_000\nrows = [{'n': i} for i in range(5_000)]")
        over = await attempt(session, "more = 'y' * 60_000_000")
        return [over, await session.feed_run("len(text), rows[-1], len(rows)")]


@program
async def many_sessions_at_once(pool: Pool) -> list[object]:
    async def one(n: int) -> object:
        async with pool.checkout() as session:
            await session.feed_run(f"n = {n}\nlog = []")
            for i in range(4):
                await session.feed_run(f"log.append(n * {i})")
            return await session.feed_run("n, log")

    return list(await asyncio.gather(*(one(n) for n in range(6))))
