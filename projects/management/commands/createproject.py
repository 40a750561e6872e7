"""Makes a project."""

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from projects.models import Project


class Command(BaseCommand):
    help = "Make a project."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="lower-case letters, digits and hyphens")
        parser.add_argument("--quota", type=int, help="bytes of saved state (default: 1 GiB)")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project(name=options["name"])
        if options["quota"] is not None:
            project.snapshot_quota = options["quota"]
        try:
            project.full_clean()
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        project.save()
        self.stdout.write(f"Project {project.name} made.")
