"""One worker: a `monty subprocess` process that is asked one thing at a time, and killed after its session."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final, cast

from sandboxes.isolation import Isolation
from sandboxes.wire.fields import ProtocolError
from sandboxes.wire.framing import Deframer, length
from sandboxes.wire.kinds import Event
from sandboxes.wire.messages import RESET, event_kind

DUMP_FORMAT: Final = 14
"""The version byte in the dumps of this interpreter, and the only one that it loads."""

INTERPRETER: Final = f"{version('pydantic-monty-runtime')}/{DUMP_FORMAT}"
"""What can load a dump made here: the interpreter's version and the format of its dumps."""

HEADROOM: Final = 256 << 20
"""Bytes of address space over the memory limit. An idle worker maps 180 MB, of which 6 MB are resident; a dump of
60 MB that it reads or writes is not counted by the interpreter and needs room twice."""

LARGEST_EVENT: Final = 64 << 20
"""Bytes, for workers with a lower memory limit than this; for others it is their limit. Without a bound a worker that
was taken over could fill the server."""

START_SECONDS: Final = 5.0
"""A worker that is not ready by then has failed to start; a usual start takes some milliseconds."""

CANCEL_SECONDS: Final = 0.2
"""How long a launch that was itself cancelled may take to end."""

GROUP_SECONDS: Final = 0.5
"""How long Bubblewrap may take to end after its child was killed, before it is killed too."""

_READ_SIZE: Final = 64 << 10
_SHORT_FRAME: Final = 64 << 10
_OUT_OF_MEMORY: Final = 65
_PANICKED: Final = 101

_WORDS: Final = {
    _OUT_OF_MEMORY: "it reached the session's memory limit",
    _PANICKED: "the interpreter panicked",
    126: "its program could not be run",
    127: "its program was not found",
}


class WorkerNotStarted(Exception):
    """A worker could not be started; `str()` of it says why."""


