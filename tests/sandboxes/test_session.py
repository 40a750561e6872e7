"""What a session makes of requests, time and trouble: a real worker, a fake clock, no socket and no database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandboxes.session import EPHEMERAL_DUMP, State
from sandboxes.wire.kinds import Event, Kind
from sandboxes.wire.messages import DUMP, dump_state, event_kind, words
from tests.sandboxes.house import MIB, House, configure, feed, load, message


async def until(condition: Callable[[], object]) -> None:
    """Wait for it, for a generous time."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def value(event: bytes) -> bytes:
    """The answer with its times cut off, for comparison."""
    assert event_kind(event) is Event.COMPLETE, words(event)
    return event[: 2 + event[1]]


async def test_a_turn(house: House) -> None:
    session, client = await house.configured()
    assert len(session.session_id) == 16
    assert await house.run(session, client, "x = 20") is Event.COMPLETE
    session.receive(feed("x + 1"))
    assert b"\x28\x2a" in value(await client.answer())  # an int, zigzag: 21


async def test_a_request_before_configure_is_refused(house: House) -> None:
    session, client = house.session()
    session.receive(feed("1"))
    assert "has not been configured" in await client.words()
    session.receive(configure())
    assert event_kind(await client.answer()) is Event.OK


async def test_a_second_configure_is_refused_and_the_session_goes_on(house: House) -> None:
    session, client = await house.configured()
    session.receive(configure())
    assert "already been configured" in await client.words()
    assert await house.run(session, client, "1") is Event.COMPLETE


async def test_a_second_frame_in_a_turn_closes_the_connection(house: House) -> None:
    session, client = await house.configured()
    session.receive(feed("1"))
    session.receive(feed("2"))
    await asyncio.wait_for(client.closed.wait(), 30)
    await until(lambda: session.state is State.CLOSED)
    assert house.pool.busy == 0


async def test_what_is_no_request_is_answered_and_never_passed_on(house: House) -> None:
    session, client = await house.configured()
    passed = house.registry.frames_passed
    for frame in (b"", b"\xff\xff", feed("1") + load(bytes(16)), feed("1") + feed("2"), message(12, b"")):
        session.receive(frame)
        assert await client.words()
    assert house.registry.frames_passed == passed
    assert await house.run(session, client, "1") is Event.COMPLETE


async def test_park_and_resume(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "items = [1]\nalias = items")
    assert not await session.park(), "its own clock says that it is not idle"
    house.clock.now += 61
    assert await session.park()
    assert session.state is State.PARKED
    assert house.pool.busy == 0
    await until(lambda: session.session_id in house.store.records)
    await house.run(session, client, "alias.append(2)")
    assert session.state is State.LIVE
    session.receive(feed("items == [1, 2]"))
    assert b"\x20\x01" in value(await client.answer())


async def test_a_session_parked_before_its_first_feed_can_still_load(house: House) -> None:
    first, client = await house.configured()
    await house.run(first, client, "x = 7")
    first.receive(DUMP)
    record = dump_state(await client.answer())
    second, client = await house.configured()
    assert await second.park(at_once=True)
    assert second.keeper.held is None
    second.receive(load(record))
    assert event_kind(await client.answer()) is Event.OK
    assert await house.run(second, client, "assert x == 7") is Event.COMPLETE


