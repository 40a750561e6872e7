"""Shows what each project stores, and how much of its quota that is."""

from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count
from django.template.defaultfilters import filesizeformat

from projects.models import Project
from snapshots.models import Record
from vault import blobs

COLUMNS = "{:<24} {:>9} {:>9} {:>15} {:>15} {:>6}"


class Command(BaseCommand):
    help = "Show what each project stores, and how much of its quota that is."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("project", nargs="?", help="only this project")

    def handle(self, *args: Any, **options: Any) -> None:
        projects = Project.objects.all()
        if options["project"] is not None:
            projects = projects.filter(name=options["project"])
            if not projects.exists():
                raise CommandError(f"There is no project {options['project']!r}.")
        records: Counter[tuple[int, str]] = Counter()
        for project_id, kind, count in (
            Record.objects.values_list("project_id", "kind").order_by().annotate(Count("pk"))
        ):
            records[project_id, kind] = count
        self.stdout.write(COLUMNS.format("project", "snapshots", "sessions", "stored", "quota", "used"))
        for project in projects:
            stored = blobs.used(project.pk)
            self.stdout.write(
                COLUMNS.format(
                    project.name,
                    records[project.pk, "snapshot"],
                    records[project.pk, "session"],
                    filesizeformat(stored),
                    filesizeformat(project.quota),
                    f"{stored / project.quota:.0%}" if project.quota else "-",
                )
            )
