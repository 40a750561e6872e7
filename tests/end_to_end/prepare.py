"""Makes the database that the servers under test begin with, and prints its API keys as JSON.

Run in a process of its own (`python -m tests.end_to_end.prepare`), with the settings of the server in its environment.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

MIB = 2**20

PROJECTS: dict[str, dict[str, Any]] = {
    "main": {},
    "other": {},
    "roomy": {"max_sessions": 5000},
    "small": {"memory_limit": 64 * MIB},
    "quick": {"memory_limit": 64 * MIB, "feed_seconds": 2, "turn_seconds": 2},
    "capped": {"max_sessions": 6},
}


def main() -> None:
    """Migrate, and make every project with a key of its own name, and the keys that open nothing."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()

    from django.core.management import call_command
    from django.utils import timezone

    from projects import keys
    from projects.models import Project
    from projects.scopes import Scope

    call_command("migrate", verbosity=0)
    secrets = {}
    for name, fields in PROJECTS.items():
        project = Project.objects.create(name=name, **fields)
        _, secrets[name] = keys.make(project, "programs")
    main_project = Project.objects.get(name="main")
    revoked, secrets["revoked"] = keys.make(main_project, "revoked")
    revoked.revoke()
    yesterday = timezone.now() - timedelta(days=1)
    _, secrets["expired"] = keys.make(main_project, "expired", expires=yesterday)
    _, secrets["reader"] = keys.make(main_project, "reader", [Scope("project:read_snapshots")])
    _, secrets["leaver"] = keys.make(main_project, "to be revoked")
    disabled = Project.objects.create(name="disabled", disabled=True)
    _, secrets["disabled"] = keys.make(disabled, "programs")
    print(json.dumps(secrets))


if __name__ == "__main__":
    main()
