"""`python -m tests.services.run [--on-postgres] COMMAND…`: runs a command beside a PostgreSQL and an S3 server.

The command finds them by TEST_POSTGRES_URL and TEST_S3_ENDPOINT; with `--on-postgres` also as its DATABASE_URL. The
exit code is the command's. A service that the environment names already is used, not started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from types import FrameType

from tests.services.bucket import seaweedfs
from tests.services.postgres import postgresql

USAGE = "usage: python -m tests.services.run [--on-postgres] COMMAND…"


def main(arguments: list[str]) -> int:
    """Run it."""
    on_postgres = arguments[:1] == ["--on-postgres"]
    command = arguments[on_postgres:]
    if not command:
        print(USAGE, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, leave)
    with ExitStack() as services:
        environment = dict(os.environ)
        for name, service in (("TEST_POSTGRES_URL", postgresql), ("TEST_S3_ENDPOINT", seaweedfs)):
            if name not in environment:
                environment[name] = services.enter_context(service())
        if on_postgres:
            environment["DATABASE_URL"] = environment["TEST_POSTGRES_URL"]
        child = subprocess.Popen(command, env=environment)
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the terminal has told the command as well
            code = child.wait()
        except SystemExit:
            child.terminate()
            child.wait()
            raise
        return code if code >= 0 else 128 - code


def leave(number: int, frame: FrameType | None) -> None:
    """End the command and the services, then go."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
