"""SlotServer: serves calls in the process of a task slot (see `holdfast.runtime.host.slot`)."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.runtime.host.process_end import await_end
from holdfast.runtime.host.slot import stuck_file
from holdfast.runtime.host.wire import (
    DONE,
    END,
    ERROR,
    FRAME,
    NEED_SETUP,
    PARK,
    RESTORE,
    RETIRE,
    RUN,
    STAND_BY,
    Wire,
    WireClosed,
    listen,
)
from holdfast.runtime.slots.doorman import Doorman, Message

if TYPE_CHECKING:  # a slot listens before it imports what it runs
    from holdfast.runtime.slots.task_host import TaskHost
    from holdfast.runtime.task.early_restore import EarlyRestore

__all__ = ["SlotServer"]

log = logging.getLogger("holdfast.slot")

_ORPHAN_PATIENCE = 10.0
"""Seconds that a slot may take to end after its executor has ended."""
_COLLECT_EVERY = 32
"""Calls between two collections of young cyclic garbage; such collections also run while the slot is idle."""
_COLLECT_ALL_EVERY = 4096
"""Calls between two full garbage collections, for cycles that a program drops late. One takes 0.5 s with a million rows."""
_IDLE_LIMIT = 900.0
"""Seconds without a call after which a slot ends; the next call starts it again."""


class SlotServer:
    """The server in a slot; it runs one task at a time."""

    def __init__(self, path: str, executor: int, lock: int | None = None) -> None:
        """``lock``: a descriptor that keeps others from starting the same slot; it is closed once this one listens."""
        self._lock = lock
        self._path = path
        self._executor = executor
        self._orphaned = False
        self._started = ""
        self._ended: set[str] = set()
        """The ended starts of the job; their tasks are refused."""
        self._host: TaskHost | None = None
        self._early: EarlyRestore | None = None
        self._last_call = time.monotonic()
        self._retired = False
        self._calls = 0
        self._since_all = 0

    def serve(self) -> None:
        """Serve until the slot is no longer needed."""
        # Rows are many and long-lived, so garbage is collected between calls, and mostly among young objects.
        gc.disable()
        listener = listen(self._path)
        if self._lock is not None:
            os.close(self._lock)
        listener.settimeout(1.0)
        inode = os.stat(self._path).st_ino
        threading.Thread(target=self._watch_executor, name="executor-watch", daemon=True).start()
        while self._wanted(inode):
            try:
                wire, message = self._start_early(listener) or self._accept(listener)
            except TimeoutError:
                if self._host is not None:
                    self._host.give_up_early()
                if self._calls:
                    self._calls = 0
                    gc.collect(1)
                continue
            try:
                self._call(wire, *(message or wire.receive()))
            except WireClosed as error:
                log.debug("the task went away: %s", error)
            finally:
                wire.close()
            self._last_call = time.monotonic()
        listener.close()
        self._forget()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == inode:
                os.unlink(self._path)

    def _accept(self, listener: socket.socket) -> tuple[Wire, None]:
        connection, _ = listener.accept()
        connection.settimeout(None)
        return Wire(connection), None

    def _start_early(self, listener: socket.socket) -> tuple[Wire, Message] | None:
        """Let later tasks of the epoch start on their channel state until a call arrives; returns the call, if any."""
        host = self._host
        if host is None or not host.can_start_early:
            return None
        with Doorman(listener) as doorman:
            host.start_early(lambda: doorman.call is not None)
        return doorman.call

    def _wanted(self, inode: int) -> bool:
        if self._retired or self._orphaned:
            return False
        try:
            if os.stat(self._path).st_ino != inode:
                return False  # another slot has taken this one's place
        except FileNotFoundError:
            return False  # the job has ended and cleaned up
        return time.monotonic() - self._last_call < _IDLE_LIMIT

    def _watch_executor(self) -> None:
        """End with the executor, even during a call that hangs, so that locks and connections are released."""
        await_end(self._executor)
        self._orphaned = True
        time.sleep(_ORPHAN_PATIENCE)
        os._exit(1)

    def _call(self, wire: Wire, kind: int, _: int, payload: bytes) -> None:
        if kind == RETIRE:
            self._retired = True
            self._forget()
            return
        if kind == PARK:
            self._ended.add(payload.decode())
            self._forget()
            wire.send(DONE)
            wire.flush()
            gc.collect()  # a full collection: the objects of an earlier start of the job are old
            return
        if kind == RESTORE:
            from holdfast.runtime.task.early_restore import EarlyRestore

            self._early = self._early or EarlyRestore(pickle.loads(payload))
            return
        if kind == STAND_BY:
            started, call = pickle.loads(payload)
            if self._host is not None and not self._host.may_stand_by(call):
                wire.send(DONE)
            elif self._load(wire, started) and self._host is not None:
                wire.send(DONE, self._host.stand_by(call))
            wire.flush()
            self._calls += 1
            return
        if kind != RUN:
            raise WireClosed(f"message {kind} instead of a call")
        started, call = pickle.loads(payload)
        if not self._load(wire, started):
            return
        assert self._host is not None
        wire.send(END)
        wire.flush()
        report = self._host.run(call, _frames(wire), lambda number, frame: wire.send(FRAME, frame, number))
        wire.send(DONE, report)
        wire.flush()
        self._calls += 1
        self._since_all += 1
        if self._since_all >= _COLLECT_ALL_EVERY:
            self._since_all = 0
            gc.collect()
        elif self._calls % _COLLECT_EVERY == 0:
            gc.collect(1)

    def _load(self, wire: Wire, started: str) -> bool:
        """Load the job of this start, unless it is loaded; False if that fails, after telling the other side."""
        if started == self._started and self._host is not None:
            return True
        if started in self._ended:
            raise WireClosed("it belongs to a start of the job that has ended")
        try:
            wire.send(NEED_SETUP)
            wire.flush()
            _, _, setup = wire.receive()
            if self._host is not None:
                self._forget()
                gc.collect()  # a full collection: the objects of an earlier start of the job are old
            from holdfast.runtime.slots.task_host import TaskHost

            slots, stuck = os.path.dirname(self._path), stuck_file(self._path)
            self._host = TaskHost(setup, slots, self._early, started, self._executor, stuck)
            self._early = None
            self._started = started
        except WireClosed:
            raise
        except Exception as error:
            log.exception("the job cannot be loaded")
            self._forget()
            wire.send(ERROR, f"{type(error).__name__}: {error}".encode())
            wire.flush()
            return False
        return True

    def _forget(self) -> None:
        host, self._host = self._host, None
        early, self._early = self._early, None
        self._started = ""
        if host is not None:
            host.close()
        if early is not None:
            early.close()


def _frames(wire: Wire) -> Iterator[bytes]:
    while True:
        kind, _, payload = wire.receive()
        if kind != FRAME:
            return
        yield payload
