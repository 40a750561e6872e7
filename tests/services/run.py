"""`python -m tests.services.run [--on-postgres] COMMAND…`: runs a command beside a PostgreSQL and an S3 server.

The command finds them by TEST_POSTGRES_URL and TEST_S3_ENDPOINT; with `--on-postgres` also as its DATABASE_URL. The
exit code is the command's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

from tests.services.bucket import seaweedfs
from tests.services.postgres import postgresql


def main(arguments: list[str]) -> int:
    """Run it."""
    with ExitStack() as services:
        environment = dict(os.environ)
        if "TEST_POSTGRES_URL" not in environment:
            environment["TEST_POSTGRES_URL"] = services.enter_context(postgresql())
        if "TEST_S3_ENDPOINT" not in environment:
            environment["TEST_S3_ENDPOINT"] = services.enter_context(seaweedfs())
        if arguments[0] == "--on-postgres":
            arguments = arguments[1:]
            environment["DATABASE_URL"] = environment["TEST_POSTGRES_URL"]
        child = subprocess.Popen(arguments, env=environment)
        try:
            return child.wait()
        except KeyboardInterrupt:
            return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
