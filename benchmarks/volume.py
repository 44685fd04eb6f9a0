"""A state of N GB in two subtasks: what an epoch writes, and what a recovery and a change of parallelism read.

    python -m benchmarks volume --gb 1
    python -m benchmarks volume --gb 5 --directory /large/disk
    python -m benchmarks volume --gb 0.2 --cycle

Runs the real state backend, one process for each subtask, on a directory; Spark does not run. Rows are incompressible
kilobytes. After the state has been filled, each epoch rewrites 1 % of the rows, chosen at random. Then the processes are
killed, and the state is restored on the same host, on another one, and at parallelisms 4 and 3; every restore is checked.

``written``: bytes stored for each changed byte. With ``--cycle``, what was written up to the next base; otherwise the
next base is added in proportion to the deltas that it will replace. ``read_state`` and ``read_stored``: bytes read for each
byte of state, and of the checkpoint's files, before the first row is there. ``cpu_s``: processor time of all subtasks,
RocksDB's threads included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.metadata import KeyedHandle, OperatorCheckpoint, SubtaskState
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.runtime.plan.redistribution import assigned
from holdfast.state.backends import upkeep
from holdfast.state.backends.backend import Place, StateBackendSettings, size_of
from holdfast.state.backends.compaction import RATIO, Base
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.keys.key_groups import key_group_range, key_grouper
from holdfast.state.stored import delta

GROUPS = 128
PARALLELISM = 2
ROW = 1024
"""Bytes of a key and its value."""
SMALL_GB = 0.05
FILLED = 25_000
"""Rows written in an epoch while the state is filled."""
_CHECKED = 10_000


class Counted(Storage):
    """Counts the bytes written, by kind of file."""

    deltas = others = 0

    def put(self, path: str, data: Any) -> None:
        if path.endswith(".delta"):
            self.deltas += len(data)
        else:
            self.others += len(data)
        super().put(path, data)


class Reads:
    """Counts the bytes that this process reads: by system calls, RocksDB's included, and in mapped deltas."""

    def __init__(self) -> None:
        self._mapped = 0
        self._begun = self._called()
        decompressed = delta._Reader._opened

        def opened(reader: Any, piece: Any, body: memoryview) -> Any:
            if reader._mapped is not None:
                self._mapped += len(body)
            return decompressed(reader, piece, body)

        delta._Reader._opened = opened  # type: ignore[assignment, method-assign]

    @staticmethod
    def _called() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["rchar"])

    @property
    def bytes(self) -> int:
        """The bytes read so far."""
        return self._called() - self._begun + self._mapped


@dataclass
class Stored:
    """A subtask's part of a checkpoint."""

    handles: list[KeyedHandle]
    schema: Any
    epoch: int


