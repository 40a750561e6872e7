"""Workers: real ones, isolated and plain; and programs that misbehave as no real one does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from sandboxes import worker as module
from sandboxes.isolation import Isolation
from sandboxes.wire import messages
from sandboxes.wire.fields import varint
from sandboxes.wire.kinds import Event
from sandboxes.wire.messages import DUMP, RESET, dump_state, event_kind, load_frame
from sandboxes.worker import DUMP_FORMAT, HEADROOM, INTERPRETER, Worker, WorkerDied, WorkerNotStarted
from tests.sandboxes.requests import MIB, configure, feed

pytestmark = pytest.mark.usefixtures("child_watcher")

MEMORY = 256 * MIB

Start = Callable[[], Awaitable[Worker]]


@pytest.fixture(scope="module", params=["required", "off"])
def isolation(request):
    return Isolation(request.param)


@pytest.fixture(scope="module")
def isolated():
    return Isolation("required")


@pytest.fixture
async def running():
    """The workers of a test; they are ended and reaped after it."""
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.kill()
        await worker.ended()


@pytest.fixture
def start(isolation, running):
    async def start(memory: int = MEMORY) -> Worker:
        worker = await Worker.start(isolation, memory)
        running.append(worker)
        assert await worker.ask(configure(memory), ignore) == messages.OK
        return worker

    return start


class Script:
    """In the place of an isolation: a worker's program that is a few lines of Python, and plain."""

    isolated = False
    program = sys.executable

    HEAD = (
        "import os, struct, sys, time\n"
        "def say(event): os.write(1, struct.pack('<I', len(event)) + event)\n"
        "def hear(): return os.read(0, struct.unpack('<I', os.read(0, 4))[0])\n"
    )
    GREET = "hear(); say(b'R\\0')\n"

    def __init__(self, code: str, greet: bool = True) -> None:
        self._code = self.HEAD + self.GREET * greet + code

    def argv(self, command, *, address_space, info_fd):
        return [self.program, "-S", "-E", "-c", self._code]


def ignore(event: bytes) -> None:
    pass


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


