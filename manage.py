#!/usr/bin/env python
"""Moorage's command line: Django's own commands and those of the apps."""

import os
import sys

from django.core.management import execute_from_command_line

from config.secrets import provide


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    if sys.argv[1:2] == ["up"]:
        provide()  # before the settings are read: they refuse to load without secrets
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