class Subtask:
    """The keyed state of one subtask."""

    def __init__(self, root: Path, host: str, rows: int, parallelism: int, number: int, storage: Any = None) -> None:
        self.groups = key_group_range(GROUPS, parallelism, number)
        self.keys = [key for key, group in enumerate(key_grouper(GROUPS)(list(range(rows)))) if group in self.groups]
        self.storage = storage or Counted.open(str(root / "storage"))
        self._uploads = ThreadPoolExecutor(1)
        place = Place("'op'", self.groups, GROUPS, self.storage, str(root / host / f"{parallelism}-{number}"))
        self.backend = KeyedStateBackend(place, StateBackendSettings.of({}), self._uploads)
        self.number = number
        self.pick = random.Random(number)
        self.epoch = 0

    def open(self, stored: Stored | None) -> None:
        """Restore."""
        self.space = self.backend.open(*((stored.handles, stored.schema) if stored else ([], None))).space("keyed")
        self.value = self.space.get_state(ValueStateDescriptor("value", Types.PRIMITIVE_ARRAY(Types.BYTE())))
        self.backend.replay()
        self.epoch = stored.epoch if stored else 0

    def run_epoch(self, keys: Sequence[int]) -> None:
        """Rewrite the rows of these keys in an epoch, and complete it."""
        self.epoch += 1
        epoch, update, space = Epoch(self.epoch), self.value.update, self.space
        for key, row in zip(keys, space.table().load(keys)):
            space.row = row
            update(key.to_bytes(8, "big") + self.pick.randbytes(ROW - 16))

        def new_path(kind: str) -> str:
            return JobPaths.of("volume").state_file(1, epoch, "op", self.number, new_attempt(), kind)

        began = time.perf_counter()
        self.handles = self.backend.snapshot(new_path)
        self.barrier_s = time.perf_counter() - began
        self.backend.completed(self.handles, epoch, new_path)

    def stored(self) -> Stored:
        """The checkpoint of the last epoch."""
        return Stored(self.handles, self.backend.state.schema, self.epoch)

    def settle(self) -> None:
        """Wait for the upload in the background."""
        if self.backend._pending is not None:
            wait([self.backend._pending])

    def store_base(self) -> None:
        """Run epochs until a base of all rows is stored: they go to the local store first, in steps between epochs."""
        # A flush that already runs would leave later deltas out of the base.
        for due, phase in ((None, upkeep.Phase.IDLE), (Base(), upkeep.Phase.STORING), (None, upkeep.Phase.IDLE)):
            with mock.patch.object(upkeep, "due", return_value=due):
                while self.backend._upkeep.phase is not phase:
                    self.settle()
                    self.run_epoch(self.keys[:1])

    def check(self) -> None:
        """Check some rows."""
        keys = self.pick.sample(self.keys, min(_CHECKED, len(self.keys)))
        for key, row in zip(keys, self.space.table().load(keys)):
            if row[1] is None or bytes(row[1][:8]) != key.to_bytes(8, "big"):
                raise AssertionError(f"key {key} is missing")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--gb", type=float, default=1.0, help="size of the state")
    parser.add_argument("--epochs", type=int, default=30, help="epochs that change 1 %% of the rows")
    parser.add_argument("--cycle", action="store_true", help="go on until the next base is stored")
    parser.add_argument("--directory", default="", help="where the state goes; by default a temporary directory")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fill, change, kill, and restore in each way."""
    rows = round(options.gb * 1e9 / ROW)
    figures: dict[str, Any] = {"label": "holdfast-rocksdb", "workload": "volume", "data": f"{options.gb} GB"}
    with tempfile.TemporaryDirectory(dir=options.directory or None) as directory:
        root, small = Path(directory), Path(directory, "small")
        if (free := shutil.disk_usage(root).free) < 8 * options.gb * 1e9:
            raise SystemExit(f"not enough space in {root}: {free >> 30} GiB free, 8 times the state is needed")
        changed = max(rows // 100 // PARALLELISM, 1)
        little = _all(PARALLELISM, _change, small, round(SMALL_GB * 1e9 / ROW), changed, options.epochs, False)
        _tell("small state changed", little)
        shutil.rmtree(small)
        large = _all(PARALLELISM, _change, root, rows, changed, options.epochs, options.cycle)
        _tell("large state changed", large)
        figures.update(_epochs(little, large, options.cycle))
        state = [each["stored"] for each in large]
        size = rows * ROW
        # The processes were killed: the store on the disk is that of a crash.
        for name, parallelism in (("host", PARALLELISM), ("other", PARALLELISM), ("third", 4), ("fourth", 3)):
            restored = _all(parallelism, _restored, root, name, rows, state, parallelism)
            what = {"host": "kept", "other": "lost"}.get(name, f"rescaled_to_{parallelism}")
            figures.update(_figures(what, restored, state, size))
            if parallelism != PARALLELISM:
                state = [each["stored"] for each in restored]
        figures["lost_mb_per_s_a_core"] = round(size / 1e6 / figures["lost_cpu_s"])
    return {**figures, "ok": figures["written"] <= 1.5}


def _all(count: int, work: Callable[..., dict[str, Any]], *arguments: Any) -> list[dict[str, Any]]:
    """Run the work for each of the subtasks, in as many processes as there are cores; kills each process at its end."""
    found: list[dict[str, Any]] = []
    numbers = list(range(count))
    context = multiprocessing.get_context("spawn")
    while numbers:
        now, numbers = numbers[: (cores := os.cpu_count() or 1)], numbers[cores:]
        running = []
        for number in now:
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, work, number, arguments))
            process.start()
            theirs.close()
            running.append((process, mine))
        for process, mine in running:
            try:
                answer = mine.recv()
            except EOFError:
                raise SystemExit("a subtask has failed") from None
            process.kill()
            process.join()
            found.append(answer)
    return found


def _work(answers: Connection, work: Callable[..., dict[str, Any]], number: int, arguments: Sequence[Any]) -> None:
    answers.send(work(number, *arguments))
    answers.poll(None)  # until it is killed, or the other process is gone


def _change(number: int, root: Path, rows: int, changed: int, epochs: int, cycle: bool) -> dict[str, Any]:
    """Fill the state of a subtask, and change ``changed`` rows in each of some epochs."""
    subtask = Subtask(root, "host", rows, PARALLELISM, number)
    subtask.open(None)
    order = subtask.pick.sample(subtask.keys, len(subtask.keys))
    began = time.perf_counter()
    for at in range(0, len(order), FILLED):
        subtask.run_epoch(order[at : at + FILLED])
    filled = time.perf_counter() - began
    subtask.settle()
    subtask.run_epoch(order[:1])
    if cycle:  # it begins with a base
        subtask.store_base()
    storage = subtask.storage
    deltas, others = storage.deltas, storage.others
    seconds, barriers, cpu, count = [], [], time.process_time(), 0
    base = subtask.handles[-1].base
    while count < epochs or (cycle and subtask.handles[-1].base == base):
        keys = subtask.pick.sample(subtask.keys, min(changed, len(subtask.keys)))
        start = time.perf_counter()
        subtask.run_epoch(keys)
        seconds.append(time.perf_counter() - start)
        barriers.append(subtask.barrier_s)
        count += 1
    cpu = time.process_time() - cpu
    subtask.settle()
    return {
        "stored": subtask.stored(),
        "filled_s": filled,
        "seconds": seconds,
        "barriers": barriers,
        "cpu_s": cpu,
        "changed": count * len(keys) * ROW,
        "deltas": storage.deltas - deltas,
        "others": storage.others - others,
    }


def _restored(number: int, root: Path, host: str, rows: int, state: list[Stored], parallelism: int) -> dict[str, Any]:
    """Restore one of ``parallelism`` subtasks, and run an epoch."""
    stored = Stored(_assigned(state, parallelism, number), state[0].schema, max(each.epoch for each in state))
    subtask = Subtask(root, host, rows, parallelism, number)
    reads = Reads()
    began, cpu = time.perf_counter(), time.process_time()
    subtask.open(stored)
    subtask.space.table().load(subtask.keys[:1])
    seconds, cpu, read = time.perf_counter() - began, time.process_time() - cpu, reads.bytes
    subtask.check()
    subtask.run_epoch(subtask.keys[:1])
    found = subtask.backend.reused
    subtask.settle()
    subtask.run_epoch(subtask.keys[:1])
    return {"stored": subtask.stored(), "seconds": seconds, "cpu_s": cpu, "read": read, "found": found}


def _assigned(state: list[Stored], parallelism: int, number: int) -> list[KeyedHandle]:
    operator = OperatorCheckpoint(
        "op", max_parallelism=GROUPS, parallelism=len(state), subtasks=[SubtaskState(each.handles) for each in state]
    )
    return assigned(operator, parallelism, number).state.keyed


def _size(state: list[Stored]) -> int:
    """The size of a checkpoint's files."""
    return sum(map(size_of, {each for one in state for handle in one.handles for each in handle.handles()}))


