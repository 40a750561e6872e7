"""Values that live from one feed to the next: numbers, texts, containers, shared and cyclic objects."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import PurePosixPath

from tests.end_to_end.programs import Pool, feeds, program

feeds("integers", "n = 41", "n += 1", "n", "n // 5, n % 5, -n // 5, n ** 3, n ^ 7, ~n")
feeds("big_integers", "b = 2 ** 4000", "b += 1", "b", "b % 10 ** 9", "-b // 3", "len(str(b))")
feeds("floats", "x = 0.1", "y = x + 0.2", "y, y == 0.3", "1e308 * 10, -1e308 * 10", "round(2.675, 2), 7.0 // 2")
feeds("complex_numbers", "z = 1 + 2j", "z *= z", "z", "abs(3 + 4j), z.real, z.imag")
feeds(
    "decimals",
    "from decimal import Decimal, getcontext",
    "getcontext().prec = 50",
    "third = Decimal(1) / Decimal(3)",
    "str(third), third * 3",
)
feeds(
    "texts",
    "s = 'naïve ☃ \\U0001f40d'",
    "s.upper(), s[::-1], len(s)",
    "t = s * 3",
    "t.count('☃'), t.split('☃')",
    "f'{s!r:>30}|{3.14159:.3f}|{255:#x}'",
)
feeds("bytes_and_hex", "b = b'\\x00\\xff moored \\x80' * 9", "b[::-17]", "b.hex()[:32]", "b'\\x00\\xff' + b[:3]")
feeds(
    "lists",
    "a = list(range(10))",
    "a[2:5] = ['x', 'y']",
    "a.sort(key=str)",
    "a",
    "b = a; b.append('same')",
    "a[-1], a is b",
)
feeds(
    "dictionaries",
    "d = {i: {str(i): [i]} for i in range(50)}",
    "d[7]['7'].append(8)",
    "d.pop(3)",
    "[k for k in d][:5], d[7], len(d)",
    "{**d[1], 'more': True} | {'z': 0}",
)
feeds("sets", "s = {3, 1, 2}", "s |= {9}", "sorted(s), 9 in s", "frozenset(s) & {1, 9} == {1, 9}")
feeds("tuples_and_stars", "t = (1, (2, [3]))", "t[1][1].append(4)", "a, *b = range(5)", "t, a, b, (*b, a)")
feeds(
    "shared_references",
    "inner = [1]",
    "outer = {'left': inner, 'right': inner}",
    "outer['left'].append(2)",
    "inner, outer['right'], outer['left'] is outer['right'] is inner",
)
feeds(
    "cycles",
    "ring = [1]",
    "ring.append(ring)",
    "ring[1][1][1] is ring, repr(ring)",
    "d = {}; d['self'] = d",
    "d['self']['self'] is d, repr(d)",
    "ring = None; d = None",
    "ring, d",
)
feeds(
    "deep_nesting",
    "deep = []\nfor i in range(150):\n    deep = [deep, i]",
    "at = deep\nfor _ in range(100):\n    at = at[0]",
    "at[1], deep[1]",
    "len(repr(deep))",
)
feeds(
    "named_tuples",
    "from collections import namedtuple",
    "Point = namedtuple('Point', 'x y')",
    "p = Point(1, y=2)",
    "p.x + p.y, p._replace(x=5).x, repr(p)",
    "p",
)
feeds(
    "counters",
    "from collections import Counter, defaultdict, deque",
    "words = Counter('abracadabra')",
    "words.update('aaa')",
    "words.most_common(2)",
    "d = defaultdict(list); d['a'].append(1)",
    "dict(d), words['zzz']",
)
feeds(
    "iterators_half_used",
    "import itertools",
    "numbers = itertools.count(10, 5)",
    "next(numbers), next(numbers)",
    "pairs = iter([1, 2, 3, 4])",
    "next(pairs)",
    "next(numbers), list(pairs)",
)
feeds(
    "dates",
    "from datetime import datetime, date, timedelta, timezone",
    "start = datetime(2024, 2, 28, 23, 30, tzinfo=timezone.utc)",
    "later = start + timedelta(hours=1)",
    "later",
    "later.isoformat(), (later - start).total_seconds(), date(2024, 2, 29).weekday()",
)
feeds("paths", "from pathlib import Path", "p = Path('/data') / 'a.txt'", "p", "p.suffix, p.parent.name, p.stem")
feeds(
    "slices_of_time",
    "import time",
    "a = time.monotonic()",
    "b = time.monotonic()",
    "b >= a, type(a).__name__",
)


@program
async def values_in_and_out(pool: Pool) -> list[object]:
    values = {
        "nothing": None,
        "truth": True,
        "number": -(10**30),
        "real": 1.5,
        "text": "ü",
        "raw": b"\x00\x01",
        "items": [1, [2, (3, 4)], {"a": {5}}],
        "frozen": frozenset({1}),
        "day": date(2024, 2, 29),
        "moment": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "while_": timedelta(seconds=90),
        "path": PurePosixPath("/a/b"),
        "dots": ...,
    }
    async with pool.checkout() as session:
        results: list[object] = [await session.feed_run(name, inputs=values) for name in values]
        await session.feed_run("kept = [text, items, day]", inputs=values)
        results.append(await session.feed_run("kept"))
        return results


@program
async def one_object_under_two_names(pool: Pool) -> list[object]:
    shared = ["shared"]
    async with pool.checkout() as session:
        await session.feed_run("pass", inputs={"a": shared, "b": {"in": shared}})
        await session.feed_run("a.append('once')")
        both = await session.feed_run("(a, b['in'], a is b['in'])")
        return [both, both[0] is both[1], shared]


@program
async def a_large_result(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        await session.feed_run("big = 'x' * 2_000_000")
        big = await session.feed_run("big")
        return [len(big), big == "x" * 2_000_000, await session.feed_run("len(big)")]


@program
async def large_inputs(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        await session.feed_run("total = sum(numbers)", inputs={"numbers": list(range(50_000))})
        return [await session.feed_run("total, len(numbers)"), await session.feed_run("numbers[::10_000]")]