class WorkerDied(Exception):
    """The worker is gone. `exit_code` or `signal` is set when the system told it; `str()` of it says it in words."""

    def __init__(self, words: str, *, exit_code: int | None = None, signal: int | None = None) -> None:
        super().__init__(words)
        self.exit_code = exit_code
        self.signal = signal

    @property
    def out_of_memory(self) -> bool:
        """Whether it reached its memory limit in a moment in which it could not raise MemoryError."""
        return self.exit_code == _OUT_OF_MEMORY

    @classmethod
    def of_return_code(cls, code: int, *, launched: bool) -> WorkerDied:
        """`code` as subprocess gives it; a launcher (`launched`) tells a signal to its child as 128 and more."""
        number = -code if code < 0 else code - 128 if launched and code > 128 else 0
        if number in signal.valid_signals():
            return cls(f"the worker was killed by the signal {_signal_name(number)}", signal=number)
        meaning = f": {_WORDS[code]}" if code in _WORDS else ""
        return cls(f"the worker ended with exit code {code}{meaning}", exit_code=code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class Worker(asyncio.SubprocessProtocol):
    """A running interpreter. Made by `Worker.start`; every method is for the event loop's thread."""

    interpreter: Final = INTERPRETER

    def __init__(self, *, launched: bool, largest_event: int) -> None:
        self.pid = 0
        """The process ID of the interpreter itself, outside."""
        self._launched = launched
        self._pidfd: int | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._stdout: asyncio.ReadTransport | None = None
        self._deframer = Deframer(largest_event)
        self._answer: asyncio.Future[bytes] | None = None
        self._forward: Callable[[bytes], None] = _drop
        self._killed: WorkerDied | None = None
        self._exited = False
        self._end: asyncio.Future[WorkerDied] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, isolation: Isolation, memory_bytes: int) -> Worker:
        """Starts a worker and waits until it is ready. `memory_bytes` is the highest memory limit of its session.

        Raises WorkerNotStarted. When it is cancelled the process is killed as soon as there is one.
        """
        # asyncio waits, perhaps for ever, for a process whose start is cancelled half-way: so it never is.
        launch = asyncio.create_task(cls._launch(isolation, memory_bytes))
        _launches.add(launch)
        launch.add_done_callback(_launches.discard)
        try:
            return await asyncio.shield(launch)
        except asyncio.CancelledError:
            launch.add_done_callback(_kill_unwanted)
            # At its end the event loop cancels the launch as well: a second time makes asyncio stop waiting.
            patience = CANCEL_SECONDS if launch.cancelling() else START_SECONDS
            asyncio.get_running_loop().call_later(patience, launch.cancel)
            raise

    @classmethod
    async def _launch(cls, isolation: Isolation, memory_bytes: int) -> Worker:
        loop = asyncio.get_running_loop()
        worker = cls(launched=isolation.isolated, largest_event=max(memory_bytes, LARGEST_EVENT))
        info, info_of_child = os.pipe()
        try:
            try:
                await loop.subprocess_exec(
                    lambda: worker,
                    *isolation.argv(
                        (isolation.program, "subprocess"),
                        address_space=memory_bytes + HEADROOM,
                        info_fd=info_of_child if isolation.isolated else None,
                    ),
                    stderr=asyncio.subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(info_of_child,) if isolation.isolated else (),
                )
            except OSError as error:
                raise WorkerNotStarted(f"a worker could not be started: {error}") from error
            finally:
                os.close(info_of_child)
            await worker._greet()
            if isolation.isolated:
                worker._find_interpreter(info)
        finally:
            os.close(info)
        return worker

    async def _greet(self) -> None:
        """Waits for a first answer: only then is the program loaded, and known to be the right one."""
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self.ask(RESET, _drop)
        except WorkerDied as died:
            raise WorkerNotStarted(f"a worker could not be started: {died}") from died
        except TimeoutError:
            self.kill()
            raise WorkerNotStarted(f"a worker was not ready after {START_SECONDS} s") from None
        except BaseException:
            self.kill()
            raise
        if event_kind(answer) is not Event.OK:
            self.kill()
            raise WorkerNotStarted("a worker gave an unexpected first answer")

    def _find_interpreter(self, info: int) -> None:
        try:
            # Bubblewrap wrote this before it let the program run, which has just answered.
            self.pid = json.loads(os.read(info, 4096))["child-pid"]
            self._pidfd = os.pidfd_open(self.pid)
        except (OSError, ValueError, KeyError) as error:
            self.kill()
            raise WorkerNotStarted(f"a worker was gone, or not found, when it had started: {error}") from error

    # The session's side.

    @property
    def alive(self) -> bool:
        """Whether it can be asked: neither dead nor killed."""
        return self._killed is None and not self._end.done()

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come, also one that nobody waits for any more."""
        return self._answer is not None

    def ask(self, frame: bytes, forward: Callable[[bytes], None]) -> asyncio.Future[bytes]:
        """Sends a request; the future gives the event that ends the turn.

        Each event, the last too, is given to `forward` as it is read; what that raises, the future raises. The future
        raises WorkerDied when the worker ends before it has answered. Cancelling the future stops the forwarding and
        not the turn: until that has ended (`busy`) nothing else can be asked.
        """
        if self._stdin is None or not self.alive:
            raise self._killed or self._end.result()
        if self._answer is not None:
            raise RuntimeError("the worker is still in a turn")
        head = length(frame)
        self._answer = asyncio.get_running_loop().create_future()
        self._forward = forward
        if len(frame) < _SHORT_FRAME:
            self._stdin.write(head + frame)
        else:
            self._stdin.write(head)
            self._stdin.write(frame)
        return self._answer

    def pause(self) -> None:
        """Stops reading events; what is already in the server, at most one read, is still forwarded.

        The rest of what a dead worker wrote is forwarded all the same: it is one pipe full at most.
        """
        if self._stdout is not None and self.alive and not self._exited:
            self._stdout.pause_reading()

    def unpause(self) -> None:
        """Reads events again."""
        if self._stdout is not None and self.alive:
            self._stdout.resume_reading()

    def resident(self) -> int:
        """The bytes of memory that the interpreter has resident; 0 once it is gone."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_SIZE
        except (FileNotFoundError, ProcessLookupError):
            return 0

    def kill(self) -> None:
        """Kills the process and all that it started, at once. An answer that is waited for raises WorkerDied."""
        self._kill("the worker was ended by the server")

    async def ended(self) -> WorkerDied:
        """Waits until the process is gone and reaped; says how it ended."""
        return await asyncio.shield(self._end)

    def call_when_ended(self, callback: Callable[[Worker], None]) -> None:
        """Calls back once the process is gone and reaped, soon if it already is."""
        self._end.add_done_callback(lambda _: callback(self))

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid()
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        self._stdout = cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))
        # asyncio would read 256 KiB: for that much memory the allocator goes to the system at every turn.
        vars(self._stdout)["max_size"] = _READ_SIZE

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self._killed is not None:
            return
        try:
            events = self._deframer.feed(data)
            for event in events:
                self._received(event)
        except ProtocolError as violation:
            self._kill(f"the worker was killed, because it broke the protocol: {violation}")

    def process_exited(self) -> None:
        self._exited = True
        # What it wrote before it died is still in the pipe, and the end is only seen by reading it.
        if self._stdout is not None and self._killed is None:
            self._stdout.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        code = self._transport.get_returncode()
        assert code is not None
        self._transport.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        died = self._killed or WorkerDied.of_return_code(code, launched=self._launched)
        self._end.set_result(died)
        self._fail(died)

    def _received(self, event: bytes) -> None:
        kind = event_kind(event)
        answer, forward = self._answer, self._forward
        if answer is None:
            raise ProtocolError("it spoke without being asked")
        if kind is not Event.PRINT:
            self._answer, self._forward = None, _drop
        if answer.done():
            return
        try:
            forward(event)
        except Exception as error:
            answer.set_exception(error)
            return
        if kind is not Event.PRINT and not answer.done():
            answer.set_result(event)

    def _kill(self, words: str) -> None:
        if not self.alive or self._transport is None:
            return
        self._killed = WorkerDied(words)
        self._kill_processes()
        # Not `self._transport.close()`: that may reap the process before the child watcher does.
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.abort()
        if self._stdout is not None:
            self._stdout.close()
        self._fail(self._killed)

    def _kill_processes(self) -> None:
        if self._exited:
            return
        if self._pidfd is None:
            self._kill_group()
            return
        # Bubblewrap reaps the interpreter and ends. Killed together with it, it would leave a zombie, which in a
        # container may have nobody to reap it.
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        asyncio.get_running_loop().call_later(GROUP_SECONDS, self._kill_group)

    def _kill_group(self) -> None:
        if self._transport is not None and not self._exited:
            try:
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _fail(self, died: WorkerDied) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(died)


_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")

_launches: set[asyncio.Task[Worker]] = set()
"""Starts under way: the event loop itself keeps only weak references."""


def _drop(event: bytes) -> None:
    """Forwards an event to nobody."""


def _kill_unwanted(launch: asyncio.Future[Worker]) -> None:
    if not launch.cancelled() and launch.exception() is None:
        launch.result().kill()
