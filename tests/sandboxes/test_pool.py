"""The pool: orderings with workers of cardboard, whose starts and deaths come on command, and real ones beside them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from sandboxes.isolation import Isolation
from sandboxes.pool import AtCapacity, CannotStart, Pool, PoolClosed
from sandboxes.wire import messages
from sandboxes.worker import Worker, WorkerNotStarted
from tests.sandboxes.requests import MIB, configure, feed

pytestmark = pytest.mark.usefixtures("child_watcher")


class Cardboard:
    """A worker as the pool sees it. It is reaped when the test says so, or soon after it is killed."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.alive = True
        self.lingers = False
        self._end = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"worker {self.name}"

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            if not self.lingers:
                asyncio.get_running_loop().call_soon(self.reap)

    def die(self) -> None:
        self.alive = False
        self.reap()

    def reap(self) -> None:
        if not self._end.done():
            self._end.set_result(None)

    async def ended(self) -> None:
        await asyncio.shield(self._end)

    def call_when_ended(self, callback: Callable[[Cardboard], None]) -> None:
        self._end.add_done_callback(lambda _: callback(self))


class Factory:
    """Starts cardboard workers: at once, or, while `held`, when the test lets them."""

    def __init__(self) -> None:
        self.made: list[Cardboard] = []
        self.held = False
        self.failure: Exception | None = None
        self.calls = 0
        self.under_way = 0
        self.most = 0
        self._gate = asyncio.Event()

    async def __call__(self) -> Cardboard:
        self.calls += 1
        self.under_way += 1
        try:
            await asyncio.sleep(0)
            while self.held:
                await self._gate.wait()
            if self.failure is not None:
                raise self.failure
        finally:
            self.under_way -= 1
        self.made.append(Cardboard(len(self.made)))
        self.most = max(self.most, len([worker for worker in self.made if worker.alive]))
        return self.made[-1]

    def let_go(self) -> None:
        self.held = False
        self._gate.set()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


@pytest.fixture
def factory(child_watcher):
    return Factory()


@pytest.fixture
async def make(factory):
    pools: list[Pool] = []

    def make(workers=2, warm=0, make_room=lambda: None, wait=30.0) -> Pool:
        pools.append(Pool(factory, workers=workers, warm=warm, make_room=make_room, wait=wait))
        return pools[-1]

    yield make
    factory.let_go()
    for pool in pools:
        await pool.close()


def taking(pool: Pool, resume: bool = False) -> asyncio.Task[Worker]:
    return asyncio.create_task(pool.take(resume))


class TestTaking:
    async def test_a_warm_worker_is_taken_at_once(self, make, factory):
        pool = make(workers=4, warm=2)
        pool.fill()
        await until(lambda: pool.warm == 2)
        factory.held = True
        worker = await pool.take(False)
        assert worker is factory.made[0]
        assert (pool.busy, pool.warm) == (1, 1)

    async def test_without_warm_ones_a_take_starts_its_own(self, make, factory):
        pool = make()
        first, second = await pool.take(False), await pool.take(True)
        assert {first, second} == set(factory.made)
        assert (pool.busy, pool.warm, pool.waiting) == (2, 0, 0)

    async def test_a_dead_worker_is_never_given_out(self, make, factory):
        pool = make(workers=3, warm=2)
        pool.fill()
        await until(lambda: pool.warm == 2)
        factory.made[0].alive = False  # nobody has been told of it yet
        assert await pool.take(False) is factory.made[1]
        factory.made[0].reap()

    async def test_a_warm_worker_that_dies_is_replaced(self, make, factory):
        pool = make(workers=3, warm=2)
        pool.fill()
        await until(lambda: pool.warm == 2)
        factory.made[0].die()
        await settle()
        assert pool.warm == 1
        await until(lambda: pool.warm == 2)
        assert all(worker.alive for worker in factory.made[1:])

    async def test_no_worker_is_given_out_twice(self, make):
        pool = make(workers=5, warm=2)
        workers = []
        for _ in range(20):
            worker = await pool.take(False)
            workers.append(worker)
            pool.free(worker)
        assert len(set(workers)) == 20


