"""The sweeps, as Celery beat starts them."""

from celery import shared_task

from vault import sweeping


@shared_task(name="vault.tasks.remove_doomed")
def remove_doomed() -> int:
    """See `sweeping.remove_doomed`."""
    return sweeping.remove_doomed()


@shared_task(name="vault.tasks.sweep_pending")
def sweep_pending() -> int:
    """See `sweeping.sweep_pending`."""
    return sweeping.sweep_pending()


@shared_task(name="vault.tasks.sweep_unreferenced")
def sweep_unreferenced() -> int:
    """See `sweeping.sweep_unreferenced`."""
    return sweeping.sweep_unreferenced()


@shared_task(name="vault.tasks.sweep_orphans")
def sweep_orphans() -> int:
    """See `sweeping.sweep_orphans`."""
    return sweeping.sweep_orphans()


@shared_task(name="vault.tasks.reconcile")
def reconcile() -> int:
    """See `sweeping.reconcile`. The number of corrections."""
    return len(sweeping.reconcile())
