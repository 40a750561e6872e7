"""Warm workers, and the cap on how many there are: who wants a worker gets one here, or waits in line."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from sandboxes.worker import Worker

logger = logging.getLogger(__name__)

REFILL_DELAY: Final = 0.05
"""Seconds between a take and the start of the warm worker that replaces it, so that a burst of takes goes first."""

ROOM_EVERY: Final = 0.1
"""Seconds between two calls for room while somebody waits: what could not be parked then may be idle now."""

LONGEST_RETRY: Final = 30.0
"""Seconds at most between two tries to start a warm worker when that fails."""


class AtCapacity(Exception):
    """No worker can be had at the moment; `str()` of it says why."""


class PoolClosed(AtCapacity):
    """The server is stopping and gives out no workers."""


class CannotStart(AtCapacity):
    """A worker was to be started for this take, and that failed; `__cause__` is what `start` raised."""


class Pool:
    """At most `workers` workers, of which up to `warm` wait for somebody to take them.

    A worker has a slot from the moment that it is being started until it is freed or dies. Those who wait are served
    first come, first served, resumes before others. `make_room` is called when somebody must wait for a slot, and
    again while he does; it is to see that a worker is freed soon. `wait` is the longest wait, in seconds.
    """

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, Worker]],
        *,
        workers: int,
        warm: int,
        make_room: Callable[[], None],
        wait: float = 4.0,
    ) -> None:
        self._start = start
        self._workers = workers
        self._target = min(warm, workers)
        self._make_room = make_room
        self._wait = wait
        self._busy: set[Worker] = set()
        self._warm: deque[Worker] = deque()
        self._starts: set[asyncio.Task[Worker]] = set()
        self._processes: set[Worker] = set()  # all that are not reaped yet, with a slot or without
        self._resumes: dict[asyncio.Future[Worker], None] = {}  # dicts: a place can leave from the middle
        self._others: dict[asyncio.Future[Worker], None] = {}
        self._refill_timer: asyncio.TimerHandle | None = None
        self._room_timer: asyncio.TimerHandle | None = None
        self._retry_delay = REFILL_DELAY
        self._closed = False

    @property
    def busy(self) -> int:
        """How many workers are taken."""
        return len(self._busy)

    @property
    def warm(self) -> int:
        """How many workers wait to be taken."""
        return len(self._warm)

    @property
    def waiting(self) -> int:
        """How many takes wait for a slot: no worker is being started for them."""
        return max(0, len(self._resumes) + len(self._others) - len(self._starts))

    def fill(self) -> None:
        """Begins to start the warm workers; the first take would do it otherwise."""
        self._refill()

    async def take(self, resume: bool) -> Worker:
        """A worker that has served nobody; from now on the caller's, until `free`.

        Raises AtCapacity: as it is when no worker is free in time, as CannotStart or as PoolClosed.
        """
        if self._closed:
            raise PoolClosed("the server is stopping")
        loop = asyncio.get_running_loop()
        place: asyncio.Future[Worker] = loop.create_future()
        line = self._resumes if resume else self._others
        line[place] = None
        timer = loop.call_later(self._wait, self._give_up, place)
        try:
            self._serve()
            if not place.done() and self.waiting:
                self._make_room()
                self._ask_for_room_later()
            return await place
        except BaseException:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._busy.discard(place.result())
                self._offer(place.result())
            raise
        finally:
            timer.cancel()
            line.pop(place, None)

    def free(self, worker: Worker) -> None:
        """Kills a worker that was taken; its slot is free at once. A second time, or after its death, does nothing."""
        worker.kill()
        if worker in self._busy:
            self._busy.remove(worker)
            self._serve()
            self._refill_later(REFILL_DELAY)

    async def close(self) -> None:
        """Ends every worker and every wait; returns when all processes are gone."""
        self._closed = True
        for timer in (self._refill_timer, self._room_timer):
            if timer is not None:
                timer.cancel()
        while (place := self._first_in_line()) is not None:
            place.set_exception(PoolClosed("the server is stopping"))
        while self._starts or self._processes:
            if self._starts:
                await asyncio.wait(self._starts)
            for worker in list(self._processes):
                worker.kill()
                await worker.ended()
                self._processes.discard(worker)
        self._warm.clear()
        self._busy.clear()

    # The line.

    @property
    def _slots(self) -> int:
        return self._workers - len(self._busy) - len(self._warm) - len(self._starts)

    def _first_in_line(self) -> asyncio.Future[Worker] | None:
        for line in (self._resumes, self._others):
            while line:
                place = next(iter(line))
                del line[place]
                if not place.done():
                    return place
        return None

    def _serve(self) -> None:
        """Gives warm workers to those who wait, and starts workers for the rest of them while there are slots."""
        if self._closed:
            return
        while self._warm:
            if not self._warm[0].alive:
                self._warm.popleft()
                continue
            place = self._first_in_line()
            if place is None:
                break
            worker = self._warm.popleft()
            self._busy.add(worker)
            place.set_result(worker)
            self._refill_later(REFILL_DELAY)
        while self.waiting and self._slots > 0:
            self._begin()

    def _give_up(self, place: asyncio.Future[Worker]) -> None:
        if not place.done():
            place.set_exception(AtCapacity(f"no worker became free in {self._wait:g} s"))

    def _ask_for_room_later(self) -> None:
        if self._room_timer is None and not self._closed:
            self._room_timer = asyncio.get_running_loop().call_later(ROOM_EVERY, self._ask_for_room)

    def _ask_for_room(self) -> None:
        self._room_timer = None
        for _ in range(self.waiting):
            self._make_room()
        if self.waiting:
            self._ask_for_room_later()

    # Starting.

    @property
    def _lacking(self) -> int:
        """How many warm workers are still to be started, beside those that are already spoken for."""
        spare = len(self._starts) - len(self._resumes) - len(self._others)
        return self._target - len(self._warm) - max(0, spare)

    def _begin(self) -> None:
        start = asyncio.get_running_loop().create_task(self._start())
        self._starts.add(start)
        start.add_done_callback(self._begun)

    def _begun(self, start: asyncio.Task[Worker]) -> None:
        self._starts.discard(start)
        if start.cancelled():
            return
        error = start.exception()
        if error is not None:
            self._failed(error)
            return
        self._retry_delay = REFILL_DELAY
        worker = start.result()
        self._processes.add(worker)
        worker.call_when_ended(self._ended)
        self._offer(worker)
        if self._refill_timer is None:
            self._refill()

    def _offer(self, worker: Worker) -> None:
        if self._closed:
            worker.kill()
        elif worker.alive:
            self._warm.append(worker)
            self._serve()

    def _failed(self, error: BaseException) -> None:
        logger.error("a worker could not be started: %s", error)
        place = self._first_in_line()
        if place is None:
            self._retry_delay = min(self._retry_delay * 2, LONGEST_RETRY)
            self._refill_later(self._retry_delay)
            return
        failure = CannotStart(str(error))
        failure.__cause__ = error
        place.set_exception(failure)
        self._serve()

    def _ended(self, worker: Worker) -> None:
        self._processes.discard(worker)
        self._busy.discard(worker)
        if worker in self._warm:
            self._warm.remove(worker)
        self._serve()
        self._refill_later(REFILL_DELAY)

    def _refill_later(self, delay: float) -> None:
        if self._refill_timer is None and not self._closed:
            self._refill_timer = asyncio.get_running_loop().call_later(delay, self._refill)

    def _refill(self) -> None:
        """Starts one warm worker; the next one follows when it is ready, so that starts never crowd out turns."""
        self._refill_timer = None
        if not self._closed and self._lacking > 0 and self._slots > 0:
            self._begin()
