"""The mailbox lets one in at a time, in order, and survives those who give up."""

from __future__ import annotations

import asyncio

import pytest

from sandboxes.mailbox import Mailbox


async def test_first_come_first_served() -> None:
    mailbox, order = Mailbox(), []

    async def enter(number: int) -> None:
        async with mailbox:
            order.append(number)
            await asyncio.sleep(0)

    assert mailbox.try_enter()
    waiting = [asyncio.ensure_future(enter(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert not mailbox.try_enter()
    mailbox.leave()
    assert not mailbox.try_enter(), "whoever waits comes before whoever tries"
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    assert not mailbox.held


@pytest.mark.parametrize("called_already", [False, True])
async def test_who_gives_up_holds_nobody_up(called_already: bool) -> None:
    mailbox = Mailbox()
    assert mailbox.try_enter()

    async def enter() -> bool:
        async with mailbox:
            return True

    impatient, patient = asyncio.ensure_future(enter()), asyncio.ensure_future(enter())
    await asyncio.sleep(0)
    if called_already:
        mailbox.leave()
        impatient.cancel()
    else:
        impatient.cancel()
        mailbox.leave()
    assert await asyncio.wait_for(patient, 5)
    assert impatient.cancelled()
    assert not mailbox.held
