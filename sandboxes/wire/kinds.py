"""The kinds of request and event, by the number of the one field that says it."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """A request: what a client, or this server, asks of a worker."""

    CONFIGURE = 1
    INSTALL_DEPENDENCIES = 2
    FEED = 3
    RESUME_CALL = 4
    RESUME_NAME_LOOKUP = 5
    RESUME_FUTURES = 6
    DUMP = 7
    LOAD = 8
    RESET = 9
    SHUTDOWN = 10
    ABORT_FEED = 11


class Event(IntEnum):
    """An answer. Every event but `PRINT` ends the turn."""

    PRINT = 1
    FUNCTION_CALL = 2
    OS_CALL = 3
    NAME_LOOKUP = 4
    RESOLVE_FUTURES = 5
    COMPLETE = 6
    ERROR = 7
    TYPING_ERROR = 8
    DUMP_RESULT = 9
    OK = 10
    FATAL_ERROR = 11
    SHUTDOWN = 12


SUSPENSIONS: Final = frozenset({Event.FUNCTION_CALL, Event.OS_CALL, Event.NAME_LOOKUP, Event.RESOLVE_FUTURES})
"""The events after which the feed waits for an answer of the client's program."""