class TestWaiting:
    async def test_resumes_first_then_first_come(self, make):
        pool = make(workers=1)
        holder = await pool.take(False)
        order: list[str] = []
        tasks = []
        for name, resume in (("a", False), ("b", False), ("R1", True), ("c", False), ("R2", True)):
            task = taking(pool, resume)
            task.add_done_callback(lambda _, name=name: order.append(name))
            tasks.append(task)
            await settle()
        assert pool.waiting == 5
        pool.free(holder)
        names = ["a", "b", "R1", "c", "R2"]
        for count in range(1, 6):
            await until(lambda count=count: len(order) == count)
            done = next(task for task, name in zip(tasks, names, strict=True) if name == order[-1])
            pool.free(done.result())
        assert order == ["R1", "R2", "a", "b", "c"]

    async def test_at_capacity_after_the_wait(self, make):
        pool = make(workers=1, wait=0.05)
        holder = await pool.take(False)
        with pytest.raises(AtCapacity, match=r"no worker became free in 0\.05 s") as refused:
            await pool.take(True)
        assert type(refused.value) is AtCapacity
        assert (pool.busy, pool.waiting) == (1, 0)
        pool.free(holder)
        assert (await pool.take(False)).alive

    async def test_the_wait_bounds_a_start_that_hangs(self, make, factory):
        factory.held = True
        pool = make(workers=1, wait=0.05)
        with pytest.raises(AtCapacity):
            await pool.take(False)
        factory.let_go()
        assert (await pool.take(False)) is factory.made[0]

    async def test_a_slot_is_free_at_once_though_the_process_lingers(self, make, factory):
        pool = make(workers=1)
        worker = await pool.take(False)
        worker.lingers = True
        pool.free(worker)
        assert pool.busy == 0
        other = await pool.take(False)
        assert other is not worker
        worker.reap()
        await settle()
        assert pool.busy == 1

    async def test_makes_room_once_for_each_that_needs_it(self, make, factory):
        calls = []
        pool = make(workers=2, make_room=lambda: calls.append(1))
        first, _ = await pool.take(False), await pool.take(False)
        assert calls == []
        waiting = taking(pool)
        await settle()
        assert calls == [1]
        pool.free(first)
        await waiting

    async def test_asks_again_for_room_while_somebody_waits(self, make):
        """What could be parked for it may only become idle later."""
        calls, parked = [], []

        def make_room() -> None:
            calls.append(1)
            if len(calls) == 3:
                parked.append(holder)
                pool.free(holder)

        pool = make(workers=1, make_room=make_room)
        holder = await pool.take(False)
        assert (await pool.take(False)) is not holder
        assert parked == [holder]
        assert len(calls) == 3

    async def test_room_made_at_once(self, make):
        pool = make(workers=1, make_room=lambda: pool.free(holder))
        holder = await pool.take(False)
        assert (await pool.take(False)) is not holder

    async def test_room_that_cannot_be_made(self, make):
        def fail() -> None:
            raise RuntimeError("a mistake")

        pool = make(workers=1, make_room=fail)
        holder = await pool.take(False)
        with pytest.raises(RuntimeError, match="a mistake"):
            await pool.take(False)
        assert pool.waiting == 0
        pool.free(holder)
        await pool.take(False)


