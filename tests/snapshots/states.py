"""States to save."""

from __future__ import annotations

import secrets
from typing import Any

from snapshots.saving import State


def state(project_id: int, **fields: Any) -> State:
    """A small one."""
    usual = {
        "project_id": project_id,
        "session": secrets.token_bytes(16),
        "dump": b"MONTY" + secrets.token_bytes(200),
        "script_name": "main.py",
        "type_check": False,
        "suspended": False,
        "interpreter": "1.4.0/14",
        "limits": {"memory_bytes": 1000},
        "parent": None,
        "key_id": None,
    }
    return State(**{**usual, **fields})


def never() -> bool:
    """Nobody cancels."""
    return False


def always() -> bool:
    """The session is ours."""
    return True
