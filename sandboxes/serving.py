"""`manage.py serve`: a process that holds the listening socket, and the server that runs beneath it.

The holder is small and never replaced, so the socket's backlog survives every replacement of the server: on SIGHUP a
successor starts on the same socket, and only once it is healthy is the old server asked to drain.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

BACKLOG = 4096
READY_WITHIN = 120.0
STEADY_AFTER = 5.0
"""A server that fails sooner than this many seconds after its start is not started again."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent is gone: a server without its holder would be nobody's."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@dataclass(eq=False)
class Child:
    """One server beneath the holder."""

    process: asyncio.subprocess.Process
    healthy: asyncio.Event = field(default_factory=asyncio.Event)
    started: float = 0.0

    def tell(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.process.returncode is None:
            self.process.send_signal(number)


class Holder:
    """Keeps one healthy server on the socket, replaces it on SIGHUP and ends everything on SIGTERM."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._current: Child | None = None
        self._children: set[Child] = set()
        self._stopping = False
        self._replacing = False
        self._failed = False
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Until everything beneath has ended; the exit code."""
        loop = asyncio.get_running_loop()
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._replace)
        self._current = await self._start()
        await self._ended.wait()
        return 1 if self._failed else 0

    async def _start(self) -> Child:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        fd = self._listening.fileno()
        command = [sys.executable, sys.argv[0], "serve", "--fd", str(fd), "--ready-fd", str(writing)]
        process = await asyncio.create_subprocess_exec(
            *command, "--parent", str(os.getpid()), pass_fds=(fd, writing), start_new_session=True
        )
        os.close(writing)
        child = Child(process, started=loop.time())
        self._children.add(child)
        self._task(self._watch(child))
        self._task(self._await_ready(child, reading))
        return child

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_ready(self, child: Child, reading: int) -> None:
        loop = asyncio.get_running_loop()
        said = loop.create_future()

        def readable() -> None:
            if not said.done():
                said.set_result(os.read(reading, 1))

        loop.add_reader(reading, readable)
        try:
            async with asyncio.timeout(READY_WITHIN):
                if await said:
                    child.healthy.set()
        except TimeoutError:
            logger.error("server %d did not become healthy within %g s: it is ended", child.process.pid, READY_WITHIN)
            child.tell(signal.SIGKILL)
        finally:
            loop.remove_reader(reading)
            os.close(reading)

    async def _watch(self, child: Child) -> None:
        code = await child.process.wait()
        self._children.discard(child)
        if child is self._current and not self._stopping:
            await self._fell(child, code)
        elif code:
            logger.error("server %d ended with exit code %d", child.process.pid, code)
            self._failed = True
        if self._stopping and not self._children:
            self._ended.set()

    async def _fell(self, child: Child, code: int) -> None:
        steady = asyncio.get_running_loop().time() - child.started > STEADY_AFTER
        if child.healthy.is_set() and steady:
            logger.error("server %d ended by itself (exit code %d): another one starts", child.process.pid, code)
            self._current = await self._start()
            return
        logger.error("the server failed at its start (exit code %d)", code)
        self._failed = True
        self._stop()
        if not self._children:
            self._ended.set()

    def _replace(self) -> None:
        if not self._replacing and not self._stopping:
            self._replacing = True
            self._task(self._replaced())

    async def _replaced(self) -> None:
        old = self._current
        try:
            logger.info("a successor starts")
            successor = await self._start()
            ended = asyncio.ensure_future(successor.process.wait())
            healthy = asyncio.ensure_future(successor.healthy.wait())
            await asyncio.wait({ended, healthy}, return_when=asyncio.FIRST_COMPLETED)
            if not successor.healthy.is_set():
                healthy.cancel()
                self._failed = False
                logger.error("the successor did not become healthy; the old server serves on")
                return
            self._current = successor
            if old is not None:
                old.tell(signal.SIGUSR1)
        finally:
            self._replacing = False

    def _stop(self) -> None:
        self._stopping = True
        self._listening.close()  # or new connections would wait in its backlog for nobody
        for child in self._children:
            child.tell(signal.SIGTERM)