class TestSlots:
    async def test_never_more_than_there_are(self, make, factory):
        pool = make(workers=3, warm=2)
        takes = [taking(pool, resume=bool(i % 2)) for i in range(30)]
        served = 0
        while served < 30:
            done, _ = await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
            assert pool.busy + pool.warm <= 3
            for task in done:
                takes.remove(task)
                pool.free(task.result())
                served += 1
        assert factory.most <= 3
        await until(lambda: pool.warm == 2)
        assert pool.busy == 0

    async def test_freed_twice_or_dead_counts_once(self, make):
        pool = make(workers=2)
        one, two = await pool.take(False), await pool.take(False)
        pool.free(one)
        pool.free(one)
        assert pool.busy == 1
        two.die()
        await settle()
        assert pool.busy == 0
        pool.free(two)
        assert pool.busy == 0
        for _ in range(2):
            await pool.take(False)
        assert pool.busy == 2

    async def test_a_busy_worker_s_death_serves_the_next(self, make):
        pool = make(workers=1)
        holder = await pool.take(False)
        waiting = taking(pool)
        await settle()
        holder.die()
        assert (await waiting) is not holder

    async def test_a_cancelled_wait_leaves_no_trace(self, make):
        pool = make(workers=1)
        holder = await pool.take(False)
        first, second = taking(pool), taking(pool)
        await settle()
        first.cancel()
        await settle()
        assert pool.waiting == 1
        pool.free(holder)
        assert (await second).alive
        assert (pool.busy, pool.waiting) == (1, 0)

    async def test_cancelled_just_as_it_was_served(self, make, factory):
        """The worker went to nobody: the next one gets it."""
        pool = make(workers=1)
        holder = await pool.take(False)
        first, second = taking(pool), taking(pool)
        await settle()
        factory.held = True
        pool.free(holder)
        await settle()
        factory.let_go()
        while not factory.made[1:]:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second) is factory.made[1]
        assert len(factory.made) == 2
        assert pool.busy == 1

    async def test_cancelled_at_any_moment(self, make, factory):
        pool = make(workers=2, warm=1)
        for rounds in range(15):
            task = taking(pool, resume=bool(rounds % 2))
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            try:
                pool.free(await task)
            except asyncio.CancelledError:
                pass
        await settle()
        assert (pool.busy, pool.waiting) == (0, 0)
        assert {await pool.take(False), await pool.take(False)} <= set(factory.made)

    async def test_a_cancelled_take_leaves_its_start_to_the_next(self, make, factory):
        factory.held = True
        pool = make(workers=1)
        first = taking(pool)
        await settle()
        first.cancel()
        await settle()
        factory.let_go()
        await pool.take(False)
        assert factory.calls == 1


class TestFailingStarts:
    async def test_each_take_is_told(self, make, factory):
        factory.failure = WorkerNotStarted("no such program")
        pool = make(workers=1)
        takes = [taking(pool) for _ in range(3)]
        for task in takes:
            with pytest.raises(CannotStart, match="no such program") as refused:
                await task
            assert refused.value.__cause__ is factory.failure
        assert pool.waiting == 0
        factory.failure = None
        assert (await pool.take(False)).alive

    async def test_a_refill_is_tried_again_ever_more_seldom(self, make, factory):
        factory.failure = WorkerNotStarted("no such program")
        pool = make(workers=2, warm=2)
        pool.fill()
        await until(lambda: factory.calls >= 3)
        assert pool._retry_delay >= 0.2
        factory.failure = None
        await until(lambda: pool.warm == 2)

    async def test_a_failing_refill_fails_the_take_that_waits_for_it(self, make, factory):
        factory.held = True
        factory.failure = WorkerNotStarted("no such program")
        pool = make(workers=1, warm=1)
        pool.fill()
        await settle()
        task = taking(pool)
        await settle()
        assert factory.calls == 1
        factory.let_go()
        with pytest.raises(CannotStart):
            await task


class TestRefill:
    async def test_waits_for_a_burst_to_pass(self, make, factory):
        pool = make(workers=8, warm=2)
        pool.fill()
        await until(lambda: pool.warm == 2)
        calls = factory.calls
        await pool.take(False)
        await pool.take(False)
        assert factory.calls == calls
        await until(lambda: pool.warm == 2)
        assert factory.calls == calls + 2

    async def test_starts_one_at_a_time(self, make, factory):
        factory.held = True
        pool = make(workers=8, warm=4)
        pool.fill()
        await settle()
        assert factory.under_way == 1
        factory.let_go()
        await until(lambda: pool.warm == 4)

    async def test_takes_start_together(self, make, factory):
        factory.held = True
        pool = make(workers=8)
        takes = [taking(pool) for _ in range(5)]
        await settle()
        assert factory.under_way == 5
        factory.let_go()
        await asyncio.gather(*takes)

    async def test_never_past_the_slots(self, make, factory):
        pool = make(workers=2, warm=2)
        await pool.take(False)
        await until(lambda: pool.warm == 1)
        await pool.take(False)
        await settle()
        assert factory.calls == 2
        assert (pool.busy, pool.warm) == (2, 0)


