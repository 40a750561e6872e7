"""The settings under test: those of the site, with secrets that protect nothing and a folder of their own."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("SECRET_KEY", "for-tests-only-" + "x" * 40)
os.environ.setdefault("VAULT_KEYS", "tests:" + "A" * 43 + "=")
if "VAR_DIR" not in os.environ:
    # A folder a run, so that two runs at once do not meet. Workers of one run share it: theirs is in the environment.
    os.environ["VAR_DIR"] = tempfile.mkdtemp(prefix="moorage-tests-")
    atexit.register(shutil.rmtree, os.environ["VAR_DIR"], ignore_errors=True)
os.environ.setdefault("WORKER_ISOLATION", "required")

from config.settings import *  # noqa: F403

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":  # noqa: F405
    # A file as in real life, not Django's database in memory, which has no WAL and locks differently.
    DATABASES["default"]["TEST"] = {"NAME": VAR_DIR / "test.sqlite3"}  # noqa: F405
