"""The sweeps over records, as Celery beat starts them."""

from celery import shared_task

from snapshots import expiry


@shared_task(name="snapshots.tasks.expire")
def expire() -> int:
    """See `expiry.expire`."""
    return expiry.expire()
