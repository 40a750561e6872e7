"""What an instance makes once, on its first start: a project, a key for programs and a person to sign in."""

import json
import secrets
from pathlib import Path

from django.contrib.auth.models import User
from django.db import transaction

from config.files import write_private
from projects import keys
from projects.models import Membership, Project, Role

PROJECT = "default"
ADMIN = "admin"


def provide(path: Path, *, url: str, ws_url: str) -> bool:
    """Make project, key and admin, and write their secrets to `path`; whether this was the first start.

    On a later start only the addresses in the file are renewed, if it is still there: its secrets are kept
    nowhere else, so that whoever removed it makes a new key with `manage.py createkey`.
    """
    places = {"url": url, "ws_url": ws_url}
    if Project.objects.exists():
        if path.exists():
            write_private(path, _text(json.loads(path.read_text()) | places))
        return False
    password = secrets.token_urlsafe(18)
    with transaction.atomic():
        admin = User.objects.create_superuser(ADMIN, password=password)
        project = Project.objects.create(name=PROJECT)
        Membership.objects.create(project=project, user=admin, role=Role.OWNER)
        _, secret = keys.make(project, "first key", created_by=admin)
        access = {"api_key": secret, "admin_user": ADMIN, "admin_password": password}
        # Before the commit: what is committed and not written down could never be used.
        write_private(path, _text(places | access))
    return True


def _text(credentials: dict[str, str]) -> str:
    return json.dumps(credentials, indent=2) + "\n"
