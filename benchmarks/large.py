"""A map of a million entries and a list of a hundred thousand elements of one key: the cost of a change.

Runs the real state backend on a directory. Epochs with the large map and with a small one of a hundred entries alternate;
each changes a hundred entries. The bytes of the epoch's delta, and of the bases that it starts, are counted separately at
the storage.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.handles import IndexedFile
from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Types
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor
from holdfast.state.backends.backend import INLINE_THRESHOLD, Place, StateBackendSettings
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored.delta import read_delta

KEY = "one"
CHANGED = 100
GROUPS = 128


class Counted(Storage):
    """Counts the bytes written, by kind of file."""

    delta = others = 0

    def put(self, path: str, data: Any) -> None:
        if path.endswith(".delta"):
            self.delta += len(data)
        else:
            self.others += len(data)
        super().put(path, data)


class Subtask:
    """The keyed state of one subtask, with a map and a list."""

    def __init__(self, directory: Path, kind: str, uploads: ThreadPoolExecutor) -> None:
        self.storage = Counted.open(str(directory / "storage"))
        settings = StateBackendSettings.of({"state.backend.type": kind, INLINE_THRESHOLD: "0b"})  # each delta is a file
        place = Place("'op'", KeyGroupRange(0, GROUPS - 1), GROUPS, self.storage, str(directory / "local"))
        self.backend = KeyedStateBackend(place, settings, uploads)
        self.space = self.backend.open([], None).space("keyed")
        self.map = self.space.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LONG()))
        self.list = self.space.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self.backend.replay()
        self.epoch = 0

    def use(self) -> None:
        """Make the key current, as a record does."""
        (self.space.row,) = self.space.table().load([KEY])
        self.space.key = KEY

    def end_epoch(self) -> list[KeyedHandle]:
        """End the epoch: the barrier, and the checkpoint's completion."""
        self.epoch += 1
        handles = self.backend.snapshot(self._new_path)
        self.backend.completed(handles, Epoch(self.epoch), self._new_path)
        return handles

    def _new_path(self, kind: str) -> str:
        return JobPaths.of("large").state_file(1, Epoch(self.epoch), "op", 0, new_attempt(), kind)

    def changes(self, handles: list[KeyedHandle]) -> int:
        """The number of entries or chunks in the last delta."""
        delta = handles[-1].deltas[-1]
        assert isinstance(delta, IndexedFile)
        entries = [each for each in read_delta(self.storage, delta) if each.section.state != self.space.state_id]
        return sum(len(msgspec.msgpack.decode(piece.data)[1]) for change in entries for piece in change.pieces)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--entries", type=int, default=1_000_000, help="entries of the large map")
    parser.add_argument("--elements", type=int, default=100_000, help="elements of the list")
    parser.add_argument("--epochs", type=int, default=300)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run both backends in turn."""
    figures: dict[str, Any] = {"label": "holdfast", "workload": "large"}
    good = []
    for kind in ("rocksdb", "hashmap"):
        with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1) as uploads:
            large = Subtask(Path(directory, "large"), kind, uploads)
            small = Subtask(Path(directory, "small"), kind, uploads)
            pick = random.Random(1)
            _fill(large, options.entries, options.elements, pick)
            _fill(small, CHANGED, CHANGED, pick)
            mine = _measured(large, small, options, pick)
            large.backend.close()
            small.backend.close()
        figures.update({f"{kind}_{name}": value for name, value in mine.items()})
        good += [mine["bytes_ratio"] <= 3, mine["time_ratio"] <= 2, mine["chunks"] == 1]
    return {**figures, "ok": all(good)}


def _fill(subtask: Subtask, entries: int, elements: int, pick: random.Random) -> None:
    for first in range(0, entries, 50_000):
        subtask.use()
        subtask.map.put_all({n: _value(pick) for n in range(first, min(first + 50_000, entries))})
        subtask.end_epoch()
    subtask.use()
    subtask.list.add_all([_value(pick) for _ in range(elements)])
    subtask.end_epoch()


def _value(pick: random.Random) -> int:
    return pick.getrandbits(62)


def _measured(large: Subtask, small: Subtask, options: argparse.Namespace, pick: random.Random) -> dict[str, Any]:
    seconds: dict[Subtask, list[float]] = {large: [], small: []}
    ratios, chunks = [], []
    others = large.storage.others
    for _ in range(options.epochs):
        keys = pick.sample(range(options.entries), CHANGED)
        changed = {key: _value(pick) for key in keys}
        size = sum(len(msgspec.msgpack.encode(each)) for entry in changed.items() for each in entry)
        for subtask, entries in ((large, changed), (small, dict(zip(range(CHANGED), changed.values(), strict=True)))):
            before = subtask.storage.delta
            began = time.thread_time()
            for key, value in entries.items():
                subtask.use()
                subtask.map.put(key, value)
            subtask.end_epoch()
            seconds[subtask].append(time.thread_time() - began)
            if subtask is large:
                ratios.append((subtask.storage.delta - before) / size)
        large.use()
        large.list.add(_value(pick))
        chunks.append(large.changes(large.end_epoch()))
    change_us = {subtask: 1e6 * statistics.median(each) / CHANGED for subtask, each in seconds.items()}
    return {
        "bytes_ratio": round(max(ratios), 2),
        "base_kib_per_epoch": round((large.storage.others - others) / 1024 / (2 * options.epochs), 1),
        "change_us": round(change_us[large], 2),
        "small_change_us": round(change_us[small], 2),
        "time_ratio": round(change_us[large] / change_us[small], 2),
        "chunks": max(chunks),
    }
