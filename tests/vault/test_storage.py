"""Stores: the durable disk and a real bucket answer alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from vault import storage as storage_module
from vault.storage import BlobMissing, Bucket, Disk, StorageFailed, open_store, store


def test_put_get_list_remove(any_storage: str) -> None:
    where = store()
    where.put("1/ab/abc", b"first")
    where.put("1/cd/cde", bytes(300_000))
    where.put("1/ab/abc", b"second")
    assert where.get("1/ab/abc") == b"second"
    assert len(where.get("1/cd/cde")) == 300_000
    assert {key for key, _ in where.objects()} == {"1/ab/abc", "1/cd/cde"}
    where.remove("1/ab/abc")
    where.remove("1/ab/abc")
    with pytest.raises(BlobMissing):
        where.get("1/ab/abc")
    assert {key for key, _ in where.objects()} == {"1/cd/cde"}


def test_an_unfinished_put_leaves_the_old_object(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = store()
    where.put("1/ab/abc", b"old")

    def pull_the_plug(name: str) -> None:
        if name == "put:torn":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage_module.faults, "reach", pull_the_plug)
    with pytest.raises(StorageFailed, match="No space left"):
        where.put("1/ab/abc", b"new")
    assert where.get("1/ab/abc") == b"old"
    assert [key for key, _ in where.objects()] == ["1/ab/abc"]


def test_file_and_folder_are_synced_before_and_after_the_rename(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor: int) -> None:
        steps.append("folder" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "file")
        fsync(descriptor)

    def note_rename(self: Path, target: Any) -> Any:
        steps.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    where = store()
    where.put("1/ab/abc", b"x")
    made, of_the_file = steps[:-3], steps[-3:]
    assert of_the_file == ["file", "rename", "folder"]
    assert set(made) == {"folder"}
    steps.clear()
    where.put("1/ab/abd", b"x")
    assert steps == ["file", "rename", "folder"]


def test_each_folder_on_the_way_is_synced_whoever_made_it(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = store()
    (storage / "1").mkdir()  # by another process, which may not have come to sync it
    synced: list[Path] = []
    monkeypatch.setattr(storage_module, "sync_folder", synced.append)
    where.put("1/ab/abc", b"x")
    assert synced == [storage, storage / "1", storage / "1/ab"]


def test_nobody_else_may_read_the_folder_and_files(storage: Path) -> None:
    store().put("1/ab/abc", b"x")
    assert (storage / "1/ab/abc").stat().st_mode & 0o077 == 0
    assert (storage / "1/ab").stat().st_mode & 0o077 == 0


def test_a_bucket_that_does_not_answer_is_a_failure_that_says_so() -> None:
    from tests.services.bucket import s3_url

    where = open_store(s3_url("http://127.0.0.1:9", "nowhere"))
    with pytest.raises(StorageFailed, match="bucket does not take it"):
        where.put("k", b"x")
    with pytest.raises(StorageFailed, match="bucket does not give it"):
        where.get("k")


def test_many_are_removed_and_the_absent_are_as_good_as_gone(any_storage: str) -> None:
    where = store()
    keys = [f"1/ab/{number}" for number in range(5)]
    for key in keys:
        where.put(key, b"x" * 7)
    assert {facts.size for _, facts in where.objects()} == {7}
    assert where.remove_many([*keys[:3], "1/ab/absent"]) == {*keys[:3], "1/ab/absent"}
    assert {key for key, _ in where.objects()} == set(keys[3:])


def test_what_the_disk_keeps_is_told_apart(storage: Path) -> None:
    where = store()
    where.put("1/ab/abc", b"x")
    (storage / "1/cd/folder").mkdir(parents=True)
    assert where.remove_many(["1/ab/abc", "1/cd/folder"]) == {"1/ab/abc"}


def test_what_the_bucket_keeps_is_told_apart(any_storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where = store()
    if not isinstance(where, Bucket):
        pytest.skip("of buckets")
    refusal = {"Errors": [{"Key": f"{where._prefix}kept", "Code": "AccessDenied", "Message": "no"}]}
    monkeypatch.setattr(where._storage.bucket, "delete_objects", lambda **_: refusal)
    assert where.remove_many(["gone", "kept"]) == {"gone"}


def test_a_secret_in_a_wrong_url_is_not_told() -> None:
    with pytest.raises(ImproperlyConfigured, match="STORAGE_URL") as error:
        open_store("s3:///prefix?secret_key=hush")
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("url", ["ftp://x/y", "s3:///prefix", "nonsense"])
def test_a_wrong_url_is_named(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="STORAGE_URL"):
        open_store(url)


def test_a_disk_that_is_full_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = Disk(tmp_path / "disk")

    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StorageFailed, match="No space left"):
        where.put("k", b"x")
    assert list(where.objects()) == []
