"""The store on a real database: who may write a session's record, who may begin one, and what the sweeps decide."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from projects import keys
from projects.models import Project
from projects.scopes import Scope
from sandboxes import heartbeat, tasks
from sandboxes.database import DatabaseStore, Lease, Threads, identify
from sandboxes.models import LiveSession, Server
from sandboxes.store import Dump, NoWorkerForVersion, Overtaken, QuotaFull, Refused, UnknownSession
from sandboxes.wire.messages import Limits
from snapshots import deleting
from snapshots.models import Record
from vault import blobs

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Asked:
    """Remembers which owners were asked to save."""

    sessions: list[tuple[str, str]] = field(default_factory=list)

    async def ask_to_save(self, session_id: str, server: str, channel: str) -> None:
        self.sessions.append((session_id, server))


class Port:
    """Servers on one database."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.secret = keys.make(project, "tests")[1]
        self.threads = Threads(2, "tests")
        self.asked = Asked()

    def server(self, name: str) -> DatabaseStore:
        """A server that begins."""
        heartbeat.register(name, f"channel of {name}")
        return DatabaseStore(identify(self.secret), self.threads, Lease(name, 20), self.asked)


def end(threads: Threads) -> None:
    """Close the connections of its threads, which would keep the test's database open."""
    executor = threads._executor
    together = Barrier(2)

    def close() -> None:
        together.wait(10)
        connection.close()

    ends = [executor.submit(close) for _ in range(2)]
    for each in ends:
        each.result()
    threads.close()


@pytest.fixture
def port(project: Project, storage: Path) -> Iterator[Port]:
    made = Port(project)
    yield made
    end(made.threads)


def dump(text: bytes = b"state", **fields: Any) -> Dump:
    usual = {"script_name": "m.py", "type_check": False, "suspended": False, "parent": None}
    return Dump(**{"state": text, "limits": Limits(memory_bytes=5), **usual, **fields})


def never() -> bool:
    return False


async def in_thread(call: Callable[[], Any]) -> Any:
    return await sync_to_async(call)()


async def begin(store: DatabaseStore) -> bytes:
    return (await store.admit(ephemeral=False, script_name="m.py")).session_id


