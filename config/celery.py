"""The Celery application. Its schedule names tasks by their names, so that it need not know the apps."""

import os
from typing import Any

from celery import Celery
from celery.schedules import crontab

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("config")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


def every(seconds: float, task: str) -> dict[str, Any]:
    """An entry of the schedule that is dropped when no worker took it before the next one is due."""
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}


app.conf.beat_schedule = {
    "park idle sessions": every(5, "sandboxes.tasks.park_idle"),
    "mark lost servers": every(5, "sandboxes.tasks.mark_lost"),
    "forget sessions that ended": every(3600, "sandboxes.tasks.forget_ended"),
    "expire records": every(60, "snapshots.tasks.expire"),
    "remove doomed blobs": every(300, "vault.tasks.remove_doomed"),
    "sweep pending blobs": every(300, "vault.tasks.sweep_pending"),
    "sweep unreferenced blobs": every(300, "vault.tasks.sweep_unreferenced"),
    "sweep orphaned objects": every(300, "vault.tasks.sweep_orphans"),
    "reconcile use": {"task": "vault.tasks.reconcile", "schedule": crontab(hour=3, minute=17)},
}
