"""Places at which a test can have this process killed outright, to see what a save leaves behind."""

from __future__ import annotations

import os
import signal

_NAME = os.environ.get("MOORAGE_FAULT", "")
_left = int(os.environ.get("MOORAGE_FAULT_AFTER", "1"))


def reach(name: str) -> None:
    """Kill the process when it comes here for the time that the environment asks for."""
    global _left
    if name == _NAME:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
