"""Functions, classes, loops and errors: code that is defined in one feed and used in another."""

from __future__ import annotations

from typing import Any

from pydantic_monty import CollectStreams, CollectString, MontyRuntimeError, MontySyntaxError

from tests.end_to_end.programs import Pool, attempt, feeds, program

feeds(
    "closures",
    "def counter():\n    n = 0\n    def add(by=1):\n        nonlocal n\n        n += by\n        return n\n"
    "    return add",
    "a, b = counter(), counter()",
    "a(), a(5), b()",
    "a(), b()",
)
feeds(
    "shared_cells",
    "def pair():\n    box = []\n    def put(x):\n        box.append(x)\n    def get():\n        return box\n"
    "    return put, get",
    "put, get = pair()",
    "put(1); put(2)",
    "get()",
    "get().append(3)",
    "get() is get(), get()",
)
feeds(
    "default_arguments_keep",
    "def f(x, seen=[]):\n    seen.append(x)\n    return seen",
    "f(1)",
    "f(2)",
    "f(3)",
)
feeds(
    "signatures",
    "def f(a, /, b=2, *c, d, **e):\n    return [a, b, c, d, e]",
    "f(1, d=4)",
    "f(1, 3, 5, 6, d=7, z=8)",
    "f(1)",
    "f(*[1, 2], **{'d': 3, 'q': 4})",
)
feeds("lambdas", "ops = {n: (lambda x, n=n: x ** n) for n in range(4)}", "[ops[n](3) for n in ops]")
feeds("recursion", "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)", "fib(15)", "fib(16)")
feeds(
    "mutual_recursion",
    "def even(n):\n    return n == 0 or odd(n - 1)",
    "def odd(n):\n    return n != 0 and even(n - 1)",
    "even(40), odd(40)",
    "def odd(n):\n    return 'replaced'",
    "even(3)",
)
feeds(
    "classes",
    "class Stack:\n    made = 0\n    def __init__(self):\n        self.items = []\n        Stack.made += 1\n"
    "    def push(self, x):\n        self.items.append(x)\n        return self\n"
    "    def __repr__(self):\n        return f'Stack({self.items})'",
    "s = Stack().push(1).push(2)",
    "t = s",
    "t.push(3)",
    "len(s.items), repr(s), s is t, Stack.made, isinstance(s, Stack)",
    "method = s.push",
    "method(4)",
    "repr(t), type(s) is Stack",
)
feeds(
    "class_operators",
    "class V:\n    def __init__(self, x):\n        self.x = x\n"
    "    def __add__(self, o):\n        return V(self.x + o.x)\n"
    "    def __eq__(self, o):\n        return self.x == o.x\n"
    "    def __getitem__(self, i):\n        return self.x[i]\n"
    "    def __contains__(self, i):\n        return i in self.x\n"
    "    def __call__(self, k):\n        return self.x * k",
    "v = V([1]) + V([2])",
    "v.x, v == V([1, 2]), v[1], 2 in v, v(2)",
)
feeds(
    "dataclasses",
    "from dataclasses import dataclass, field",
    "@dataclass\nclass Item:\n    name: str\n    price: float = 1.5\n    tags: list = field(default_factory=list)",
    "a = Item('a'); b = Item('a')",
    "a.tags.append('new')",
    "a == b, repr(a), b.tags",
    "b.tags.append('new')",
    "a == b, a.tags is b.tags",
)
feeds(
    "context_managers",
    "log = []",
    "class Guard:\n    def __enter__(self):\n        log.append('in')\n        return 5\n"
    "    def __exit__(self, kind, error, trace):\n        log.append(repr(error))\n        return True",
    "with Guard() as five:\n    raise ValueError('swallowed')",
    "with Guard():\n    pass",
    "log, five",
)
feeds(
    "pattern_matching",
    "def kind(x):\n    match x:\n        case []:\n            return 'empty'\n"
    "        case [one]:\n            return one\n"
    "        case {'a': a, **rest}:\n            return (a, rest)\n"
    "        case str() as s if len(s) > 2:\n            return s\n"
    "        case _:\n            return 'other'",
    "[kind(x) for x in ([], [1], {'a': 2, 'b': 3}, 'long', 'no', 7)]",
)
feeds(
    "generator_expressions",
    "squares = (x * x for x in range(8))",
    "sum(x for x in squares if x % 2)",
    "any(x > 3 for x in range(5)), max((len(w), w) for w in ['a', 'ccc', 'bb'])",
    "def g():\n    yield 1",
)
feeds(
    "comprehensions",
    "grid = [[x * y for x in range(4)] for y in range(4)]",
    "{y: [c for c in row if c % 2 == 0] for y, row in enumerate(grid)}",
    "grid[3][3] = None",
    "[c for row in grid for c in row][-3:]",
)
feeds(
    "errors_go_on",
    "x = 1",
    "x / 0",
    "x",
    "undefined_name",
    "[1, 2][5]",
    "{'a': 1}['b']",
    "int('seven')",
    "None.attribute",
    "'still ' + 'here'",
)
feeds(
    "tracebacks_through_feeds",
    "def inner(n):\n    return 10 // n",
    "def outer(n):\n    total = 0\n    for i in range(3):\n        total += inner(n - i)\n    return total",
    "outer(5)",
    "outer(1)",
    "try:\n    outer(2)\nexcept ZeroDivisionError as error:\n    kept = error",
    "repr(kept), kept.args",
    "raise kept",
)
feeds(
    "causes_and_finally",
    "log = []",
    "def f():\n    try:\n        raise ValueError('first')\n"
    "    except ValueError as e:\n        raise TypeError('second') from e\n"
    "    finally:\n        log.append('finally')",
    "try:\n    f()\nexcept TypeError as e:\n    kept = e",
    "log, repr(kept)",
    "f()",
    "log",
)
feeds("assertions", "a = [1, 2]", "assert a == [1, 2]", "assert a == [1, 3]", "assert not a, 'words'", "a")
feeds("plain_assertions", "a = 4", "assert a == 5", "a", assert_message_annotations=False)
feeds("another_script_name", "def f():\n    raise KeyError('x')", "f()", "__file__", script_name="agent.py")
feeds(
    "eval_and_exec",
    "x = 20",
    "eval('x + 1')",
    "exec('def made(n):\\n    return n * x')",
    "made(3)",
    "eval('1 +')",
    "x",
)
feeds(
    "standard_library",
    "import re, json, math, functools, itertools, collections, base64, hashlib, bisect, copy, tomllib, csv",
    "re.findall(r'(\\w)(\\d)', 'a1 b2'), json.dumps({'a': [1, None]}), json.loads('[1.5]')",
    "pattern = re.compile('b+')",
    "pattern.sub('-', 'abbbc')",
    "cached = functools.partial(max, 10)",
    "cached(3, 12), list(itertools.chain([1], (2,))), math.comb(40, 20)",
    "hashlib.sha256(b'moorage').hexdigest(), base64.b64encode(b'abc')",
    "tomllib.loads('a = [1, 2]'), bisect.bisect([1, 3, 5], 4)",
    "json.loads('{')",
)
feeds(
    "copies",
    "import copy",
    "a = {'in': [1, [2]]}",
    "shallow, deep = copy.copy(a), copy.deepcopy(a)",
    "a['in'][1].append(3)",
    "shallow, deep, shallow['in'] is a['in']",
)
feeds(
    "sandbox_coroutines",
    "import asyncio",
    "async def twice(n):\n    return n * 2",
    "await twice(4)",
    "await asyncio.gather(twice(1), twice(2), twice(3))",
)
feeds("redefinition", "x = 1", "x = 'text'", "print = 5", "print, x", "len = lambda x: -1", "len([1, 2])")


