"""Measures the bytes that a subtask reads to restore one eighth of another's key groups after a change of parallelism.

Runs the real state backend on a directory. Many rows are written over a hundred epochs, some of them changed in each, so
that a base and several deltas hold the state. The rows are those of keys (one slice), or of windows (many slices), which
are filled one after the other. The reads are counted at the storage.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.state.backends.backend import Place, StateBackendSettings
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.keys.key_groups import KeyGroupRange, key_group, key_group_range
from holdfast.state.rows.table import RowTable

GROUPS, PARTS = 128, 8
EPOCHS = 100
SLICES = (1, 20, 200)
WINDOW_MS = 60_000


class Counted(Storage):
    """Counts the bytes and requests of reads."""

    read = reads = 0

    def get(self, path: str) -> bytes:
        return self._count(super().get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._count(super().get_range(path, start, length))

    def _count(self, data: bytes) -> bytes:
        self.read += len(data)
        self.reads += 1
        return data


class Subtask:
    """The keyed state of one subtask."""

    def __init__(
        self, storage: Storage, directory: Path, kind: str, groups: KeyGroupRange, uploads: ThreadPoolExecutor, slices: int
    ) -> None:
        self.slices = slices
        settings = StateBackendSettings.of({"state.backend.type": kind})
        self.backend = KeyedStateBackend(Place("'op'", groups, GROUPS, storage, str(directory)), settings, uploads)

    def open(self, handles: Any, schema: Any) -> None:
        """Restore."""
        self.space = self.backend.open(handles, schema).space("keyed" if self.slices == 1 else "window")
        self.value = self.space.get_state(ValueStateDescriptor("value", Types.PICKLED_BYTE_ARRAY()))
        self.backend.replay()

    def write(self, keys: list[int], pick: random.Random) -> None:
        """Change these keys."""
        for slice in sorted({key % self.slices for key in keys}):
            mine = [key for key in keys if key % self.slices == slice]
            for key, row in zip(mine, self.table(slice).load(mine)):
                self.space.row = row
                self.value.update(key.to_bytes(8, "big") + pick.randbytes(92))

    def table(self, slice: int) -> RowTable:
        """The rows of a slice."""
        return self.space.table(None if self.slices == 1 else slice * WINDOW_MS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--slices", type=int, nargs="+", default=SLICES)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Write the states with each backend, and restore one eighth of each with each."""
    figures: dict[str, Any] = {"label": "holdfast", "workload": "clipped"}
    shares = []
    for slices in options.slices:
        for kind in ("rocksdb", "hashmap"):
            name = f"{slices}_{kind}"
            with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1) as uploads:
                storage = Counted.open(directory + "/storage")
                handles, schema = _written(storage, Path(directory), kind, options.keys, slices, uploads)
                total = sum(each.size for handle in handles for each in handle.handles())
                figures[f"{name}_mb"] = round(total / 1e6, 1)
                for by in ("rocksdb", "hashmap"):
                    reads, requests, seconds = [], [], []
                    for part in range(PARTS):
                        groups = key_group_range(GROUPS, PARTS, part)
                        clipped = [msgspec.structs.replace(h, first=groups.first, last=groups.last) for h in handles]
                        subtask = Subtask(storage, Path(directory, f"{by}-{part}"), by, groups, uploads, slices)
                        storage.read = storage.reads = 0
                        began = time.process_time()
                        subtask.open(clipped, schema)
                        seconds.append(time.process_time() - began)
                        reads.append(storage.read / total)
                        requests.append(storage.reads)
                        _check(subtask, groups, options.keys)
                        subtask.backend.close()
                    figures[f"{name}_by_{by}_share"] = round(max(reads), 3)
                    figures[f"{name}_by_{by}_requests"] = max(requests)
                    figures[f"{name}_by_{by}_cpu_s"] = round(sum(seconds) / PARTS, 2)
                    shares.append(max(reads))
    return {**figures, "ok": max(shares) <= 1 / 6}


def _written(storage: Storage, directory: Path, kind: str, keys: int, slices: int, uploads: ThreadPoolExecutor) -> Any:
    """Write a state over some epochs; returns its handles and its schema."""
    subtask = Subtask(storage, directory / f"{kind}-whole", kind, KeyGroupRange(0, GROUPS - 1), uploads, slices)
    subtask.open([], None)
    pick = random.Random(1)
    shuffled = list(range(keys))
    pick.shuffle(shuffled)
    shuffled.sort(key=lambda key: key % slices)  # event time proceeds: one window after the other
    for epoch in range(1, EPOCHS + 1):
        filled = shuffled[(epoch - 1) * keys // 20 : epoch * keys // 20]
        subtask.write(filled or pick.sample(shuffled[-(keys // slices) :], keys // 400), pick)

        def new_path(kind: str, epoch: int = epoch) -> str:
            return JobPaths.of("clipped").state_file(1, Epoch(epoch), "op", 0, new_attempt(), kind)

        handles = subtask.backend.snapshot(new_path)
        subtask.backend.completed(handles, Epoch(epoch), new_path)
        if epoch == EPOCHS - 10 and subtask.backend._pending is not None:
            subtask.backend._pending.result()
    schema = subtask.backend.state.schema
    subtask.backend.close()
    return handles, schema


def _check(subtask: Subtask, groups: KeyGroupRange, keys: int) -> None:
    for slice in range(subtask.slices):
        mine = [key for key in range(slice, keys, subtask.slices) if key_group(key, GROUPS) in groups]
        rows = subtask.table(slice).load(mine)
        if not all(row[1] is not None and bytes(row[1][:8]) == key.to_bytes(8, "big") for key, row in zip(mine, rows)):
            raise AssertionError(f"key groups {groups} were not restored")
