"""The secrets that an instance makes for itself on its first start, in a file that only its user may read.

Imports no Django: the settings cannot be loaded before the secrets exist.
"""

import base64
import binascii
import os
import re
import secrets
from pathlib import Path

from config.files import write_private

BASE_DIR = Path(__file__).resolve().parent.parent
FILE_NAME = "secrets.env"
KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,16}")


class BadVaultKeys(ValueError):
    """VAULT_KEYS is not a list of ID:KEY pairs."""


def var_dir() -> Path:
    """The folder of everything this instance writes: VAR_DIR, by default `var` beside the code."""
    return Path(os.environ.get("VAR_DIR") or BASE_DIR / "var").resolve()


def provide() -> None:
    """Make those of SECRET_KEY and VAULT_KEYS that neither the secrets file nor the environment names."""
    path = var_dir() / FILE_NAME
    lines = path.read_text().splitlines() if path.exists() else []
    named = {line.partition("=")[0] for line in lines} | {name for name, value in os.environ.items() if value}
    made = {"SECRET_KEY": secrets.token_urlsafe(50), "VAULT_KEYS": make_vault_key("first")}
    missing = [f"{name}={value}" for name, value in made.items() if name not in named]
    if missing:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, "\n".join([*lines, *missing]) + "\n")


def make_vault_key(key_id: str) -> str:
    """A new random key in the form that VAULT_KEYS lists: ID:KEY, the key in URL-safe base64."""
    return f"{key_id}:{base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()}"


def read_vault_keys(pairs: list[str]) -> dict[str, bytes]:
    """Keys by their ID, newest first as they were listed.

    Raises BadVaultKeys, which names the pair by its place and never by what it holds.
    """
    keys: dict[str, bytes] = {}
    for place, pair in enumerate(pairs, start=1):
        key_id, _, text = pair.strip().partition(":")
        try:
            key = base64.b64decode(text, altchars=b"-_", validate=True)
        except binascii.Error:
            key = b""
        if not _KEY_ID.fullmatch(key_id) or len(key) != KEY_BYTES:
            raise BadVaultKeys(
                f"entry {place} of VAULT_KEYS is not ID:KEY, an ID of up to 16 letters, digits, - or _ "
                f"and {KEY_BYTES} random bytes in URL-safe base64"
            )
        if key_id in keys:
            raise BadVaultKeys(f"entry {place} of VAULT_KEYS repeats the ID of an earlier one")
        keys[key_id] = key
    return keys
