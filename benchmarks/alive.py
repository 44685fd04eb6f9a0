"""Recovery follows what is alive: processor time to restore a small state of which much has changed since its base.

40,000 keys have a row and a timer each. 4,000 records a second change rows and move timers, in epochs of a quarter of a
second, on the real state backend. Then the state is restored on another host, from the checkpoint with the most bytes. All
rows and timers are checked. The bar is 2 s of processor time. Bytes and requests of all that was written are counted, as an
object store sees them: nothing is linked.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.state.backends.backend import Place, StateBackendSettings, size_of
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.keys.key_groups import KeyGroupRange

GROUPS = 128
EPOCHS_A_SECOND = 4
ROUNDS = 3
"""Restores of each state, of which the quickest counts: other work on the machine makes them slower, never quicker."""
AHEAD_MS = 600_000
"""From a record to the timer that it sets."""


class _Punctual(ThreadPoolExecutor):
    """Stands in for the time between epochs: what works beside them is done before the next one."""

    def submit(self, *arguments: Any, **others: Any) -> Any:
        wait([work := super().submit(*arguments, **others)])
        return work


class Counted(Storage):
    """A storage without links that counts what is put."""

    written = puts = 0

    def put(self, path: str, data: Any) -> None:
        super().put(path, data)
        self.written += len(data)
        self.puts += 1

    def link(self, path: str, source: str) -> bool:
        return False


class Subtask:
    """The keyed state of one subtask, and a model of what is alive in it."""

    def __init__(self, directory: Path, host: str, backend: str) -> None:
        self.uploads = _Punctual(1)
        self.storage = Counted.open(str(directory / "storage"))
        place = Place("'op'", KeyGroupRange(0, GROUPS - 1), GROUPS, self.storage, str(directory / host))
        self.backend = KeyedStateBackend(place, StateBackendSettings.of({"state.backend.type": backend}), self.uploads)

    def open(self, handles: Any, schema: Any) -> float:
        """Restore, and fetch what is still to come; returns the seconds of processor time, those of all threads."""
        began = time.process_time()
        state = self.backend.open(handles, schema)
        self.space, self.timers = state.space("keyed"), state.timer_queue("event")
        self.value = self.space.get_state(ValueStateDescriptor("value", Types.LONG()))
        self.backend.replay()
        self.timers.next_time()
        self.space.table().load([0])
        return time.process_time() - began

    def run_epoch(self, number: int, changes: dict[int, int], alive: dict[int, int]) -> None:
        """Set values and timers of keys in an epoch."""
        epoch = Epoch(number)
        self.backend.begin_epoch(epoch, CheckpointId(number - 1))
        for (key, at), row in zip(changes.items(), self.space.table().load(list(changes))):
            self.space.row = row
            self.value.update(at)
            if key in alive:
                self.timers.delete(alive[key], key)
            self.timers.register(at, key)
        alive.update(changes)

        def new_path(kind: str) -> str:
            return JobPaths.of("alive").state_file(1, epoch, "op", 0, new_attempt(), kind)

        self.handles = self.backend.snapshot(new_path)
        self.backend.completed(self.handles, epoch, new_path)

    def check(self, alive: dict[int, int]) -> None:
        """Compare all rows and timers with what is alive."""
        rows = self.space.table().load(list(alive))
        if [row[1] for row in rows] != list(alive.values()):
            raise AssertionError("rows are not those of before the kill")
        if sorted(self.timers.all()) != sorted((at, key) for key, at in alive.items()):
            raise AssertionError("timers are not those of before the kill")

    def close(self) -> None:
        """Close the state."""
        self.backend.close()
        self.uploads.shutdown()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=40_000)
    parser.add_argument("--rate", type=int, default=4_000, help="records a second, of event time")
    parser.add_argument("--seconds", type=int, default=300)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Change the state for some time on each backend, and restore it."""
    figures: dict[str, Any] = {"label": "holdfast", "workload": "alive", "records": options.rate * options.seconds}
    for backend in ("hashmap", "rocksdb"):
        with tempfile.TemporaryDirectory() as name:
            figures |= {f"{backend}_{what}": figure for what, figure in _measured(Path(name), backend, options).items()}
    return figures


def _measured(directory: Path, backend: str, options: argparse.Namespace) -> dict[str, float]:
    """The least seconds of processor time of a restore, the bytes of the checkpoint's files, and what was written."""
    pick, alive = random.Random(1), dict[int, int]()
    subtask = Subtask(directory, "host", backend)
    subtask.open([], None)
    subtask.run_epoch(1, {key: AHEAD_MS + key for key in range(options.keys)}, alive)
    largest = 0
    for epoch in range(2, 2 + options.seconds * EPOCHS_A_SECOND):
        now = epoch * 1000 // EPOCHS_A_SECOND
        changed = pick.sample(range(options.keys), options.rate // EPOCHS_A_SECOND)
        subtask.run_epoch(epoch, {key: now + AHEAD_MS + pick.randrange(1000) for key in changed}, alive)
        if (size := sum(size_of(file) for each in subtask.handles for file in each.handles())) > largest:
            largest, handles, then = size, subtask.handles, dict(alive)
    schema = subtask.backend.state.schema
    subtask.close()
    restored = []
    for host in range(ROUNDS):
        again = Subtask(directory, f"host-{host}", backend)
        restored.append(again.open(handles, schema))
        again.check(then)
        again.close()
    return {
        "restore_cpu_s": round(min(restored), 2),
        "checkpoint_mb": round(largest / 1e6, 1),
        "written_mb": round(subtask.storage.written / 1e6, 1),
        "requests": subtask.storage.puts,
    }
