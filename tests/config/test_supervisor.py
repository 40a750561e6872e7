"""The supervisor: what it starts it ends, in order, and nothing stays behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from config.supervisor import Program, Supervisor

CHECKOUT = Path(__file__).resolve().parents[2]

NOTES_ITS_END = """
import signal, sys, time
def end(*_):
    with open(sys.argv[1], "a") as log:
        log.write(sys.argv[2] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + "." + sys.argv[2], "w").close()
while True:
    time.sleep(60)
"""
IGNORES_ITS_END = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
with open(sys.argv[1], "w") as file:
    file.write(str(child.pid) + "\\n")
while True:
    time.sleep(60)
"""
SUPERVISES = """
import asyncio, sys
from pathlib import Path
from config.supervisor import Program, Supervisor
async def main():
    async with Supervisor(grace=60, folder=Path.cwd()) as supervisor:
        await supervisor.start(Program("noting", (sys.executable, "-c", sys.argv[1], sys.argv[2], "noting")))
        await supervisor.first_end()
asyncio.run(main())
"""


def noting(log, name, **options):
    return Program(name, (sys.executable, "-c", NOTES_ITS_END, str(log), name), **options)


async def until(condition, seconds=60):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_what_ends_last_ends_after_the_others(tmp_path):
    log = tmp_path / "log"
    async with Supervisor(grace=60, folder=tmp_path) as supervisor:
        await supervisor.start(noting(log, "base", ends_last=True))
        await supervisor.start(noting(log, "first"))
        await supervisor.start(noting(log, "second"))
        await until(lambda: all(Path(f"{log}.{name}").exists() for name in ("base", "first", "second")))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await supervisor.first_end() is None
    *others, last = log.read_text().split()
    assert sorted(others) == ["first", "second"]
    assert last == "base"


async def test_a_program_that_ends_by_itself_is_told(tmp_path):
    log = tmp_path / "log"
    failing = Program("failing", (sys.executable, "-c", "raise SystemExit(3)"))
    async with Supervisor(grace=60, folder=tmp_path) as supervisor:
        await supervisor.start(noting(log, "other"))
        await until(Path(f"{log}.other").exists)
        await supervisor.start(failing)
        assert await supervisor.first_end() is failing
        assert supervisor.exit_code(failing) == 3
    assert log.read_text().split() == ["other"]


async def test_what_does_not_end_is_killed_with_its_children(tmp_path, capsys):
    child = tmp_path / "child"
    stubborn = Program("stubborn", (sys.executable, "-c", IGNORES_ITS_END, str(child)))
    async with Supervisor(grace=0.2, folder=tmp_path) as supervisor:
        await supervisor.start(stubborn)
        await until(lambda: child.exists() and child.read_text().endswith("\n"))
    assert supervisor.exit_code(stubborn) == -signal.SIGKILL
    assert "stubborn did not end within 0.2 seconds: killed." in capsys.readouterr().err
    await until(lambda: not alive(int(child.read_text())))


def test_a_supervisor_that_is_killed_takes_its_programs_with_it(tmp_path):
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISES, NOTES_ITS_END, str(log)],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
    ) as supervisor:
        deadline = time.monotonic() + 60
        while not Path(f"{log}.noting").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        supervisor.kill()
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert log.read_text().split() == ["noting"]