def _figures(name: str, restored: list[dict[str, Any]], state: list[Stored], size: int) -> dict[str, Any]:
    _tell(name, restored)
    return {
        f"{name}_s": round(max(each["seconds"] for each in restored), 2),
        f"{name}_cpu_s": round(sum(each["cpu_s"] for each in restored), 2),
        f"{name}_read_state": round(sum(each["read"] for each in restored) / size, 2),
        f"{name}_read_stored": round(sum(each["read"] for each in restored) / _size(state), 2),
        f"{name}_found": sum(each["found"] for each in restored),
    }


def _epochs(little: list[dict[str, Any]], large: list[dict[str, Any]], cycle: bool) -> dict[str, Any]:
    def total(of: list[dict[str, Any]], name: str) -> float:
        return float(sum(each[name] for each in of))

    def median(of: list[dict[str, Any]], name: str) -> float:
        return statistics.median(max(each) for each in zip(*(each[name] for each in of)))

    changed, deltas = total(large, "changed"), total(large, "deltas")
    bases = total(large, "others") if cycle else deltas / RATIO
    files = [each for one in large for handle in one["stored"].handles for each in handle.deltas]
    return {
        "filled_s": round(max(each["filled_s"] for each in large), 1),
        "written": round((deltas + bases) / changed, 3),
        "written_as_deltas": round(deltas / changed, 3),
        "deltas": len(files),
        "deltas_mb": round(sum(map(size_of, files)) / 1e6),
        "epoch_s": round(median(large, "seconds"), 3),
        "small_epoch_s": round(median(little, "seconds"), 3),
        "epoch_ratio": round(median(large, "seconds") / median(little, "seconds"), 2),
        "barrier_s": round(median(large, "barriers"), 3),
        "epoch_cpu_ms_per_mb": round(total(large, "cpu_s") / changed * 1e9, 1),
        "epoch_cpu_ratio": round(total(large, "cpu_s") / changed * total(little, "changed") / total(little, "cpu_s"), 2),
    }


def _tell(what: str, answers: list[dict[str, Any]]) -> None:
    figures = [
        {name: value for name, value in each.items() if name not in ("stored", "seconds", "barriers")} for each in answers
    ]
    print(f"{what}: {figures}", file=sys.stderr, flush=True)
