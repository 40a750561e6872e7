"""`manage.py serve`: the server, with a small process above it that holds the listening socket."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    """SIGHUP replaces the server without losing a session; SIGTERM or SIGINT drains it and ends."""

    help = "Serve sandboxes and pages. SIGHUP replaces the server, SIGTERM drains it and ends."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--fd", type=int, help="serve on this listening socket, without a process above")
        parser.add_argument("--ready-fd", type=int, help="write a byte here when ready")
        parser.add_argument("--parent", type=int, help="end when this process, the parent, is gone")

    def handle(self, *args: Any, fd: int | None, ready_fd: int | None, parent: int | None, **options: Any) -> None:
        if fd is None:
            self._hold()
        else:
            self._serve(fd, ready_fd, parent)

    def _hold(self) -> None:
        from sandboxes.serving import Holder, listen

        try:
            listening = listen(settings.HOST, settings.PORT)
        except OSError as error:
            where = f"{settings.HOST}:{settings.PORT}"
            raise CommandError(f"cannot listen on {where}: {error.strerror}; set HOST or PORT to another") from error

        async def hold() -> int:
            return await Holder(listening).run()

        sys.exit(asyncio.run(hold()))

    def _serve(self, fd: int, ready_fd: int | None, parent: int | None) -> None:
        from sandboxes.serving import die_with_parent

        if parent is not None:
            die_with_parent(parent)

        from channels.routing import get_default_application

        from sandboxes.isolation import NotIsolated
        from sandboxes.server import MoorageServer

        def ready() -> None:
            if ready_fd is not None:
                os.write(ready_fd, b"1")
                os.close(ready_fd)

        try:
            MoorageServer(get_default_application(), socket.socket(fileno=fd), ready).run()
        except NotIsolated as error:
            raise CommandError(str(error)) from error