async def test_a_request_during_a_park_is_answered(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 1")
    for _ in range(20):
        park = asyncio.ensure_future(session.park(at_once=True))
        await asyncio.sleep(0)
        session.receive(feed("x += 1"))
        assert event_kind(await client.answer()) is Event.COMPLETE
        await park
    assert await house.run(session, client, "assert x == 21") is Event.COMPLETE


async def test_a_suspended_session_parks_and_takes_its_answer(house: House) -> None:
    session, client = await house.configured()
    session.receive(feed("fetch(3) + 1"))
    event = await client.answer()
    while event_kind(event) is Event.NAME_LOOKUP:
        function = message(1, b"\x08\x00", message(2, b"\x08\x01", message(2, b"\xca\x01\x07", message(1, b"fetch"))))
        session.receive(message(Kind.RESUME_NAME_LOOKUP, function))
        event = await client.answer()
    assert session.suspended == (event_kind(event) is Event.FUNCTION_CALL)
    assert await session.park(at_once=True)


async def test_the_idlest_is_parked_when_a_worker_is_needed(make_house: Callable[..., House]) -> None:
    house = make_house(workers=2)
    sessions = [await house.configured() for _ in range(2)]
    for session, client in sessions:
        await house.run(session, client, "x = 1")
        house.clock.now += 1
    await house.configured()
    assert [session.state for session, _ in sessions] == [State.PARKED, State.LIVE]
    assert await house.run(*sessions[0], "assert x == 1") is Event.COMPLETE


async def test_no_worker_within_the_wait_is_said(make_house: Callable[..., House]) -> None:
    house = make_house(workers=1, wait=0.2)
    parked, parked_client = await house.configured()
    await house.run(parked, parked_client, "x = 1")
    await parked.park(at_once=True)
    busy, _ = await house.configured()
    busy.receive(feed("while True: pass"))
    assert "server at capacity" in words(await _configure_another(house))
    parked.receive(feed("x"))
    assert "server at capacity" in await parked_client.words()
    busy.turn_cut_short("enough")
    await until(lambda: house.pool.busy == 0)
    assert await house.run(parked, parked_client, "assert x == 1") is Event.COMPLETE


async def _configure_another(house: House) -> bytes:
    session, client = house.session()
    session.receive(configure())
    return await client.answer()


async def test_a_resume_without_a_worker_hands_over(make_house: Callable[..., House]) -> None:
    house = make_house(workers=1, wait=0.2)
    parked, client = await house.configured()
    await house.run(parked, client, "x = 1")
    await parked.park(at_once=True)
    busy, _ = await house.configured()
    busy.receive(feed("while True: pass"))
    parked.receive(message(Kind.ABORT_FEED))
    answer = await client.answer()
    assert event_kind(answer) is Event.SHUTDOWN
    assert parked.session_id in answer
    assert parked.state is State.FROZEN
    busy.turn_cut_short("enough")


async def test_ephemeral_is_never_saved(house: House) -> None:
    session, client = house.session()
    session.receive(configure(ephemeral=True))
    reply = await client.answer()
    assert session.session_id not in reply
    await house.run(session, client, "secret = 42")
    session.receive(DUMP)
    assert EPHEMERAL_DUMP in await client.words()
    assert await session.park(at_once=True)
    assert await house.run(session, client, "assert secret == 42") is Event.COMPLETE
    session.left()
    await until(lambda: session.state is State.CLOSED)
    assert house.store.records == {}


async def test_a_limit_is_the_lower_of_asked_and_ceiling(house: House) -> None:
    session, _ = await house.configured(memory=2048 * MIB)
    assert session.limits.memory_bytes == 256 * MIB
    lower, _ = await house.configured(memory=32 * MIB)
    assert lower.limits.memory_bytes == 32 * MIB
    assert lower.limits.recursion_depth == 1000


async def test_a_dump_is_a_new_record_and_loads_into_a_new_session(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 40")
    session.receive(DUMP)
    record = dump_state(await client.answer())
    assert record != session.session_id
    await house.run(session, client, "x = 0")
    other, other_client = await house.configured()
    other.receive(load(record))
    assert event_kind(await other_client.answer()) is Event.OK
    assert await house.run(other, other_client, "assert x == 40") is Event.COMPLETE
    assert other.session_id != session.session_id
    other.receive(load(record))
    assert "has not started" in await other_client.words()


async def test_the_third_failed_load_closes(house: House) -> None:
    session, client = await house.configured()
    for _ in range(3):
        session.receive(load(bytes(16)))
        assert "unknown session" in await client.words()
    await asyncio.wait_for(client.closed.wait(), 30)


async def test_a_raw_dump_is_an_unknown_session(house: House) -> None:
    session, client = await house.configured()
    session.receive(load(b"MONTY\0\x0e\0" + bytes(100)))
    assert "unknown session" in await client.words()


async def test_a_disconnect_saves(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    session.left()
    await until(lambda: session.state is State.CLOSED and session.session_id in house.store.ends)
    assert session.session_id in house.store.records
    assert house.pool.busy == 0


async def test_a_disconnect_with_nothing_run_saves_nothing(house: House) -> None:
    session, _ = await house.configured()
    session.left()
    await until(lambda: session.session_id in house.store.ends)
    assert house.store.records == {}


async def test_a_disconnect_during_a_park_loses_nothing(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    house.store.gate = asyncio.Event()
    park = asyncio.ensure_future(session.park(at_once=True))
    await asyncio.sleep(0)
    session.left()
    await park
    house.store.gate.set()
    await until(lambda: session.session_id in house.store.ends)
    assert session.session_id in house.store.records


async def test_storage_that_fails_is_tried_again(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    house.store.failing = True
    assert await session.park(at_once=True)
    await asyncio.sleep(0.05)
    assert house.registry.unsaved > 0
    assert await house.run(session, client, "x += 1") is Event.COMPLETE
    house.store.failing = False
    session.left()
    await until(lambda: session.session_id in house.store.ends)
    assert house.store.saves >= 1
    assert house.registry.unsaved == 0


async def test_a_dump_that_storage_refuses_is_an_error_and_the_session_goes_on(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    house.store.failing = True
    session.receive(DUMP)
    assert "storage failed" in await client.words()
    house.store.failing = False
    assert await house.run(session, client, "assert x == 5") is Event.COMPLETE


async def test_a_hand_over_names_the_saved_session_and_freezes(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    assert await session.hand_over(10)
    answer = await client.answer()
    assert event_kind(answer) is Event.SHUTDOWN
    assert session.session_id in answer
    assert house.store.handed_over == {session.session_id}
    saves = house.store.saves
    session.receive(feed("x = 6"))
    session.left()
    await until(lambda: session.session_id in house.store.ends)
    assert house.store.saves == saves, "nothing alters the record of a frozen session"


async def test_a_hand_over_waits_for_the_turn(house: House) -> None:
    session, client = await house.configured()
    session.receive(feed("total = 0\nfor i in range(300_000): total += i\ntotal"))
    over = asyncio.ensure_future(session.hand_over(10))
    assert event_kind(await client.answer()) is Event.COMPLETE
    assert event_kind(await client.answer()) is Event.SHUTDOWN
    assert await over


async def test_a_hand_over_of_an_ephemeral_session_names_nothing(house: House) -> None:
    session, client = await house.configured(ephemeral=True)
    await house.run(session, client, "x = 5")
    await session.hand_over(10)
    assert await client.answer() == message(Event.SHUTDOWN)


async def test_a_hand_over_that_cannot_save_names_nothing(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    house.store.failing = True
    await session.hand_over(0.3)
    assert await client.answer() == message(Event.SHUTDOWN)
    house.store.failing = False


async def test_only_the_promised_load_comes_past_a_full_project(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    await session.hand_over(10)
    house.store.must_claim = "project full"
    other, other_client = await house.configured()
    other.receive(feed("1"))
    assert await other_client.words() == "project full"
    back, back_client = await house.configured()
    back.receive(load(session.session_id))
    assert event_kind(await back_client.answer()) is Event.OK
    assert await house.run(back, back_client, "assert x == 5") is Event.COMPLETE
    again, again_client = await house.configured()
    again.receive(load(session.session_id))
    assert await again_client.words() == "project full", "each record is taken up once"


async def test_autosave(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    house.registry.look()
    assert house.registry.unsaved == 0, "not before its time"
    house.clock.now += 6
    house.registry.look()
    await until(lambda: session.session_id in house.store.records)
    assert session.state is State.LIVE
    saves = house.store.saves
    house.clock.now += 6
    house.registry.look()
    await asyncio.sleep(0.05)
    assert house.store.saves == saves, "nothing ran since"


async def test_a_slow_save_changes_nothing_after_a_newer_one(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 'old'")
    slow = house.store.gate = asyncio.Event()
    house.clock.now += 6
    house.registry.look()
    await until(lambda: session.keeper.generation == 1)
    house.store.gate = None
    await house.run(session, client, "x = 'new'")
    house.clock.now += 6
    house.registry.look()
    await until(lambda: house.store.generations.get(session.session_id) == 2)
    newest = house.store.records[session.session_id]
    slow.set()
    await until(lambda: house.registry.unsaved == 0)
    assert house.store.records[session.session_id] is newest
    assert not session.keeper.overtaken, "its own newer save is no other owner"


async def test_a_session_that_was_taken_over_saves_nothing_more(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    house.store.overtaken = True
    await session.park(at_once=True)
    await until(lambda: session.keeper.overtaken)
    session.left()
    await until(lambda: session.session_id in house.store.ends)
    assert house.store.records == {}


async def test_an_evicted_state_is_read_back_from_the_store(make_house: Callable[..., House]) -> None:
    house = make_house(state_cache=0)
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    await session.park(at_once=True)
    await until(lambda: session.keeper.held is None)
    assert await house.run(session, client, "assert x == 5") is Event.COMPLETE


async def test_an_ephemeral_state_is_never_evicted(make_house: Callable[..., House]) -> None:
    house = make_house(state_cache=0)
    session, client = await house.configured(ephemeral=True)
    await house.run(session, client, "x = 5")
    await session.park(at_once=True)
    assert session.keeper.held is not None
    assert await house.run(session, client, "assert x == 5") is Event.COMPLETE


async def test_a_panicking_worker_ends_its_session_alone(house: House) -> None:
    other, other_client = await house.configured()
    session, client = await house.configured()
    assert await house.run(session, client, "class A: pass\na = A()\nlocals()") is Event.FATAL_ERROR
    await until(lambda: session.state is State.CLOSED)
    assert client.closed.is_set()
    assert await house.run(other, other_client, "1") is Event.COMPLETE


async def test_a_killed_worker_says_so_and_what_is_left(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    await session.save_now()
    session.receive(feed("while True: pass"))
    assert session.worker is not None
    session.worker.kill()
    text = await client.words()
    assert session.session_id.hex() in text
    assert session.session_id in house.store.records


async def test_a_turn_past_its_time_is_cut_short(house: House) -> None:
    session, client = await house.configured()
    session.receive(feed("while True: pass"))
    house.clock.now += 301
    house.registry.look()
    assert "a turn may take 300 s" in await client.words()
    await until(lambda: session.state is State.CLOSED)


async def test_an_old_connection_is_handed_over(house: House) -> None:
    session, client = await house.configured()
    await house.run(session, client, "x = 5")
    house.clock.now += 3601
    house.registry.look()
    assert event_kind(await client.answer()) is Event.SHUTDOWN
    house.clock.now += 3601
    house.registry.look()
    await asyncio.wait_for(client.closed.wait(), 30)


async def test_a_refused_configure_leaves_no_worker(house: House) -> None:
    house.store.refusal = "project full"
    session, client = house.session()
    session.receive(configure())
    assert await client.words() == "project full"
    await until(lambda: house.pool.busy == 0)
    house.store.refusal = None
    session.receive(configure())
    assert event_kind(await client.answer()) is Event.OK


async def test_a_heavy_session_is_left_alone_and_can_be_asked_to_dump(house: House) -> None:
    session, client = await house.configured(memory=64 * MIB)
    await house.run(session, client, "big = 'x' * 25_000_000")
    assert session.is_heavy()
    assert not await session.park(at_once=True)
    house.clock.now += 6
    house.registry.look()
    await asyncio.sleep(0.05)
    assert session.state is State.LIVE
    assert house.registry.autosaves == 0
    session.receive(DUMP)
    answer = await client.answer()
    if event_kind(answer) is Event.FATAL_ERROR:
        assert "state too large to save" in words(answer)
    else:
        assert event_kind(answer) is Event.DUMP_RESULT
