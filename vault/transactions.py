"""Transactions whose loss in a power cut would harm nobody need not wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def relaxed() -> Iterator[None]:
    """A transaction that is atomic as ever, but whose commit does not wait for the disk.

    Within another transaction it is an ordinary savepoint: the outer one decides.
    """
    if connection.in_atomic_block:
        with transaction.atomic():
            yield
    elif connection.vendor == "sqlite":
        connection.ensure_connection()
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA synchronous=NORMAL")
        try:
            with transaction.atomic():
                yield
        finally:
            if connection.connection is not None:
                with connection.cursor() as cursor:
                    cursor.execute("PRAGMA synchronous=FULL")
    else:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL synchronous_commit TO OFF")
            yield
