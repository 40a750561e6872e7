"""Writing the few small files of this instance that hold secrets."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 600 whole: after a crash or a power cut it holds the old text or the new."""
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
