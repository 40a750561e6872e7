"""The server process: Daphne run by us, its lease in the database, and all that its sessions share."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from channels.layers import get_channel_layer
from daphne import server as daphne_server
from django.conf import settings
from twisted.internet import defer, reactor

from sandboxes import heartbeat, strays
from sandboxes.channel import Channel
from sandboxes.database import Lease, Threads
from sandboxes.drain import Drain
from sandboxes.house import House
from sandboxes.isolation import Isolation
from sandboxes.link import MontyFactory, MontyLink, take_colours_away
from sandboxes.models import Server as Row
from sandboxes.pool import Pool
from sandboxes.registry import Registry, Times
from sandboxes.worker import Worker

logger = logging.getLogger(__name__)

MESSAGE_MARGIN = 1024 * 1024
"""Daphne takes messages this much larger than the limit, so that the door can answer them in words."""
SWITCH_EVERY = 0.0005
"""Seconds that a thread may keep the interpreter while the event loop wants it; Python's own 5 ms are ten turns."""
CHANGES_AT_ONCE = 50
"""Sessions that are looked at for the database before a turn may come between."""
CHECK_EVERY = 0.1
CHECK_SHARE = 20
"""A twentieth of the connections is looked at every tenth of a second: all at once would stop live turns."""


class Listener(daphne_server.Server):  # type: ignore[misc]
    """Daphne with our connections, and an end that waits for them."""

    def __init__(self, application: Any, listening: socket.socket, house: House, begin: Callable[[], None]) -> None:
        super().__init__(
            application,
            endpoints=[f"fd:fileno={listening.fileno()}"],
            signal_handlers=False,
            http_timeout=120,
            websocket_timeout=-1,
            ping_interval=3600,
            ping_timeout=3600,
            websocket_max_message_size=settings.FRAME_MAX + MESSAGE_MARGIN,
            websocket_max_frame_size=settings.FRAME_MAX + MESSAGE_MARGIN,
            application_close_timeout=3600,
            ready_callable=begin,
            server_name="moorage",
            verbosity=1,
        )
        self.house = house
        self._next_check = 0
        self._ports: list[Any] = []

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        """Daphne's, with the server and the connection itself put into the scope."""
        scope["moorage.house"] = self.house
        if isinstance(protocol, MontyLink):
            scope["moorage.link"] = protocol
        return super().create_application(protocol, scope)

    def timeout_checker(self) -> None:
        """Look at every connection once in two seconds, a few at a time."""
        protocols = list(self.connections)
        for at in range(self._next_check, len(protocols), CHECK_SHARE):
            protocols[at].check_timeouts()
        self._next_check = (self._next_check + 1) % CHECK_SHARE
        reactor.callLater(CHECK_EVERY, self.timeout_checker)

    def stop_accepting(self) -> None:
        """Leave the listening socket to whoever else holds it."""
        for port in self._ports:
            port.stopListening()

    def listen_success(self, port: Any) -> None:
        """Daphne's, which does not keep what it listens on."""
        self._ports.append(port)
        super().listen_success(port)

    def kill_all_applications(self) -> Any:
        """Cancel what still runs; Daphne's own fails where an application has ended before its client."""
        running = [
            details["application_instance"]
            for details in self.connections.values()
            if "application_instance" in details and not details["application_instance"].done()
        ]
        for application in running:
            application.cancel()
        ended = defer.Deferred.fromFuture(asyncio.gather(*running, return_exceptions=True))
        ended.addErrback(lambda failure: None)
        return ended