class TestClosing:
    async def test_ends_everything(self, make, factory):
        pool = make(workers=3, warm=1)
        busy = await pool.take(False)
        await until(lambda: pool.warm == 1)
        await pool.take(False)
        await pool.take(False)
        waiting = taking(pool)
        await settle()
        await pool.close()
        with pytest.raises(PoolClosed):
            await waiting
        with pytest.raises(PoolClosed):
            await pool.take(True)
        assert not any(worker.alive for worker in factory.made)
        pool.free(busy)
        assert (pool.busy, pool.warm) == (0, 0)

    async def test_while_starting(self, make, factory):
        factory.held = True
        pool = make(workers=2, warm=1)
        pool.fill()
        waiting = taking(pool)
        await settle()
        closing = asyncio.create_task(pool.close())
        with pytest.raises(PoolClosed):
            await waiting
        assert not closing.done()
        factory.let_go()
        await closing
        assert factory.made
        assert not any(worker.alive for worker in factory.made)

    async def test_waits_for_those_that_linger(self, make):
        pool = make(workers=1)
        worker = await pool.take(False)
        worker.lingers = True
        pool.free(worker)
        closing = asyncio.create_task(pool.close())
        await settle()
        assert not closing.done()
        worker.reap()
        await closing

    async def test_a_start_that_fails_meanwhile(self, make, factory):
        factory.held = True
        factory.failure = WorkerNotStarted("no such program")
        pool = make(warm=1)
        pool.fill()
        await settle()
        closing = asyncio.create_task(pool.close())
        await settle()
        factory.let_go()
        await closing
        calls = factory.calls
        await settle()
        assert factory.calls == calls


@pytest.fixture(scope="module")
def isolation():
    return Isolation("required")


class TestRealWorkers:
    @pytest.fixture
    async def pool(self, isolation):
        pool = Pool(lambda: Worker.start(isolation, 256 * MIB), workers=3, warm=2, make_room=lambda: None, wait=20)
        yield pool
        await pool.close()
        assert psutil.Process().children(recursive=True) == []

    async def test_serve_and_are_replaced(self, pool):
        pool.fill()
        await until(lambda: pool.warm == 2)
        seen = set()
        for _ in range(8):
            worker = await pool.take(False)
            seen.add(worker.pid)
            assert await worker.ask(configure(), lambda event: None) == messages.OK
            answer = await worker.ask(feed("40 + 2"), lambda event: None)
            assert messages.event_kind(answer) is messages.Event.COMPLETE
            pool.free(worker)
        assert len(seen) == 8
        await until(lambda: pool.warm == 2)

    async def test_a_killed_warm_one_is_not_given_out(self, pool):
        pool.fill()
        await until(lambda: pool.warm == 2)
        victim = pool._warm[0]
        os.kill(victim.pid, signal.SIGKILL)
        await until(lambda: victim not in pool._warm)
        worker = await pool.take(False)
        assert await worker.ask(configure(), lambda event: None) == messages.OK

    async def test_closed_while_they_start(self, pool):
        takes = [taking(pool) for _ in range(3)]
        await asyncio.sleep(0)
        await pool.close()
        for task in takes:
            with pytest.raises(PoolClosed):
                await task

    async def test_many_at_once(self, pool):
        async def serve(resume: bool) -> None:
            worker = await pool.take(resume)
            await worker.ask(configure(), lambda event: None)
            await worker.ask(feed("1"), lambda event: None)
            pool.free(worker)

        await asyncio.gather(*(serve(bool(i % 3)) for i in range(40)))
        assert pool.busy == 0

    async def test_a_missing_program_is_told(self, isolation):
        broken = Isolation("off")
        broken.program = "/nowhere/monty"
        pool = Pool(lambda: Worker.start(broken, MIB), workers=1, warm=0, make_room=lambda: None)
        with pytest.raises(CannotStart, match="not found"):
            await pool.take(False)
        await pool.close()
