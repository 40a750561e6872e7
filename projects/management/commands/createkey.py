"""Makes an API key, and prints its secret this once."""

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from projects import keys
from projects.models import Project
from projects.scopes import FOR_PROGRAMS, Scope


class Command(BaseCommand):
    help = "Make an API key for a project and print its secret, which is shown this once only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("project", help="the project's name")
        parser.add_argument("name", help="what the key is for")
        parser.add_argument(
            "--scope",
            action="append",
            type=Scope,
            dest="scopes",
            metavar="SCOPE",
            help=f"may be given again; one of {', '.join(Scope)} (default: all but {Scope.ADMIN})",
        )
        parser.add_argument("--days", type=int, help="how long it lives (default: until it is revoked)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            project = Project.objects.get(name=options["project"])
        except Project.DoesNotExist:
            raise CommandError(
                f"There is no project {options['project']!r}; make it with `manage.py createproject`."
            ) from None
        days = options["days"]
        key, secret = keys.make(
            project,
            options["name"],
            options["scopes"] or FOR_PROGRAMS,
            expires=None if days is None else timezone.now() + timedelta(days=days),
        )
        self.stdout.write(secret)
        self.stderr.write(f"Key {key.prefix}… of {project.name}. Its secret is not kept: copy it now.")
