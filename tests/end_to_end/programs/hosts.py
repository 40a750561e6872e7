"""Host functions and host objects: what the sandbox may call, and whether it is still the same thing afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_monty import ClassInstance, ClassType, MontyComplete

from tests.end_to_end.programs import Pool, attempt, program


@dataclass
class Account:
    """What the programs hand to a sandbox."""

    owner: str
    balance: int = 0
    history: list[str] = field(default_factory=list)

    def pay(self, amount: int) -> int:
        """Take in `amount`."""
        self.balance += amount
        self.history.append(f"+{amount}")
        return self.balance

    def refuse(self) -> None:
        """Never works."""
        raise PermissionError("the account is closed")

    async def pay_later(self, amount: int) -> int:
        """As `pay`, awaited."""
        return self.pay(amount)

    @classmethod
    def opened(cls) -> str:
        """Something that the class knows."""
        return cls.__name__


@program
async def a_host_function(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        lookup = {"double": lambda n: n * 2}
        return [await session.feed_run(f"x = double({n})\nx + 1", external_lookup=lookup) for n in range(3)]


@program
async def host_calls_in_a_loop(pool: Pool) -> list[object]:
    seen: list[int] = []
    async with pool.checkout() as session:
        code = "total = 0\nfor i in range(12):\n    total += note(i)\ntotal"
        total = await session.feed_run(code, external_lookup={"note": lambda i: seen.append(i) or i * i})
        return [total, seen, await session.feed_run("i, total")]


@program
async def host_calls_deep_in_the_stack(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        await session.feed_run("def down(n):\n    return [n] + down(n - 1) if n else [ask(), ask()]")
        answers = iter(range(100, 200))
        lookup = {"ask": lambda: next(answers)}
        return [
            await session.feed_run("down(30)", external_lookup=lookup),
            await session.feed_run("[x + ask() for x in [1, 2, 3]]", external_lookup=lookup),
            await session.feed_run("sorted([3, 1, 2], key=lambda x: -x)[0] + ask()", external_lookup=lookup),
        ]


@program
async def host_function_arguments(pool: Pool) -> list[object]:
    def echo(*args: Any, **options: Any) -> list[Any]:
        return [list(args), options]

    async with pool.checkout() as session:
        lookup = {"echo": echo}
        return [
            await session.feed_run("echo(1, [2, (3,)], a={'b': {4}}, c=None)", external_lookup=lookup),
            await session.feed_run("echo(*range(3), **{'x': b'y'})", external_lookup=lookup),
        ]


@program
async def host_errors_in_the_sandbox(pool: Pool) -> list[object]:
    def fail(kind: str) -> None:
        raise {"value": ValueError("no such sku"), "key": KeyError("k"), "os": FileNotFoundError("gone")}[kind]

    async with pool.checkout() as session:
        lookup = {"fail": fail}
        caught = "try:\n    fail('value')\nexcept ValueError as e:\n    r = ('caught', str(e))\nr"
        return [
            await session.feed_run(caught, external_lookup=lookup),
            await attempt(session, "fail('key')", external_lookup=lookup),
            await attempt(session, "def f():\n    fail('os')\nf()", external_lookup=lookup),
            await session.feed_run("r"),
        ]


@program
async def functions_kept_in_the_sandbox(pool: Pool) -> list[object]:
    calls: list[tuple[str, int]] = []
    lookup = {
        "first": lambda n: calls.append(("first", n)) or n,
        "second": lambda n: calls.append(("second", n)) or -n,
    }
    async with pool.checkout() as session:
        await session.feed_run("kept = [first, second]", external_lookup=lookup)
        results = await session.feed_run("[f(i) for i, f in enumerate(kept)]", external_lookup=lookup)
        return [results, calls, await session.feed_run("kept[0] is first", external_lookup=lookup)]


@program
async def missing_names(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        return [
            await attempt(session, "absent + 1", external_lookup={}),
            await session.feed_run("present + 1", external_lookup={"present": 41}),
            await session.feed_run("try:\n    absent\nexcept NameError as e:\n    r = str(e)\nr"),
            await attempt(session, "absent()"),
        ]


@program
async def host_objects_keep_their_identity(pool: Pool) -> list[object]:
    account = Account("ada")
    async with pool.checkout() as session:
        wrapped = ClassInstance(account, eager_attrs="all", allowed_methods={"pay"})
        await session.feed_run("kept = [account, {'again': account}]", inputs={"account": wrapped})
        same = await session.feed_run("account")
        pair = await session.feed_run("kept")
        inside = await session.feed_run("kept[0] is kept[1]['again'], account.owner")
        return [same is account, pair[0] is account, pair[1]["again"] is account, inside]


@program
async def host_object_methods(pool: Pool) -> list[object]:
    account = Account("bob")
    async with pool.checkout() as session:
        allowed = {"pay", "refuse", "pay_later"}
        wrapped = ClassInstance(account, eager_attrs={"owner"}, lazy_attrs={"balance"}, allowed_methods=allowed)
        results: list[object] = [
            await session.feed_run("account.pay(5)", inputs={"account": wrapped}),
            await session.feed_run("account.pay(7), account.balance"),
            await attempt(session, "account.refuse()"),
            await session.feed_run("await account.pay_later(8)"),
            await attempt(session, "account.history"),
            await session.feed_run("account.balance, account.owner, hasattr(account, 'history')"),
        ]
        return [*results, account.balance, account.history]


@program
async def host_classes(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        wrapper = ClassType(Account, init=True, allowed_methods={"opened"}, instance_eager_attrs="all")
        name = await session.feed_run("made = Account('eve', 3)\nmade.owner", inputs={"Account": wrapper})
        made = await session.feed_run("made")
        return [
            name,
            type(made) is Account,
            made.balance,
            await session.feed_run("Account.opened(), type(made) is Account"),
            await session.feed_run("made") is made,
        ]


@program
async def sandbox_classes_at_the_host(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        await session.feed_run("class Thing:\n    def __init__(self, n):\n        self.n = n")
        proxy = await session.feed_run("thing = Thing(4)\nthing")
        got: list[object] = []
        code = "take(thing, thing)\nthing.n"
        n = await session.feed_run(code, external_lookup={"take": lambda a, b: got.extend([a is b, a.name])})
        return [proxy.name, dict(proxy.attributes), got, n]


@program
async def host_values_returned_wrapped(pool: Pool) -> list[object]:
    accounts = {name: Account(name) for name in ("a", "b")}
    async with pool.checkout() as session:

        def find(name: str) -> ClassInstance:
            return ClassInstance(accounts[name], eager_attrs={"owner"}, allowed_methods={"pay"})

        code = "found = [find('a'), find('b')]\n[f.pay(i + 1) for i, f in enumerate(found)]"
        paid = await session.feed_run(code, external_lookup={"find": find})
        again = await session.feed_run("found[1].pay(10), found[1].owner")
        back = await session.feed_run("found[::-1]")
        return [paid, again, back[0] is accounts["b"], back[1] is accounts["a"]]


@program
async def stepping_by_hand(pool: Pool) -> list[object]:
    results: list[object] = []
    async with pool.checkout() as session:
        step = await session.feed_start("a = fetch(1)\nb = fetch(a + where)\n[a, b]")
        answers = iter([10, 20])
        while not isinstance(step, MontyComplete):
            if hasattr(step, "variable_name"):
                results.append(("name", step.variable_name))
                step = await step.resume(value=5)
            else:
                results.append(("call", step.function_name, step.args, step.position.dict()))
                step = await step.resume({"return_value": next(answers)})
        return [*results, step.output, await session.feed_run("a")]


@program
async def stepping_into_errors(pool: Pool) -> list[object]:
    async with pool.checkout() as session:
        code = "try:\n    r = fetch(1)\nexcept ValueError as e:\n    r = repr(e)\nr"
        step = await session.feed_start(code)
        first = await step.resume({"exception": ValueError("by hand")})
        step = await session.feed_start(code)
        second = await step.resume({"exc_type": "ValueError", "message": "by name"})
        return [first.output, second.output, await attempt(session, "fetch(2)")]


@program
async def an_inner_session(pool: Pool) -> list[object]:
    async with pool.checkout() as outer, pool.checkout() as inner:

        async def ask(code: str) -> object:
            return await inner.feed_run(code)

        await inner.feed_run("n = 7")
        result = await outer.feed_run("x = await ask('n * 6')\nx", external_lookup={"ask": ask})
        return [result, await inner.feed_run("n"), await outer.feed_run("x + 1")]
