"""The settings under test: those of the site, with secrets that protect nothing and a folder of their own."""

import os
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent

os.environ.setdefault("SECRET_KEY", "for-tests-only-" + "x" * 40)
os.environ.setdefault("VAULT_KEYS", "tests:" + "A" * 43 + "=")
os.environ.setdefault("VAR_DIR", str(_CHECKOUT / "var" / "tests"))
os.environ.setdefault("WORKER_ISOLATION", "required")

from config.settings import *  # noqa: E402, F403

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":  # noqa: F405
    # A file as in real life, not Django's database in memory, which has no WAL and locks differently.
    DATABASES["default"]["TEST"] = {"NAME": VAR_DIR / "test.sqlite3"}  # noqa: F405
