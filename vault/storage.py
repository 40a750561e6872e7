"""Where objects are: the local disk, made durable, or a bucket. Chosen by STORAGE_URL."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage

from vault import faults

logger = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
DELETED_AT_ONCE = 1000
"""S3's limit of keys in one request."""


class StorageFailed(Exception):
    """Storage did not do what was asked; it may succeed later."""


class BlobMissing(Exception):
    """There is no object under this key."""


@dataclass(frozen=True)
class Facts:
    """What a store knows of an object without reading it."""

    size: int
    """In bytes."""
    written: datetime


class Store(Protocol):
    """What the vault needs of a store. Every method may raise StorageFailed."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whole and durable when this returns."""

    def get(self, key: str) -> bytes:
        """Read an object. Raises BlobMissing."""

    def remove(self, key: str) -> None:
        """Remove an object; absent is as good as removed."""

    def remove_many(self, keys: Collection[str]) -> set[str]:
        """Remove objects. Those that are gone now: the store may fail at some of them."""

    def objects(self) -> Iterator[tuple[str, Facts]]:
        """Every object's key, and what is known of it; unfinished ones too."""


class DurableFileStorage(FileSystemStorage):
    """Django's, whose files are whole or absent after a power cut: written aside, synced, renamed, folder synced."""

    def _save(self, name: str, content: Any) -> str:
        path = Path(self.path(name))
        folder = path.parent
        make_durably(folder, Path(self.location))
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
        return name


def make_durably(folder: Path, root: Path) -> None:
    """Make `folder`, somewhere beneath `root`, so that it and the folders on the way outlive a power cut."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sync_way_to(folder, root)


@lru_cache(maxsize=20_000)
def _sync_way_to(folder: Path, root: Path) -> None:
    """Once a process: that a folder is there does not mean that whoever made it has synced it already."""
    if folder != root:
        _sync_way_to(folder.parent, root)
        sync_folder(folder.parent)


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
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(folder.parent)
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

    def remove_many(self, keys: Collection[str]) -> set[str]:
        """Those that are gone now."""
        gone = set()
        for key in keys:
            try:
                self.remove(key)
            except StorageFailed as error:
                logger.warning("object %s stays: %s", key, error)
            else:
                gone.add(key)
        return gone

    def objects(self) -> Iterator[tuple[str, Facts]]:
        """Every object's key, and what is known of it; unfinished ones too."""
        for path in self.folder.rglob("*"):
            try:
                if path.is_file():
                    found = path.stat()
                    facts = Facts(found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))
                    yield path.relative_to(self.folder).as_posix(), facts
            except FileNotFoundError:
                continue  # removed meanwhile


class Bucket:
    """Objects in a bucket of S3, or of anything that speaks it."""

    CONNECT_WITHIN = 5
    READ_WITHIN = 30
    ATTEMPTS = 3

    def __init__(self, bucket: str, prefix: str, options: dict[str, str]) -> None:
        # Whoever keeps objects on the disk does not pay for these imports.
        from boto3.exceptions import Boto3Error
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from storages.backends.s3 import S3Storage

        self._errors = (BotoCoreError, ClientError, Boto3Error)
        self._storage = S3Storage(bucket_name=bucket, location=prefix, file_overwrite=True, default_acl=None, **options)
        self._storage.client_config = self._storage.client_config.merge(
            Config(
                connect_timeout=self.CONNECT_WITHIN,
                read_timeout=self.READ_WITHIN,
                retries={"total_max_attempts": self.ATTEMPTS, "mode": "standard"},
                # Checksums that not every server knows; a sealed blob proves itself.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
        )
        self._prefix = f"{prefix}/" if prefix else ""

    def put(self, key: str, data: bytes) -> None:
        """Raises StorageFailed."""
        try:
            self._storage.save(key, ContentFile(data))
        except self._errors as error:
            raise StorageFailed(f"the bucket does not take it: {error}") from error

    def get(self, key: str) -> bytes:
        """Raises BlobMissing, StorageFailed."""
        try:
            # The storage's own open() asks for the object's head first, and reads it by way of a file.
            data: bytes = self._storage.bucket.Object(self._prefix + key).get()["Body"].read()
        except self._errors as error:
            if getattr(error, "response", {}).get("Error", {}).get("Code") == "NoSuchKey":
                raise BlobMissing(key) from None
            raise StorageFailed(f"the bucket does not give it: {error}") from error
        return data

    def remove(self, key: str) -> None:
        """Absent is as good as removed. Raises StorageFailed."""
        try:
            self._storage.delete(key)
        except self._errors as error:
            raise StorageFailed(f"the bucket does not remove it: {error}") from error

    def remove_many(self, keys: Collection[str]) -> set[str]:
        """Those that are gone now. Raises StorageFailed."""
        gone = set(keys)
        for some in batched(keys, DELETED_AT_ONCE):
            wanted = {"Objects": [{"Key": self._prefix + key} for key in some], "Quiet": True}
            try:
                answer = self._storage.bucket.delete_objects(Delete=wanted)
            except self._errors as error:
                raise StorageFailed(f"the bucket does not remove them: {error}") from error
            for refused in answer.get("Errors", ()):
                key = refused["Key"].removeprefix(self._prefix)
                logger.warning("object %s stays: %s", key, refused.get("Message"))
                gone.discard(key)
        return gone

    def objects(self) -> Iterator[tuple[str, Facts]]:
        """Every object's key, and what is known of it. Raises StorageFailed."""
        try:
            for found in self._storage.bucket.objects.filter(Prefix=self._prefix):
                yield found.key.removeprefix(self._prefix), Facts(found.size, found.last_modified)
        except self._errors as error:
            raise StorageFailed(f"the bucket does not list its objects: {error}") from error


def batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of up to `size` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


@lru_cache(maxsize=4)
def open_store(url: str) -> Store:
    """The store at `url`: `file:///folder` or `s3://bucket/prefix?endpoint_url=…`. Raises ImproperlyConfigured."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Disk(Path(parts.path))
    if parts.scheme == "s3" and parts.netloc:
        return Bucket(parts.netloc, parts.path.strip("/"), dict(parse_qsl(parts.query)))
    # Without its query, which may hold a secret.
    raise ImproperlyConfigured(
        f"STORAGE_URL is {url.partition('?')[0]!r}; it must be file:///folder or s3://bucket/prefix?endpoint_url=…"
    )


def store() -> Store:
    """The store of this instance."""
    return open_store(settings.STORAGE_URL)
