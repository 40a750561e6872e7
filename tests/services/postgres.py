"""A PostgreSQL of the tests' own, in a temporary folder, gone at the end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.shared import dies_with_us

USER = "postgres"
FAST = ("fsync=off", "full_page_writes=off", "max_connections=200", "shared_buffers=64MB")
READY_WITHIN = 60.0


class ServiceMissing(Exception):
    """A program that the tests need is not installed."""


class ServiceFailed(Exception):
    """A service did not start; what it logged is in the words."""


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def programs() -> Path:
    """The folder of PostgreSQL's server programs: Debian keeps it off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    if (initdb := shutil.which("initdb")) is not None:
        return Path(initdb).parent
    raise ServiceMissing("PostgreSQL's server is not installed: `apt-get install postgresql`, or run `make test`")


@contextmanager
def postgresql() -> Iterator[str]:
    """Runs a server; gives the URL of its database `moorage`."""
    bin_folder = programs()
    folder = Path(tempfile.mkdtemp(prefix="moorage-postgres-"))
    data, port = folder / "data", free_port()
    process = None
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        # PostgreSQL refuses to run as root.
        user = USER if os.geteuid() == 0 else None
        groups: list[str] | None = [] if user else None
        initdb = [str(bin_folder / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, user=user, group=user, extra_groups=groups)
        command = [str(bin_folder / "postgres"), "-D", str(data), "-p", str(port)]
        for setting in (*FAST, f"unix_socket_directories={folder}", "listen_addresses=127.0.0.1"):
            command += ["-c", setting]
        with (folder / "log").open("wb") as log:
            # Not by runuser, which stays in between and passes no signal on.
            process = subprocess.Popen(dies_with_us(command, user), stdout=log, stderr=log, cwd=folder)
        createdb = [str(bin_folder / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", USER, "moorage"]
        deadline = time.monotonic() + READY_WITHIN
        while subprocess.run(createdb, capture_output=True).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServiceFailed(f"PostgreSQL did not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield f"postgres://{USER}@127.0.0.1:{port}/moorage"
    finally:
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # at once: nobody needs the data any more
            process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)
