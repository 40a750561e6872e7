"""Revokes an API key, known by the first characters of its secret."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from projects.models import ApiKey


class Command(BaseCommand):
    help = "Revoke an API key. Its sessions are saved and closed within seconds."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("prefix", help="the first 8 characters of its secret")
        parser.add_argument("--project", help="only a key of this project, when several have the same prefix")
        parser.add_argument("--name", help="only a key of this name, when several have the same prefix")

    def handle(self, *args: Any, **options: Any) -> None:
        found = ApiKey.objects.select_related("project").filter(prefix=options["prefix"])
        if options["project"] is not None:
            found = found.filter(project__name=options["project"])
        if options["name"] is not None:
            found = found.filter(name=options["name"])
        open_keys = list(found.filter(revoked=None))
        if not open_keys:
            known = "is revoked already" if found.exists() else "does not exist"
            raise CommandError(f"Key {options['prefix']} {known}.")
        if len(open_keys) > 1:
            listed = "; ".join(f"{key.name!r} of project {key.project}" for key in open_keys)
            raise CommandError(f"Several keys begin with {options['prefix']}: {listed}. Add --project or --name.")
        (key,) = open_keys
        key.revoke()
        self.stdout.write(f"Key {key} of project {key.project} revoked.")