def proc(pid: int, name: str) -> str:
    """What the kernel says of a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


def limit(pid: int, name: str) -> list[str]:
    """The soft and the hard limit."""
    (line,) = (line for line in proc(pid, "limits").splitlines() if line.startswith(name))
    return line.removeprefix(name).split()[:2]


def open_files(pid: int) -> dict[str, str]:
    return {path.name: str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


class TestTurns:
    async def test_forwards_each_event_and_gives_the_last(self, start):
        worker = await start()
        events: list[bytes] = []
        last = await worker.ask(feed("for i in range(20000): print('line', i)\n40 + 2"), events.append)
        assert last is events[-1]
        assert event_kind(last) is Event.COMPLETE
        assert len(events) > 2
        assert {event_kind(event) for event in events[:-1]} == {Event.PRINT}
        printed = b"".join(events[:-1])
        assert all(f"line {i}\n".encode() in printed for i in (0, 9_999, 19_999))
        assert not worker.busy

    async def test_forwards_while_the_turn_still_runs(self, start):
        worker = await start()
        events: list[bytes] = []
        turn = worker.ask(feed("while True: print('on and on')"), events.append)
        await until(lambda: len(events) > 3)
        assert worker.busy
        assert not turn.done()

    async def test_large_messages_in_both_directions(self, start):
        worker = await start()
        text = "a" * 20_000_000
        assert event_kind(await worker.ask(feed(f"x = {text!r}"), ignore)) is Event.COMPLETE
        answer = await worker.ask(feed("x"), ignore)
        assert text.encode() in answer

    async def test_a_state_goes_on_in_another_worker(self, start):
        first = await start()
        await first.ask(feed("x = 41"), ignore)
        state = dump_state(await first.ask(DUMP, ignore))
        second = await start()
        await second.ask(load_frame(state), ignore)
        said: list[bytes] = []
        await second.ask(feed("print(x + 1)"), said.append)
        assert b"42\n" in said[0]

    async def test_one_thing_at_a_time(self, start):
        worker = await start()
        turn = worker.ask(feed("1"), ignore)
        with pytest.raises(RuntimeError, match="still in a turn"):
            worker.ask(DUMP, ignore)
        await turn
        assert event_kind(await worker.ask(feed("2"), ignore)) is Event.COMPLETE

    async def test_what_forward_raises_ends_the_wait_but_not_the_turn(self, start):
        worker = await start()

        def fail(event: bytes) -> None:
            raise OSError("the client left")

        with pytest.raises(OSError, match="the client left"):
            await worker.ask(feed("for _ in range(50000): print('a line')"), fail)
        await until(lambda: not worker.busy)
        assert event_kind(await worker.ask(feed("1"), ignore)) is Event.COMPLETE

    async def test_a_cancelled_ask_forwards_nothing_more(self, start):
        worker = await start()
        events: list[bytes] = []
        turn = worker.ask(feed("for _ in range(300000): print('a line')"), events.append)
        await until(lambda: events)
        turn.cancel()
        seen = len(events)
        assert worker.busy
        await until(lambda: not worker.busy)
        assert len(events) == seen
        assert event_kind(await worker.ask(feed("1"), ignore)) is Event.COMPLETE


class TestBackpressure:
    async def test_a_paused_worker_is_held_up(self, start):
        worker = await start()
        amount = 0

        def count(event: bytes) -> None:
            nonlocal amount
            amount += len(event)
            if not paused:
                worker.pause()
                paused.append(amount)

        paused: list[int] = []
        turn = worker.ask(feed("for _ in range(100000): print('a' * 99)"), count)
        await until(lambda: paused)
        written, since = None, time.monotonic()
        while not turn.done() and time.monotonic() - since < 0.3:
            now = psutil.Process(worker.pid).io_counters().write_chars
            if now != written:
                written, since = now, time.monotonic()
            await asyncio.sleep(0.01)
        assert not turn.done()
        assert amount - paused[0] <= 2 * 64 * 1024
        worker.pause()
        worker.unpause()
        worker.unpause()
        await turn
        assert amount > 100_000 * 100

    async def test_killed_while_paused(self, start):
        worker = await start()
        turn = worker.ask(feed("while True: print('a' * 99)"), lambda event: worker.pause())
        await until(lambda: psutil.Process(worker.pid).io_counters().write_chars > 10_000)
        worker.kill()
        with pytest.raises(WorkerDied):
            await turn
        await worker.ended()

    async def test_died_while_paused(self, start):
        worker = await start()
        turn = worker.ask(feed("while True: print('a' * 99)"), lambda event: worker.pause())
        await until(lambda: psutil.Process(worker.pid).io_counters().write_chars > 10_000)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            await turn


class TestDeath:
    async def test_killed(self, start):
        worker = await start()
        group = psutil.Process(os.getpgid(worker.pid))
        processes = [psutil.Process(worker.pid), group, *group.children(recursive=True)]
        turn = worker.ask(feed("while True: pass"), ignore)
        worker.kill()
        worker.kill()
        assert not worker.alive
        with pytest.raises(WorkerDied, match="ended by the server") as died:
            await turn
        assert (died.value.exit_code, died.value.signal) == (None, None)
        assert await worker.ended() is died.value
        for process in processes:
            await until(lambda process=process: not process.is_running())
        assert worker.resident() == 0
        with pytest.raises(WorkerDied, match="ended by the server"):
            worker.ask(DUMP, ignore)

    async def test_by_a_signal(self, start):
        worker = await start()
        turn = worker.ask(feed("while True: pass"), ignore)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="killed by the signal SIGKILL") as died:
            await turn
        assert died.value.signal == signal.SIGKILL
        assert died.value.exit_code is None
        with pytest.raises(WorkerDied, match="SIGKILL"):
            worker.ask(DUMP, ignore)

    async def test_while_nobody_asks(self, start):
        worker = await start()
        ended: list[Worker] = []
        worker.call_when_ended(ended.append)
        os.kill(worker.pid, signal.SIGKILL)
        assert (await worker.ended()).signal == signal.SIGKILL
        await until(lambda: ended)
        assert ended == [worker]
        worker.kill()
        worker.pause()
        worker.unpause()

    async def test_of_too_large_a_dump(self, start):
        worker = await start(64 * MIB)
        assert event_kind(await worker.ask(feed("x = 'a' * 40_000_000"), ignore)) is Event.COMPLETE
        with pytest.raises(WorkerDied, match="exit code 65: it reached the session's memory limit") as died:
            await worker.ask(DUMP, ignore)
        assert died.value.exit_code == 65
        assert died.value.out_of_memory

    async def test_a_last_word_is_heard(self, isolation, running):
        worker = await Worker.start(isolation, MEMORY)
        running.append(worker)
        answer = await worker.ask(configure(version=99), ignore)
        assert event_kind(answer) is Event.FATAL_ERROR
        assert "unsupported protocol version" in messages.words(answer)
        assert (await worker.ended()).exit_code == 4

    async def test_of_a_panic_in_words(self, running):
        running.append(worker := await Worker.start(Script("hear(); sys.exit(101)"), MEMORY))
        with pytest.raises(WorkerDied, match="exit code 101: the interpreter panicked") as died:
            await worker.ask(RESET, ignore)
        assert not died.value.out_of_memory

    async def test_of_an_unknown_exit_code(self, running):
        running.append(worker := await Worker.start(Script("hear(); sys.exit(7)"), MEMORY))
        with pytest.raises(WorkerDied, match=r"exit code 7$"):
            await worker.ask(RESET, ignore)

    def test_a_launcher_tells_a_signal_as_an_exit_code(self):
        assert WorkerDied.of_return_code(134, launched=True).signal == signal.SIGABRT
        assert WorkerDied.of_return_code(134, launched=False).exit_code == 134
        assert WorkerDied.of_return_code(-6, launched=False).signal == signal.SIGABRT
        assert WorkerDied.of_return_code(255, launched=True).exit_code == 255

    async def test_all_events_before_the_death_are_forwarded(self, running):
        code = "hear()\nfor i in range(3000): say(b'\\n' + b'x' * 99)\nos._exit(9)"
        running.append(worker := await Worker.start(Script(code), MEMORY))
        events: list[bytes] = []
        with pytest.raises(WorkerDied, match="exit code 9"):
            await worker.ask(RESET, events.append)
        assert len(events) == 3000


class TestMisbehaviour:
    """A worker runs what a stranger wrote: one that was taken over may send anything."""

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            ("hear(); os.write(1, b'\\xff\\xff\\xff\\xff'); time.sleep(99)", "larger than the limit"),
            ("hear(); say(b''); time.sleep(99)", "no event"),
            ("hear(); say(b'\\x6a\\0'); time.sleep(99)", "no event"),
            ("hear(); say(b'R\\0'); say(b'R\\0'); time.sleep(99)", "without being asked"),
        ],
    )
    async def test_is_killed(self, running, code, words):
        running.append(worker := await Worker.start(Script(code), MEMORY))
        turn = worker.ask(RESET, ignore)
        assert words in str(await worker.ended())
        assert not worker.alive
        assert isinstance(turn.exception(), WorkerDied) or turn.result() == messages.OK

    async def test_speaking_unasked_is_noticed_at_once(self, running):
        running.append(worker := await Worker.start(Script("say(b'\\n\\0'); time.sleep(99)"), MEMORY))
        assert "without being asked" in str(await worker.ended())


class TestStart:
    async def test_a_missing_program(self, isolation):
        class Missing:
            isolated = False
            program = "/nowhere/monty"

            def argv(self, command, **_):
                return list(command)

        with pytest.raises(WorkerNotStarted, match="/nowhere/monty"):
            await Worker.start(Missing(), MEMORY)

        broken = Isolation("off")
        broken.program = "/nowhere/monty"
        with pytest.raises(WorkerNotStarted, match="not found"):
            await Worker.start(broken, MEMORY)
        assert children() == []

    async def test_a_program_missing_inside(self, isolated, monkeypatch):
        monkeypatch.setattr(isolated, "program", "/nowhere/monty")
        with pytest.raises(WorkerNotStarted, match="exit code 1"):
            await Worker.start(isolated, MEMORY)
        assert children() == []

    async def test_a_program_that_ends_at_once(self):
        with pytest.raises(WorkerNotStarted, match="exit code 3"):
            await Worker.start(Script("sys.exit(3)", greet=False), MEMORY)

    async def test_a_program_that_says_nothing(self, monkeypatch):
        monkeypatch.setattr(module, "START_SECONDS", 0.2)
        with pytest.raises(WorkerNotStarted, match="not ready after"):
            await Worker.start(Script("time.sleep(99)", greet=False), MEMORY)
        await until(lambda: not children())

    async def test_a_program_that_is_another(self):
        with pytest.raises(WorkerNotStarted, match="unexpected"):
            await Worker.start(Script("hear(); say(b'\\x32\\0'); time.sleep(99)", greet=False), MEMORY)
        with pytest.raises(WorkerNotStarted, match="broke the protocol"):
            await Worker.start(Script("print('hello'); sys.stdout.flush(); time.sleep(99)", greet=False), MEMORY)
        await until(lambda: not children())

    async def test_cancelled_at_any_moment_leaves_no_process(self, isolation):
        for rounds in range(12):
            start = asyncio.ensure_future(Worker.start(isolation, MEMORY))
            for _ in range(rounds):
                await asyncio.sleep(0)
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        start = asyncio.ensure_future(Worker.start(isolation, MEMORY))
        await until(children)
        start.cancel()
        await until(lambda: start.done() and not children())
        assert not module._launches

    def test_the_end_of_the_loop_in_a_start_hangs_nothing(self, isolation):
        """`asyncio.run` cancels what still runs at its end, the launch itself too."""

        async def begin() -> None:
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(asyncio.get_running_loop())
            asyncio.set_child_watcher(watcher)
            asyncio.ensure_future(Worker.start(isolation, MEMORY))  # noqa: RUF006
            while not children():
                await asyncio.sleep(0)

        asyncio.run(asyncio.wait_for(begin(), 30))
        deadline = time.monotonic() + 30
        while children():
            assert time.monotonic() < deadline
            time.sleep(0.01)


class TestProcess:
    async def test_pid_and_size_are_the_interpreters_own(self, start):
        worker = await start()
        assert proc(worker.pid, "comm") == "monty\n"
        before = worker.resident()
        assert 2 * MIB < before < 40 * MIB
        await worker.ask(feed("x = 'a' * 50_000_000"), ignore)
        assert 48 * MIB < worker.resident() - before < 80 * MIB

    async def test_its_address_space_has_a_limit(self, start):
        worker = await start(64 * MIB)
        assert limit(worker.pid, "Max address space") == [str(64 * MIB + HEADROOM)] * 2
        assert limit(worker.pid, "Max core file size") == ["0", "0"]

    async def test_the_whole_memory_limit_can_be_used(self, start):
        """The limit of the address space is a second wall: the interpreter's own is met first."""
        worker = await start()
        await worker.ask(feed("x = 'a' * 62_000_000"), ignore)
        state = dump_state(await worker.ask(DUMP, ignore))
        again = await start()
        assert event_kind(await again.ask(load_frame(state), ignore)) is Event.OK
        assert len(dump_state(await again.ask(DUMP, ignore))) == len(state)
        assert event_kind(await worker.ask(feed("x = None\nx = 'a' * 250_000_000\nx = None"), ignore)) is Event.COMPLETE
        error = await worker.ask(feed("x = 'a' * 300_000_000"), ignore)
        assert "memory limit exceeded" in messages.words(error)

    async def test_inherits_nothing(self, start, monkeypatch, tmp_path):
        monkeypatch.setenv("SECRET", "a secret")
        with (tmp_path / "open").open("w") as file:
            os.set_inheritable(file.fileno(), True)
            worker = await start()
            found = open_files(worker.pid)
        assert set(found) == {"0", "1", "2"}
        assert found["2"] == "/dev/null"
        assert proc(worker.pid, "environ") in ("", "PWD=/\0")
        assert os.getpgid(worker.pid) not in (0, os.getpgid(0))
        assert os.getsid(worker.pid) != os.getsid(0)

    async def test_dies_with_its_server(self, isolation):
        """Also in an endless loop, in which it would not notice that its pipes are closed."""
        server = (
            "import asyncio, os, sys\n"
            "from sandboxes.isolation import Isolation\n"
            "from sandboxes.worker import Worker\n"
            "from tests.sandboxes.requests import configure, feed\n"
            "async def main():\n"
            "    worker = await Worker.start(Isolation(sys.argv[1]), 1 << 28)\n"
            "    await worker.ask(configure(), lambda event: None)\n"
            "    worker.ask(feed('while True: pass'), lambda event: None)\n"
            "    print(worker.pid, flush=True)\n"
            "    await asyncio.sleep(600)\n"
            "asyncio.run(main())\n"
        )
        command = [sys.executable, "-c", server, isolation.mode]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        worker = psutil.Process(int(await process.stdout.readline()))
        assert worker.is_running()
        process.kill()
        await process.wait()
        await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


class TestInterpreter:
    async def test_format_is_that_of_its_dumps(self, start):
        worker = await start()
        await worker.ask(feed("x = 1"), ignore)
        state = dump_state(await worker.ask(DUMP, ignore))
        assert state.startswith(b"MONTY\0" + varint(DUMP_FORMAT) + b"\0")
        assert worker.interpreter == INTERPRETER

    def test_version_is_that_of_the_program(self, isolation):
        told = subprocess.run([isolation.program, "--version"], capture_output=True, text=True, check=True).stdout
        assert f"{told.split()[-1]}/{DUMP_FORMAT}" == INTERPRETER
