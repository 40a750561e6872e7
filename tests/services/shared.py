"""One service for all the processes of a test run: whoever comes first starts it and ends it when the last has left."""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


@contextmanager
def shared(folder: Path, name: str, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """The address of the service `name` of the run that uses `folder`.

    Two locks: `door` is held by who comes and by who ends the service; `users` is held, together, by all that are in.
    The system lets go of the locks of a process that dies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / f"{name}.address"
    with (folder / f"{name}.door").open("w") as door, (folder / f"{name}.users").open("w") as users:
        fcntl.flock(door, fcntl.LOCK_EX)
        if address.exists():
            fcntl.flock(users, fcntl.LOCK_SH)
            fcntl.flock(door, fcntl.LOCK_UN)
            yield address.read_text()
            return
        with start() as found:
            address.write_text(found)
            fcntl.flock(door, fcntl.LOCK_UN)
            try:
                yield found
            finally:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(users, fcntl.LOCK_EX)
                address.unlink()


def dies_with_us(command: list[str], user: str | None = None) -> list[str]:
    """The command of a service, as `user` if that is given, which ends should this process be killed."""
    if not sys.platform.startswith("linux") or shutil.which("setpriv") is None:
        return command
    as_user = [f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
    return ["setpriv", *as_user, "--pdeathsig=TERM", *command]
