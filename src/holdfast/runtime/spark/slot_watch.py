"""SlotWatch: reports for a task slot that cannot report what its task is doing.

A slot runs no thread if its process is stopped, or if it is in a call that keeps Python's lock (the GIL). The Spark worker
that waits for it detects both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # slow to import, and rarely needed by a worker
    from holdfast.runtime.host.slot import SlotClient

__all__ = ["SlotWatch", "fault_of"]

log = logging.getLogger("holdfast.slot")

_LOOK_S = 3.0
_LASTS_S = 5.0
"""The duration after which a call is examined, in seconds."""


@dataclass
class _Call:
    client: SlotClient
    setup: Callable[[], bytes]
    """Returns the executor's broadcast."""
    call: bytes
    """The pickled (assignment, vertex, subtask)."""
    began: float
    ended: bool = False


class SlotWatch:
    """Watches the calls of a Spark worker to its slots, one at a time, in a thread that starts with the first call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._call: _Call | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, client: SlotClient, setup: Callable[[], bytes], call: bytes) -> Iterator[None]:
        """Watch a call during the block."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slot-watch", daemon=True)
            self._thread.start()
        mine = _Call(client, setup, call, time.monotonic())
        with self._changed:
            self._call = mine
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                mine.ended, self._call = True, None
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._call is not None)
                call = self._call
            if call is not None:
                try:
                    self._watch(call)
                except Exception:  # the slot may still report it itself
                    log.debug("the call of a task slot is not watched", exc_info=True)

    def _watch(self, call: _Call) -> None:
        pause = _LASTS_S
        forget: Callable[[], None] | None = None
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: call.ended, pause):
                    break
            pause = _LOOK_S
            found = fault_of(call.client.process, call.client.stuck)
            if found is not None:
                forget = _tell(call, *found)
        if forget is not None:
            forget()


def fault_of(process: int, stuck: str) -> tuple[str, str] | None:
    """Why a slot's process cannot report what it is doing, and its current line, if known; None if it can.

    Args:
        process: The process id.
        stuck: The file that gets the slot's current lines if the slot does not prevent it in time.
    """
    try:
        with open(f"/proc/{process}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "T":
                return "its process is stopped (SIGSTOP); SIGCONT lets it go on", ""
        with open(stuck, errors="replace") as file:
            dump = file.read()
    except OSError:
        return None
    if not dump:
        return None
    from holdfast.runtime.records.places import place_in_dump

    return "a call in it does not give up Python's lock (the GIL), so that nothing else runs there", place_in_dump(
        dump, ("task_host.py", "run")
    )


def _tell(call: _Call, fault: str, where: str) -> Callable[[], None]:
    """Report to the driver; returns a function that withdraws the report."""
    import pickle

    import msgspec

    from holdfast.checkpoint.paths import JobPaths
    from holdfast.checkpoint.stores.storage import Storage
    from holdfast.metrics.stats import StandingTask
    from holdfast.runtime.host.local_directory import host_name

    outline = pickle.loads(call.setup())[-1]
    assignment, vertex, subtask = pickle.loads(call.call)
    seconds = time.monotonic() - call.began
    name = outline.vertices[vertex]
    seen = StandingTask(
        assignment.epoch, name, name, subtask, host_name(), call.client.process, seconds, seconds, where, fault=fault
    )
    storage = Storage.open(outline.storage_uri, outline.storage_config)
    path = JobPaths.of(outline.name).standstill(host_name(), call.client.process)
    storage.put(path, msgspec.json.encode(seen))
    return lambda: storage.delete([path])
