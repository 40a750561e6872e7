"""Runs the programs of one machine side by side and ends them in order (docs/decisions/0001 has the why).

A program is a process in a session of its own: Ctrl-C at the terminal reaches the supervisor alone, which
ends each program once, waits for as long as its drain may take, and leaves nothing behind.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

PR_SET_PDEATHSIG = 1
SAME_SIGNAL = 1.0
"""Seconds in which a second signal is an echo of the first: one sent to a whole group comes here twice, the
second time from `make`, which passes it on."""


@dataclass(frozen=True)
class Program:
    """What to run, and when to end it."""

    name: str
    command: tuple[str, ...]
    ends_last: bool = False
    """Whether the others need it until they have ended."""


@dataclass
class Supervisor:
    """Programs that run together: once one of them has ended, or a signal has come, all of them are ended.

    An asynchronous context manager: leaving it ends whatever was started in it.
    """

    grace: float
    """Seconds that a program may take to end before it is killed."""
    folder: Path
    """Where the programs are started."""
    _running: dict[Program, Process] = field(default_factory=dict)
    _signalled: asyncio.Event = field(default_factory=asyncio.Event)
    _signalled_at: float = 0.0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the terminal may close
            loop.add_signal_handler(number, self._on_signal)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._end([program for program in self._running if not program.ends_last])
        await self._end([program for program in self._running if program.ends_last])

    async def start(self, program: Program) -> None:
        """Start a program; its output goes where ours goes."""
        self._running[program] = await asyncio.create_subprocess_exec(
            *program.command,
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    async def first_end(self) -> Program | None:
        """Wait until a signal asks for the end (None), or a program has ended by itself (that program)."""
        waiting: dict[asyncio.Task[Any], Program | None] = {}
        waiting[asyncio.create_task(self._signalled.wait())] = None
        for program, process in self._running.items():
            waiting[asyncio.create_task(process.wait())] = program
        try:
            ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        return None if self._signalled.is_set() else waiting[ended.pop()]

    def exit_code(self, program: Program) -> int | None:
        """How a program ended: its exit code, or minus the number of the signal that killed it."""
        return self._running[program].returncode

    def _on_signal(self) -> None:
        now = time.monotonic()
        if not self._signalled.is_set():
            self._signalled_at = now
            self._signalled.set()
        elif now - self._signalled_at > SAME_SIGNAL:  # somebody is in a hurry: the server skips its grace
            self._signal([program for program in self._running if not program.ends_last])

    def _signal(self, programs: list[Program]) -> None:
        for program in programs:
            if self._running[program].returncode is None:
                self._running[program].terminate()

    async def _end(self, programs: list[Program]) -> None:
        if not programs:
            return
        self._signal(programs)
        waits = [asyncio.create_task(self._running[program].wait()) for program in programs]
        _, late = await asyncio.wait(waits, timeout=self.grace)
        if late:
            names = [program.name for program in programs if self._running[program].returncode is None]
            print(f"{', '.join(names)} did not end within {self.grace:g} seconds: killed.", file=sys.stderr)
        for program in programs:
            try:  # the whole session: also what a program left when it was killed itself
                os.killpg(self._running[program].pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        await asyncio.wait(waits)


def die_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent has ended, however it ended (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