class MoorageServer:
    """One server process from its start to its exit."""

    def __init__(self, application: Any, listening: socket.socket, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._listening = listening
        self.failure: BaseException | None = None
        self.isolation = Isolation(settings.WORKER_ISOLATION)
        times = Times(
            park_after=settings.SESSION_PARK_AFTER,
            autosave_every=settings.AUTOSAVE_EVERY,
            turn_timeout=settings.TURN_TIMEOUT,
            connection_max_age=settings.CONNECTION_MAX_AGE,
        )
        registry = Registry(
            times,
            clock=time.monotonic,
            state_cache=settings.STATE_CACHE,
            unsaved_max=settings.UNSAVED_MAX,
            max_sessions=settings.MAX_SESSIONS,
            frame_max=settings.FRAME_MAX,
            park_every_turn=settings.PARK_EVERY_TURN,
        )
        name = f"{socket.gethostname()[:40]}.{os.getpid()}.{secrets.token_hex(4)}"
        channel = Channel(registry, name)
        pool = Pool(
            self._start_worker,
            workers=settings.WORKERS,
            warm=settings.WARM_WORKERS,
            make_room=registry.make_room,
            wait=settings.WORKER_WAIT,
        )
        registry.pool = pool
        lease = Lease(name, settings.SERVER_LOST_AFTER)
        self.house = House(pool, registry, Threads(8, "store"), Threads(3, "door"), lease, channel)
        self.channel = channel
        self.listener = Listener(application, listening, self.house, self._begin)
        self.drain = Drain(self)
        self._tasks: set[asyncio.Task[None]] = set()

    async def _start_worker(self) -> Worker:
        return await Worker.start(self.isolation, settings.WORKER_MEMORY)

    def run(self) -> None:
        """Serve until drained. Raises what made the start fail."""
        take_colours_away()
        sys.setswitchinterval(SWITCH_EVERY)
        daphne_server.WebSocketFactory = MontyFactory
        self.listener.run()
        if self.failure is not None:
            raise self.failure

    def _begin(self) -> None:
        MontyFactory.pong_within = settings.DISCONNECT_AFTER
        MontyFactory.pong_within_a_call = settings.CALL_PATIENCE
        loop = asyncio.get_event_loop()
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain.asked, settings.STOP_LINGER)
        loop.add_signal_handler(signal.SIGUSR1, self.drain.asked, settings.DRAIN_LINGER)
        loop.call_soon(self.spawn, self._start())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that lives as long as the server."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a part of the server failed", exc_info=error)
            self.failure = self.failure or error
            self.stop()

    async def _start(self) -> None:
        house = self.house
        logger.info("workers: %s", self.isolation)
        strays.sweep(self.isolation)
        await house.threads.run(heartbeat.register, house.lease.server, self.channel.name)
        house.lease.renewed()
        house.pool.fill()
        for work in (house.registry.tick(), self._beat(), self.channel.listen()):
            self.spawn(work)
        # A look at every object that there is would stop turns for 30 ms where there are thousands of sessions.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)
        self._ready()
        logger.info("server %s is ready", house.lease.server)

    async def _beat(self) -> None:
        house, rounds = self.house, 0
        while True:
            await asyncio.sleep(settings.HEARTBEAT_EVERY / 2)
            rounds += 1
            try:
                if rounds % 2 == 0:
                    await self._renew()
                if rounds % 24 == 0:
                    known = {session_id.hex() for session_id in house.registry.sessions}
                    await house.door.run(heartbeat.close_forgotten, house.lease.server, known)
                for session_id in await house.door.run(heartbeat.no_longer_welcome, house.lease.server):
                    if (session := house.registry.sessions.get(session_id)) is not None and not session.leaving:
                        house.registry.spawn(session.end("its key opens nothing any more"))
            except Exception as error:
                logger.warning("the heartbeat did not get through: %s", error)
            if house.lease.lost:
                await self._lost()

    async def _renew(self) -> None:
        house = self.house
        changed, house.registry.changed = house.registry.changed, set()
        changes = []
        for number, session in enumerate(changed):
            changes.append(heartbeat.Change.of(session))
            if number % CHANGES_AT_ONCE == 0:
                await asyncio.sleep(0)
        began = time.monotonic()
        try:
            alive = await house.door.run(heartbeat.beat, house.lease.server, changes, house.registry.records_to_hold())
        except BaseException:
            house.registry.changed |= changed
            raise
        if alive:
            house.lease.renewed(began)
        else:
            house.lease.lose()

    async def _lost(self) -> None:
        """The lease has run out: another server may own the sessions by now, so they end here; then begin anew."""
        house = self.house
        logger.error("server %s has lost its lease: it closes its sessions and begins anew", house.lease.server)
        for session in list(house.registry.sessions.values()):
            session.give_up()
        name = f"{house.lease.server.rpartition('.')[0]}.{secrets.token_hex(4)}"
        try:
            await house.door.run(heartbeat.register, name, self.channel.name)
        except Exception as error:
            logger.warning("the server cannot register anew yet: %s", error)
            return
        house.lease = Lease(name, settings.SERVER_LOST_AFTER)
        house.lease.renewed()

    def stop(self) -> None:
        """Leave the event loop."""
        if reactor.running:
            reactor.stop()

    async def close(self) -> None:
        """Everything is saved: workers end, the lease is given back."""
        house = self.house
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        await house.pool.close()
        try:
            await house.door.run(heartbeat.set_state, house.lease.server, Row.State.GONE)
            layer: Any = get_channel_layer()
            await layer.close_pools()
        except Exception as error:
            logger.warning("the server's end is not written down: %s", error)
        house.threads.close()
        house.door.close()
