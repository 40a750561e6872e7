"""What an instance does to its saved state outside of a server, and what is then left: for the end-to-end tests.

Run in a process of its own (`python -m tests.end_to_end.upkeep sweep|delete PROJECT ID…`), with the settings of the
server in its environment. Prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any


def sweep() -> dict[str, Any]:
    """Sweep as if every time limit had passed, then compare the rows, the objects and the sums."""
    from django.db.models import Sum

    from vault import sweeping
    from vault.models import Blob, Usage
    from vault.storage import store

    at_once = timedelta(0)
    sweeping.sweep_pending(older_than=at_once)
    sweeping.sweep_unreferenced(older_than=at_once)
    sweeping.remove_doomed(older_than=at_once)
    sweeping.sweep_orphans(older_than=at_once)
    rows = set(Blob.objects.values_list("key", flat=True))
    objects = {key for key, _ in store().objects()}
    kept = Blob.objects.exclude(state=Blob.State.DOOMED)
    sums = {row["tenant"]: row["total"] for row in kept.values("tenant").annotate(total=Sum("size"))}
    use = {usage.tenant: usage.bytes for usage in Usage.objects.all() if usage.bytes}
    return {
        "rows": len(rows),
        "rows_without_object": sorted(rows - objects),
        "objects_without_row": sorted(objects - rows),
        "use": use,
        "sums": sums,
    }


def delete(project: str, *ids: str) -> dict[str, Any]:
    """Delete records as a member of the project does."""
    from projects.models import Project
    from snapshots import deleting

    gone = deleting.delete(Project.objects.get(name=project).pk, [bytes.fromhex(each) for each in ids])
    return {"count": gone.count, "freed": gone.freed}


def main() -> None:
    """Do what the command line names."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    name, *arguments = sys.argv[1:]
    print(json.dumps({"sweep": sweep, "delete": delete}[name](*arguments)))


if __name__ == "__main__":
    main()