async def test_a_late_autosave_changes_nothing(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    session = await begin(store)
    await store.save(session, dump(b"new"), 2, handed_over=False)
    with pytest.raises(Overtaken):
        await store.save(session, dump(b"late"), 1, handed_over=False)
    assert await store.reopen(session) == b"new"


async def test_a_server_declared_lost_that_comes_back_writes_nothing(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    session = await begin(store)
    await store.save(session, dump(b"before"), 1, handed_over=False)

    def lose() -> int:
        Server.objects.update(heartbeat=timezone.now() - timedelta(seconds=30))
        return tasks.mark_lost()

    assert await in_thread(lose) == 1
    with pytest.raises(Overtaken):
        await store.save(session, dump(b"after"), 2, handed_over=False)
    assert await store.reopen(session) == b"before"
    row = await in_thread(lambda: LiveSession.objects.get(pk=session.hex()))
    assert (row.state, row.epoch) == ("lost", 1)
    assert not await in_thread(lambda: heartbeat.beat("one", [], [])), "it learns at its next heartbeat"
    assert await in_thread(lambda: blobs.used(port.project.pk)) == (
        await in_thread(lambda: Record.objects.get().blob.size)
    )


async def test_a_server_whose_heart_beats_is_not_lost(port: Port) -> None:
    await in_thread(lambda: port.server("one"))
    assert await in_thread(tasks.mark_lost) == 0
    assert await in_thread(lambda: heartbeat.beat("one", [], []))


async def test_of_two_servers_that_believe_they_own_a_session_one_writes(port: Port) -> None:
    one, two = await in_thread(lambda: port.server("one")), await in_thread(lambda: port.server("two"))
    session = await begin(one)
    with pytest.raises(Overtaken):
        await two.save(session, dump(b"not mine"), 7, handed_over=False)
    await one.save(session, dump(b"mine"), 1, handed_over=False)
    assert await two.reopen(session) == b"mine"


async def test_a_lost_lease_gives_out_no_ids(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    session = await begin(store)
    store.lease.lose()
    with pytest.raises(Overtaken):
        await store.snapshot(session, dump(), never)
    with pytest.raises(Refused, match="lost its lease"):
        await store.admit(ephemeral=False, script_name="")


async def test_a_lease_that_is_not_renewed_runs_out_before_others_may_take_it() -> None:
    assert Lease("short", 0.0).lost
    lease = Lease("long", 20)
    assert not lease.lost
    lease.renewed(began=-1000.0)
    assert lease.lost


async def test_the_owner_of_a_live_session_is_asked_before_it_is_loaded(port: Port) -> None:
    one, two = await in_thread(lambda: port.server("one")), await in_thread(lambda: port.server("two"))
    session = await begin(one)
    await one.save(session, dump(), 1, handed_over=False)
    await two.restore(session, claim=False)
    assert port.asked.sessions == [(session.hex(), "one")]
    await one.ended(session, "left")
    await two.restore(session, claim=False)
    assert len(port.asked.sessions) == 1


async def test_a_connected_sessions_record_is_not_deleted_until_it_ends(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    session = await begin(store)
    await store.save(session, dump(), 1, handed_over=False)
    with pytest.raises(deleting.SessionConnected):
        await in_thread(lambda: deleting.delete(port.project.pk, [session]))
    await store.ended(session, "left")
    assert (await in_thread(lambda: deleting.delete(port.project.pk, [session]))).count == 1
    with pytest.raises(Overtaken):
        await store.save(session, dump(b"later"), 2, handed_over=False)


async def test_every_unknown_id_is_unknown_alike(port: Port, make_project: Callable[..., Project]) -> None:
    store = await in_thread(lambda: port.server("one"))
    other = await in_thread(lambda: Port(make_project(name="other")))
    theirs = await in_thread(lambda: other.server("theirs"))
    record = await theirs.snapshot(await begin(theirs), dump(), never)
    for wanted in (record, secrets.token_bytes(16), b"", b"MONTY\0\x0e" + bytes(300)):
        with pytest.raises(UnknownSession):
            await store.restore(wanted, claim=False)
    await in_thread(lambda: end(other.threads))


async def test_a_version_without_a_worker_is_named(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    record = await store.snapshot(await begin(store), dump(), never)
    await in_thread(lambda: Record.objects.update(interpreter="0.9.0/3"))
    with pytest.raises(NoWorkerForVersion, match=r"0\.9\.0/3.*1\.4"):
        await store.restore(record, claim=False)


async def test_the_cap_on_sessions_lets_back_in_who_was_handed_over_once(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    await in_thread(lambda: Project.objects.update(max_sessions=1))
    session = await begin(store)
    with pytest.raises(Refused, match="1 of 1 sessions"):
        await begin(store)
    await store.save(session, dump(), 1, handed_over=True)
    admission = await store.admit(ephemeral=False, script_name="")
    assert admission.must_claim is not None
    await store.restore(session, claim=True)
    with pytest.raises(UnknownSession):
        await store.restore(session, claim=True)
    await store.frozen(session)
    await store.ended(admission.session_id, "left")
    assert (await store.admit(ephemeral=False, script_name="")).must_claim is None, "frozen ones count for no cap"


async def test_a_full_quota_refuses_lasting_sessions_and_snapshots_but_not_ephemeral_ones(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    session = await begin(store)
    await in_thread(lambda: Project.objects.update(snapshot_quota=10))
    with pytest.raises(QuotaFull, match="snapshot storage quota exceeded: 0 of 10 bytes"):
        await store.snapshot(session, dump(), never)
    await store.save(session, dump(b"over the quota"), 1, handed_over=False)
    with pytest.raises(Refused, match="snapshot storage quota exceeded"):
        await begin(store)
    assert await store.admit(ephemeral=True, script_name="")


async def test_a_key_without_the_scope_and_a_disabled_project_begin_nothing(port: Port) -> None:
    secret = await in_thread(lambda: keys.make(port.project, "reader", [Scope.READ_SNAPSHOTS])[1])
    await in_thread(lambda: port.server("one"))
    visitor = await in_thread(lambda: identify(secret))
    reader = DatabaseStore(visitor, port.threads, Lease("one", 20), port.asked)
    with pytest.raises(Refused, match="project:execute_agent_sandboxes"):
        await reader.admit(ephemeral=True, script_name="")
    store = DatabaseStore(await in_thread(lambda: identify(port.secret)), port.threads, Lease("one", 20), port.asked)
    await in_thread(lambda: Project.objects.update(disabled=True))
    with pytest.raises(Refused, match="disabled"):
        await store.admit(ephemeral=True, script_name="")


async def test_sessions_of_a_revoked_key_are_found(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    session = await begin(store)
    assert await in_thread(lambda: heartbeat.no_longer_welcome("one")) == []
    await in_thread(lambda: port.project.keys.get().revoke())
    assert await in_thread(lambda: heartbeat.no_longer_welcome("one")) == [session]


async def test_a_batch_of_activity_touches_only_what_is_still_ours(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    mine, ended = await begin(store), await begin(store)
    await store.ended(ended, "left")
    changes = [heartbeat.Change(each.hex(), "parked", timezone.now(), 3, False) for each in (mine, ended)]
    assert await in_thread(lambda: heartbeat.beat("one", changes, []))
    states = await in_thread(lambda: dict(LiveSession.objects.values_list("id", "state")))
    assert states == {mine.hex(): "parked", ended.hex(): "closed"}


async def test_rows_that_nobody_has_are_closed_after_a_minute(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    known, forgotten, fresh = [await begin(store) for _ in range(3)]
    older = timezone.now() - timedelta(minutes=2)
    await in_thread(lambda: LiveSession.objects.exclude(pk=fresh.hex()).update(connected=older))
    assert await in_thread(lambda: heartbeat.close_forgotten("one", {known.hex()})) == 1
    assert (await in_thread(lambda: LiveSession.objects.get(pk=forgotten.hex()))).state == "closed"


async def test_ended_sessions_are_forgotten_after_a_week(port: Port) -> None:
    store = await in_thread(lambda: port.server("one"))
    old, new = await begin(store), await begin(store)
    for session in (old, new):
        await store.ended(session, "left")
    week = timezone.now() - timedelta(days=8)
    await in_thread(lambda: LiveSession.objects.filter(pk=old.hex()).update(ended=week))
    assert await in_thread(tasks.forget_ended) == 1
    assert await in_thread(lambda: LiveSession.objects.get().pk) == new.hex()