@program
async def prints_to_both_streams(pool: Pool) -> list[object]:
    output = CollectStreams()
    async with pool.checkout(print_flush_interval=0) as session:
        await session.feed_run("import sys\nprint('a', 1, sep='-')", print_callback=output)
        await session.feed_run("print('b', file=sys.stderr)\nprint('c', end='')", print_callback=output)
        await session.feed_run("for i in range(50):\n    print(i, end=' ')", print_callback=output)
    texts = {stream: "".join(t for s, t in output.output if s == stream) for stream in ("stdout", "stderr")}
    return [texts]


@program
async def prints_around_calls_and_errors(pool: Pool) -> list[object]:
    output = CollectString()

    def tell(word: str) -> str:
        return f"<{output.output.strip().splitlines()[-1]}|{word}>"

    async with pool.checkout() as session:
        code = "for i in range(4):\n    print('line', i)\n    print(tell(str(i)))\n1 / 0"
        error = await attempt(session, code, external_lookup={"tell": tell}, print_callback=output)
        await session.feed_run("print('after')", print_callback=output)
    return [output.output, error]


@program
async def a_great_many_prints(pool: Pool) -> list[object]:
    output = CollectString()
    async with pool.checkout() as session:
        await session.feed_run("for i in range(5000):\n    print('row', i)", print_callback=output)
        lines = output.output.splitlines()
        return [len(lines), lines[0], lines[-1], await session.feed_run("i")]


@program
async def syntax_errors(pool: Pool) -> list[object]:
    results: list[object] = []
    async with pool.checkout() as session:
        await session.feed_run("kept = 'kept'")
        for code in ("def broken(:", "x = = 1", "'unclosed", "class A(B):\n    pass"):
            try:
                await session.feed_run(code)
            except (MontySyntaxError, MontyRuntimeError) as error:
                results.append((type(error).__name__, error.display(), [f.dict() for f in error.traceback()]))
        return [*results, await session.feed_run("kept")]


@program
async def traceback_frames(pool: Pool) -> list[object]:
    async with pool.checkout(script_name="work.py") as session:
        await session.feed_run("def a(x):\n    return b(x) + 1\n\n\ndef b(x):\n    return x['missing']")
        try:
            await session.feed_run("value = a({})\n")
        except MontyRuntimeError as error:
            frames: list[dict[str, Any]] = [dict(frame.dict()) for frame in error.traceback()]
            return [frames, error.display("type-msg"), error.display("msg"), repr(error.exception())]
    return []
