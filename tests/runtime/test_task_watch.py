"""What a task slot tells of a task that lasts: a call that has not returned, a wait of Holdfast's own, or progress."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from awaiting import until
from holdfast.checkpoint.stores.storage import NotFound, RetryPolicy, Storage
from holdfast.metrics.stats import StandingTask
from holdfast.runtime.host.wire import Wire
from holdfast.runtime.slots.standstill import TaskWatch
from holdfast.testing.faulty_storage import Fault, FaultyStorage
from holdfast.testing.memory_store import MemoryStore

PATH = "job/slots/here"
LOOK_S = 0.1


class Slot:
    """A slot whose main thread is one of this process."""

    def __init__(self, directory: Path) -> None:
        self.storage = Storage.open(str(directory))
        self._over = threading.Event()

    def runs(self, work: Callable[[], object]) -> None:
        def run() -> None:
            watch = TaskWatch(self.storage, PATH, LOOK_S)
            watch.begin(3, "Source, worker", 0, lambda: "worker")
            try:
                work()
            finally:
                watch.end()
            self._over.wait()
            watch.close()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def told(self) -> StandingTask | None:
        try:
            return msgspec.json.decode(self.storage.get(PATH), type=StandingTask)
        except NotFound:
            return None

    def stands(self) -> bool:
        told = self.told()
        return told is not None and told.same_call_seconds > 5 * LOOK_S

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    slot = Slot(tmp_path)
    yield slot
    slot.end()


def a_function_that_waits_for_ever_is_told_with_its_line(slot: Slot) -> None:
    answer = threading.Event()
    slot.runs(lambda: answer.wait())
    told = until(lambda: slot.stands() and slot.told())
    answer.set()
    assert told
    assert not told.computes
    assert told.where.startswith(f"<lambda> ({__file__}:")
    assert "answer.wait()" in told.where


def a_function_that_computes_for_ever_is_told_as_computing(slot: Slot) -> None:
    enough = threading.Event()

    def compute() -> None:
        while not enough.is_set():
            pass

    slot.runs(compute)
    told = until(lambda: slot.stands() and slot.told())
    enough.set()
    assert told
    assert told.computes
    assert told.where.startswith("compute (")


def a_wait_of_holdfasts_own_is_told_with_the_line_that_waits(slot: Slot) -> None:
    here, there = socket.socketpair()
    wire = Wire(here)
    slot.runs(wire.receive)
    told = until(lambda: slot.stands() and slot.told())
    other = Wire(there)
    other.send(1)
    other.flush()
    slot.end()
    other.close()
    wire.close()
    assert told
    assert told.where.startswith("receive (")
    assert told.waits_for.startswith("Spark")


def a_storage_that_is_asked_again_and_again_is_a_wait_of_holdfasts_own(slot: Slot) -> None:
    away = [True]
    store = FaultyStorage(MemoryStore(), lambda method, path: Fault.UNAVAILABLE if away else None)
    storage = Storage(store, RetryPolicy(first_delay=LOOK_S, longest_delay=LOOK_S))
    slot.runs(partial(storage.list, "state/"))
    told = until(lambda: slot.stands() and slot.told())
    away.clear()
    assert told
    assert told.where.startswith("_repeat (")
    assert told.waits_for == "the checkpoint storage"


def a_wait_that_ends_and_begins_again_with_the_same_calls_is_one_wait(slot: Slot) -> None:
    away = [True]
    store = FaultyStorage(MemoryStore(), lambda method, path: Fault.LOST_ANSWER if away else None)
    store.delay("list", 2 * LOOK_S)
    slot.runs(partial(Storage(store, RetryPolicy(first_delay=0.0)).list, "state/"))
    told = until(lambda: slot.stands() and slot.told())
    away.clear()
    assert told


def a_slow_function_that_is_called_again_and_again_goes_on(slot: Slot) -> None:
    away = [True]

    def slow(seconds: float) -> None:
        time.sleep(LOOK_S / 5)

    store = FaultyStorage(MemoryStore(), lambda method, path: Fault.UNAVAILABLE if away else None)
    slot.runs(partial(Storage(store, sleep=slow).list, "state/"))
    told = until(lambda: (told := slot.told()) and told.seconds > 15 * LOOK_S and told)
    away.clear()
    assert told.same_call_seconds < told.seconds / 2


def the_word_of_a_task_is_gone_when_it_has_ended(slot: Slot) -> None:
    answer = threading.Event()
    slot.runs(lambda: answer.wait())
    until(slot.told)
    answer.set()
    until(lambda: slot.told() is None)
