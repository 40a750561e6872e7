"""Seals anew what older vault keys sealed."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from snapshots.resealing import reseal
from vault.sealing import newest_key_id


class Command(BaseCommand):
    help = "Seal every record that an older vault key sealed anew, with the newest one. Safe to run again."

    def handle(self, *args: Any, **options: Any) -> None:
        result = reseal()
        self.stdout.write(
            f"{result.rewritten} records sealed anew with key {newest_key_id()}, {result.current} were already,"
            f" {result.replaced_meanwhile} were replaced meanwhile."
        )
        if result.unreadable:
            raise CommandError(f"{result.unreadable} records cannot be read; the log names them. Keep the old keys.")
