"""What an API key may be allowed to do."""

from enum import StrEnum


class Scope(StrEnum):
    """One permission of an API key, by its name in the API."""

    EXECUTE = "project:execute_agent_sandboxes"
    """Interpreter sessions, and running code in one call."""
    READ_SNAPSHOTS = "project:read_snapshots"
    """List saved state, look at it, its contents and differences."""
    WRITE_SNAPSHOTS = "project:write_snapshots"
    """Name, keep and delete saved state; make a snapshot in one call."""
    MANAGE_SESSIONS = "project:manage_sessions"
    """List, park, move and end sessions."""
    IMAGES_LIST = "images:list"
    IMAGES_SPAWN = "images:spawn"
    IMAGES_SPAWN_DISPOSABLE = "images:spawn_disposable"
    IMAGES_IMPORT = "images:import"
    IMAGES_CANCEL = "images:cancel"
    IMAGES_TAG = "images:tag"
    ADMIN = "project:admin"
    """Keys, members and the project's own lower limits."""


FOR_PROGRAMS = tuple(scope for scope in Scope if scope is not Scope.ADMIN)
"""What a key gets when nobody says otherwise: everything but the project's administration."""
