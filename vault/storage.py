"""Where objects are: the local disk, made durable, or a bucket. Chosen by STORAGE_URL."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage

from vault import faults

TEMPORARY = ".tmp-"


class StorageFailed(Exception):
    """Storage did not do what was asked; it may succeed later."""


class BlobMissing(Exception):
    """There is no object under this key."""


class Store(Protocol):
    """What the vault needs of a store."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...

    def remove(self, key: str) -> None: ...

    def objects(self) -> Iterator[tuple[str, datetime]]: ...


class DurableFileStorage(FileSystemStorage):
    """Django's, whose files are whole or absent after a power cut: written aside, synced, renamed, folder synced."""

    def _save(self, name: str, content: Any) -> str:
        path = Path(self.path(name))
        folder = path.parent
        fresh = not folder.is_dir()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in content.chunks():
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            faults.reach("put:torn")
            aside.rename(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_folder(folder)
        if fresh:
            sync_folder(folder.parent)
        return name


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Disk:
    """Objects as files beneath a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._storage = DurableFileStorage(location=str(folder))

    def put(self, key: str, data: bytes) -> None:
        """Raises StorageFailed."""
        try:
            self._storage._save(key, ContentFile(data))
        except OSError as error:
            raise StorageFailed(f"the disk does not take it: {error.strerror}") from error

    def get(self, key: str) -> bytes:
        """Raises BlobMissing, StorageFailed."""
        try:
            return Path(self._storage.path(key)).read_bytes()
        except FileNotFoundError:
            raise BlobMissing(key) from None
        except OSError as error:
            raise StorageFailed(f"the disk does not give it: {error.strerror}") from error

    def remove(self, key: str) -> None:
        """Absent is as good as removed. Raises StorageFailed."""
        try:
            Path(self._storage.path(key)).unlink(missing_ok=True)
        except OSError as error:
            raise StorageFailed(f"the disk does not remove it: {error.strerror}") from error

    def objects(self) -> Iterator[tuple[str, datetime]]:
        """Every object's key and when it was written; unfinished ones too."""
        for path in self.folder.rglob("*"):
            try:
                if path.is_file():
                    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                    yield path.relative_to(self.folder).as_posix(), written
            except FileNotFoundError:
                continue


class Bucket:
    """Objects in a bucket of S3, or of anything that speaks it."""

    def __init__(self, bucket: str, prefix: str, options: dict[str, str]) -> None:
        from botocore.exceptions import BotoCoreError, ClientError
        from storages.backends.s3 import S3Storage

        self._errors = (BotoCoreError, ClientError)
        self._storage = S3Storage(
            bucket_name=bucket,
            location=prefix,
            file_overwrite=True,
            default_acl=None,
            querystring_auth=False,
            **options,
        )

    def put(self, key: str, data: bytes) -> None:
        """Raises StorageFailed."""
        try:
            self._storage.save(key, ContentFile(data))
        except self._errors as error:
            raise StorageFailed(f"the bucket does not take it: {error}") from error

    def get(self, key: str) -> bytes:
        """Raises BlobMissing, StorageFailed."""
        try:
            with self._storage.open(key) as file:
                data: bytes = file.read()
                return data
        except FileNotFoundError:
            raise BlobMissing(key) from None
        except self._errors as error:
            if getattr(error, "response", {}).get("Error", {}).get("Code") in ("404", "NoSuchKey"):
                raise BlobMissing(key) from None
            raise StorageFailed(f"the bucket does not give it: {error}") from error

    def remove(self, key: str) -> None:
        """Absent is as good as removed. Raises StorageFailed."""
        try:
            self._storage.delete(key)
        except self._errors as error:
            raise StorageFailed(f"the bucket does not remove it: {error}") from error

    def objects(self) -> Iterator[tuple[str, datetime]]:
        """Every object's key and when it was written."""
        prefix = f"{self._storage.location.strip('/')}/" if self._storage.location else ""
        try:
            for found in self._storage.bucket.objects.filter(Prefix=prefix):
                yield found.key[len(prefix) :], found.last_modified
        except self._errors as error:
            raise StorageFailed(f"the bucket does not list its objects: {error}") from error


@lru_cache(maxsize=4)
def open_store(url: str) -> Store:
    """The store at `url`: `file:///folder` or `s3://bucket/prefix?endpoint_url=…`. Raises ImproperlyConfigured."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Disk(Path(parts.path))
    if parts.scheme == "s3" and parts.netloc:
        return Bucket(parts.netloc, parts.path.strip("/"), dict(parse_qsl(parts.query)))
    raise ImproperlyConfigured(f"STORAGE_URL is {url!r}; it must be file:///folder or s3://bucket/prefix")


def store() -> Store:
    """The store of this instance."""
    return open_store(settings.STORAGE_URL)
