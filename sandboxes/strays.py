"""Worker processes that a killed server left behind.

Workers die with their server, but for one instant: a Bubblewrap whose parent is killed after the clone and before it
has let the child go on leaves that child asleep for ever (bubblewrap 0.8 to 0.11). The next server that starts ends it.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

from sandboxes.isolation import Isolation

logger = logging.getLogger(__name__)


def sweep(isolation: Isolation) -> int:
    """End the launchers of workers that belong to no server any more. How many there were."""
    ended = 0
    walls = isolation.walls()
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        command = _command(pid)
        if walls and _contains(command, walls) and _is_orphan(pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            ended += 1
    if ended:
        logger.warning("%d workers of a server that was killed are ended", ended)
    return ended


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _contains(command: list[str], words: list[str]) -> bool:
    return any(command[at : at + len(words)] == words for at in range(len(command) - len(words) + 1))


def _is_orphan(pid: int) -> bool:
    """Whether its parent is init: a launcher's is a server or another launcher."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "\nPPid:\t1\n" in status and os.getpid() != 1
