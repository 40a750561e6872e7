"""What a session asks of the place where state is kept. `database.py` does it for real; tests may hand in another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sandboxes.wire.messages import Limits


class Refused(Exception):
    """A session may not start, or may not do this; the words go to the client."""


class UnknownSession(Exception):
    """No such record for this project: never there, expired, deleted, another project's, or damaged."""


class NoWorkerForVersion(Exception):
    """The record was written by an interpreter that has no worker here; the words name both."""


class QuotaFull(Exception):
    """The project's storage quota has no room; the words say how full it is."""


class NotSaved(Exception):
    """Storage failed for now; trying again may help."""


class Overtaken(Exception):
    """A newer save stands, the record was deleted, or another server owns the session: this save must not be."""


@dataclass(frozen=True)
class Admission:
    """A session that may start."""

    session_id: bytes
    """16 random bytes; also the name of its row when it is ephemeral, but then nobody is told."""
    must_claim: str | None = None
    """The project is full: only a client that comes back for a handed-over record may stay. The refusal, in words,
    for a client whose first request is anything else."""


@dataclass(frozen=True)
class Dump:
    """An interpreter's state at one moment, and what must be known to restore it."""

    state: bytes
    script_name: str
    type_check: bool
    suspended: bool
    limits: Limits
    parent: bytes | None


@dataclass(frozen=True)
class Restored:
    """A record that was opened."""

    record_id: bytes
    state: bytes
    script_name: str
    type_check: bool
    limits: Limits


class Store(Protocol):
    """One project's state, seen by one session. Every method may take a while and none is awaited within a turn."""

    async def admit(self, *, ephemeral: bool, script_name: str) -> Admission:
        """Count the session against the caps and the quota and write its row. Raises Refused."""

    async def snapshot(self, session_id: bytes, dump: Dump, abandoned: Callable[[], bool]) -> bytes:
        """Keep `dump` as a new record and give its ID once it is durable; nothing is kept if `abandoned()` by then.
        Raises QuotaFull, NotSaved, Overtaken."""

    async def save(self, session_id: bytes, dump: Dump, generation: int, *, handed_over: bool) -> None:
        """Replace the record under the session's own ID, over the quota if need be. Raises NotSaved, Overtaken."""

    async def mark_handed_over(self, session_id: bytes, generation: int) -> None:
        """The record of this generation is told to a client by a Shutdown. Raises NotSaved, Overtaken."""

    async def restore(self, record_id: bytes, *, claim: bool) -> Restored:
        """Open a record of the project; the owner of a session that still lives is asked to save first. With `claim`
        only a record that was handed over and is not taken up yet will do, and it is taken up.
        Raises UnknownSession, NoWorkerForVersion, NotSaved."""

    async def reopen(self, session_id: bytes) -> bytes:
        """The state under the session's own ID. Raises UnknownSession, NotSaved."""

    async def frozen(self, session_id: bytes) -> None:
        """The session was handed over: it counts for no cap and holds no record any more."""

    async def ended(self, session_id: bytes, reason: str) -> None:
        """The session is closed."""
