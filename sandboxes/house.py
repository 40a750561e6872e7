"""What all connections of one server process share."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxes.database import Lease, Owners, Threads
from sandboxes.pool import Pool
from sandboxes.registry import Registry


@dataclass
class House:
    """What a door needs of the server behind it; the server puts it into each connection's scope."""

    pool: Pool
    registry: Registry
    threads: Threads
    """For what may take long: storage, saves."""
    door: Threads
    """For telling who comes, which waits for no save."""
    lease: Lease
    owners: Owners
    draining: bool = False
