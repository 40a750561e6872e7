"""What a session is configured with: limits, clocks, randomness, files, modules, type checking."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pydantic_monty import ExternalModule, MemoryFile, MountDir, OSAccess

from tests.end_to_end.programs import Pool, attempt, feeds, program

feeds(
    "recursion_limit",
    "def f(n):\n    return n and f(n - 1)",
    "f(30)",
    "f(200)",
    "f(20)",
    limits={"max_recursion_depth": 50},
)
feeds(
    "memory_limit",
    "small = [1, 2, 3]",
    "large = 'x' * 50_000_000",
    "small",
    "small.append(4)",
    "small",
    limits={"max_memory": 5_000_000},
)
feeds(
    "a_garbage_collection_interval",
    "for i in range(300):\n    a = [i]\n    a.append(a)",
    "a[0]",
    limits={"gc_interval": 10},
)
feeds("default_recursion_limit", "def f(n):\n    return n and f(n - 1)", "f(300)", "f(100_000)", "'on'")
feeds(
    "seeded_randomness",
    "import random",
    "[random.randint(0, 10 ** 6) for _ in range(3)]",
    "random.random(), random.gauss(0, 1)",
    "own = random.Random()",
    "[own.random(), own.choice('abcdef')]",
    "items = list(range(20)); random.shuffle(items)",
    "items, own.random(), random.random()",
    os_policy={"random_start": {"seed": 42}},
)
feeds(
    "reseeded_randomness",
    "import random\nrandom.seed('moorage')",
    "[random.random() for _ in range(3)]",
    "state = random.getstate()",
    "a = random.random()",
    "random.setstate(state)",
    "random.random() == a, random.sample(range(100), 5)",
)
feeds(
    "a_frozen_clock",
    "from datetime import datetime, date\nimport time",
    "datetime.now()",
    "start = time.time()",
    "datetime.now(), date.today(), time.time() - start",
    "time.tzname[0], f'{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}'",
    os_policy={
        "datetime": datetime(2026, 1, 1, 9, 30, tzinfo=UTC),
        "timezone": {"offset_seconds": 3600, "name": "CET"},
    },
)
feeds("no_sleep_at_all", "import time", "time.sleep(3600)", "'at once'", os_policy={"sleep": "zero"})
feeds(
    "short_sleeps",
    "import time",
    "for i in range(3):\n    time.sleep(0.01)",
    "i",
    os_policy={"sleep_system_max": 0.02},
)
feeds(
    "sleep_runs_out",
    "import time",
    "time.sleep(0.01)",
    "time.sleep(5)",
    "'on'",
    limits={"max_total_sleep_secs": 0.1},
)
feeds(
    "type_checking",
    "def double(n: int) -> int:\n    return n * 2",
    "double(4)",
    "double('four')",
    "x: list[int] = []",
    "x.append('no')",
    "x.append(1)",
    "x",
    type_check=True,
    type_check_format="concise",
)
feeds(
    "type_checking_with_stubs",
    "total: int = price('a')",
    "price(4)",
    "def twice(sku: str) -> int:\n    return price(sku) * 2",
    "twice(1)",
    type_check=True,
    type_check_stubs="def price(sku: str) -> int: ...\n",
    type_check_format="json",
)


@program
async def suspensions_run_out(pool: Pool) -> list[object]:
    async with pool.checkout(limits={"max_suspensions": 5}) as session:
        lookup = {"f": lambda n: n}
        first = await session.feed_run("[f(1), f(2)]", external_lookup=lookup)
        over = await attempt(session, "for i in range(10):\n    f(i)", external_lookup=lookup)
        return [first, over, await session.feed_run("'on'")]


@program
async def a_feed_that_takes_too_long(pool: Pool) -> list[object]:
    async with pool.checkout(limits={"max_feed_duration_secs": 0.3}) as session:
        first = await session.feed_run("a = 1\na")
        over = str(await attempt(session, "while True:\n    pass"))
        return [first, "TimeoutError" in over, await session.feed_run("a + 1")]


@program
async def time_does_not_run_at_the_host(pool: Pool) -> list[object]:
    import asyncio

    async def wait() -> int:
        await asyncio.sleep(1.5)
        return 1

    async with pool.checkout(limits={"max_feed_duration_secs": 1, "max_turn_duration_secs": 1}) as session:
        return [await session.feed_run("await wait() + 1", external_lookup={"wait": wait})]


@program
async def typed_host_functions(pool: Pool) -> list[object]:
    stubs = "def price(sku: str) -> int: ...\nasync def stock(sku: str) -> int: ...\n"

    async def stock(sku: str) -> int:
        return len(sku)

    async with pool.checkout(type_check=True, type_check_stubs=stubs, type_check_format="concise") as session:
        lookup = {"price": lambda sku: 3 * len(sku), "stock": stock}
        return [
            await session.feed_run("a = price('abc')", external_lookup=lookup),
            await session.feed_run("a + await stock('ab')", external_lookup=lookup),
            await attempt(session, "await stock(1)", external_lookup=lookup),
            await session.feed_run("price(5)", external_lookup={"price": lambda n: n}, skip_type_check=True),
            await session.feed_run("a"),
        ]


@program
async def host_modules(pool: Pool) -> list[object]:
    calls: list[int] = []
    inner = ExternalModule({"name": "inner"})
    tools = ExternalModule({"add": lambda a, b: calls.append(a) or a + b, "VERSION": "1.2", "inner": inner})
    async with pool.checkout(external_modules={"tools": tools}) as session:
        return [
            await session.feed_run("import tools\ntools.add(1, 2)"),
            await session.feed_run("from tools import add, VERSION\nadd(3, 4), VERSION"),
            await session.feed_run("import tools.inner\ntools.inner.name"),
            await attempt(session, "import absent_module"),
            await session.feed_run("tools.add(5, add(6, 7))"),
            calls,
        ]


@program
async def typed_host_modules(pool: Pool) -> list[object]:
    made: list[str] = []

    async def tools() -> ExternalModule:
        made.append("tools")
        return ExternalModule({"add": lambda a, b: a + b}, stubs="def add(a: int, b: int) -> int: ...\n")

    modules = {"tools": tools}
    async with pool.checkout(type_check=True, type_check_format="concise", external_modules=modules) as session:
        return [
            await session.feed_run("from tools import add\nadd(1, 2)"),
            await attempt(session, "add('a', 2)"),
            await session.feed_run("import tools\ntools.add(3, 4)"),
            made,
        ]


@program
async def files_in_memory(pool: Pool) -> list[object]:
    files = OSAccess([MemoryFile("/data/a.txt", content="first\nsecond\n")])
    async with pool.checkout() as session:
        return [
            await session.feed_run("open('/data/a.txt').read()", os=files),
            await session.feed_run(
                "from pathlib import Path\nwith open('/data/b.txt', 'w') as f:\n    f.write('x')\n    f.write('yz')",
                os=files,
            ),
            await session.feed_run(
                "Path('/data/b.txt').read_text(), sorted(p.name for p in Path('/data').iterdir())", os=files
            ),
            await session.feed_run("handle = open('/data/a.txt')\nhandle.readline()", os=files),
            await session.feed_run("handle.readline(), handle.read()", os=files),
            await attempt(session, "open('/absent')", os=files),
            await attempt(session, "open('/data/a.txt')"),
        ]


def make_notes(folder: str) -> None:
    """Write what the sandbox is to find."""
    Path(folder, "notes.txt").write_text("on the host")


@program
async def a_mounted_folder(pool: Pool) -> list[object]:
    with tempfile.TemporaryDirectory() as folder:
        make_notes(folder)
        with MountDir(host_path=folder, virtual_path="/data") as mount:
            async with pool.checkout() as session:
                return [
                    await session.feed_run("open('/data/notes.txt').read()", mount=mount),
                    await session.feed_run("import os\nos.getcwd(), os.listdir('/data')", mount=mount),
                    await session.feed_run(
                        "with open('new.txt', 'w') as f:\n    f.write('n')\nsorted(os.listdir())", mount=mount
                    ),
                    await session.feed_run("os.listdir('/data')", mount=mount),
                ]


@program
async def a_working_directory(pool: Pool) -> list[object]:
    files = OSAccess([MemoryFile("/work/deep/a.txt", content="relative")])
    async with pool.checkout() as session:
        return [
            await session.feed_run("import os\nos.getcwd()", cwd="/work", os=files),
            await session.feed_run("open('deep/a.txt').read()", os=files),
            await session.feed_run("os.chdir('deep')\nos.getcwd()", os=files),
            await session.feed_run("open('a.txt').read(), os.getcwd()", os=files),
        ]


@program
async def the_environment(pool: Pool) -> list[object]:
    surroundings = OSAccess(environ={"HOME": "/home/agent", "EMPTY": ""})
    async with pool.checkout() as session:
        return [
            await session.feed_run("import os\nos.getenv('HOME'), os.getenv('NONE', 'x')", os=surroundings),
            await session.feed_run("os.environ['EMPTY'], sorted(os.environ)", os=surroundings),
            await attempt(session, "os.environ['NONE']", os=surroundings),
        ]


@program
async def a_clock_at_the_host(pool: Pool) -> list[object]:
    asked: list[str] = []

    def answer(*, name: str, args: tuple[object, ...], **rest: object) -> object:
        asked.append(name)
        return {"datetime.now": datetime.fromisoformat("2030-05-05"), "time.sleep": None}.get(name)

    policy = {"datetime": "call_host", "sleep": "call_host"}
    async with pool.checkout(os_policy=policy) as session:  # type: ignore[arg-type]
        code = "from datetime import datetime\nimport time\ntime.sleep(1000)\ndatetime.now()"
        return [await session.feed_run(code, os=answer), asked, await session.feed_run("'on'")]
