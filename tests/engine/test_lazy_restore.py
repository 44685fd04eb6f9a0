"""A job goes on while the files of its state are being fetched: results come before them, and reads wait for theirs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast.state.backends.rocksdb
import holdfast.state.backends.upkeep
import holdfast.state.cells.row_pieces
import holdfast.state.rows.lazy_deltas
import holdfast.state.snapshots.lazy_file
import holdfast.state.snapshots.lazy_files
import holdfast.state.snapshots.lazy_restore
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.state.backends.compaction import Base
from holdfast.state.snapshots.lazy_restore import LazyRestore

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

KEYS = 2_000
SOME = [(f"k{n % 40}", KEYS + n) for n in range(200)]
RECORDS = [(f"k{n}", n) for n in range(KEYS)] + SOME


class Bucket(Storage):
    """A storage without local files, which holds back ranges of SST files and deltas."""

    restored = threading.Event()
    whole = threading.Event()
    """Lets whole files through."""
    blocks = threading.Event()
    """Lets the blocks of lookups through."""
    waiting = 0

    def local_path(self, path: str) -> str | None:
        return None

    def map(self, path: str) -> memoryview | None:
        return None

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if path.endswith((".sst", ".delta")) and self.restored.is_set():
            Bucket.waiting += 1
            (self.whole if threading.current_thread().name == "holdfast-lazy-restore" else self.blocks).wait()
        return super().get_range(path, start, length)


@dataclass
class LabElsewhere(Lab):
    keep_disk: bool = False
    config: dict[str, str] = field(default_factory=lambda: {"state.backend.type": "rocksdb"})

    @property
    def storage(self) -> Storage:
        return Bucket.open(str(self.directory / "checkpoints"))


class Numbered(KeyedProcessFunction):
    """Numbers the records of a key, and keeps something larger beside the number."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.TUPLE([Types.LONG(), Types.STRING()])))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        key, _ = value
        number, kept = self.last.value() or (0, f"{key} " * 50)
        assert kept == f"{key} " * 50
        self.last.update((number + 1, kept))
        yield key, number


def program(env: StreamExecutionEnvironment) -> None:
    stream = env.from_source(SplitSource({"only": RECORDS}, 0), WatermarkStrategy.no_watermarks(), "source").uid("source")
    stream.key_by(lambda record: record[0]).process(Numbered()).uid("numbered").sink_to(LedgerSink("out")).uid("out")


def soon(handles: Sequence[KeyedHandle], linked: bool, epochs: int, kept: int) -> Base | None:
    return Base() if len(handles[-1].deltas) >= 5 and not handles[-1].base else None


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabElsewhere]:
    """A job whose driver has died with a base and more in its checkpoint; its local stores are lost."""
    monkeypatch.setattr(holdfast.state.snapshots.lazy_restore, "_LARGE", 0)
    monkeypatch.setattr(holdfast.state.snapshots.lazy_files, "_LEAST", 1)
    monkeypatch.setattr(holdfast.state.snapshots.lazy_file, "_GAP", 0)
    monkeypatch.setattr(holdfast.state.backends.upkeep, "due", soon)
    monkeypatch.setattr(holdfast.state.rows.lazy_deltas, "_LEAST", 1)
    monkeypatch.setattr(holdfast.state.cells.row_pieces, "_LARGE_ROW", 50)
    begin = LazyRestore.begin
    monkeypatch.setattr(LazyRestore, "begin", lambda self: (Bucket.restored.set(), begin(self))[1])
    LEDGERS["out"].committed.clear()
    for gate in (Bucket.restored, Bucket.whole, Bucket.blocks):
        gate.clear()
    Bucket.waiting = 0
    job = LabElsewhere(program, tmp_path, budget=200)
    assert not job._run_until("after complete", KEYS // 200)
    shutil.rmtree(job.disk)
    yield job
    for gate in (Bucket.whole, Bucket.blocks):
        gate.set()
    job.close()


def expected() -> list[Any]:
    counts: dict[str, int] = {}
    told = []
    for key, _ in RECORDS:
        told.append((key, counts.get(key, 0)))
        counts[key] = counts.get(key, 0) + 1
    return sorted(told)


def test_results_come_while_no_file_has_arrived(job: LabElsewhere) -> None:
    Bucket.blocks.set()
    job.run()
    assert Bucket.waiting
    assert not Bucket.whole.is_set()
    assert sorted(LEDGERS["out"].values) == expected()


def a_read_waits_for_its_blocks(job: LabElsewhere) -> None:
    running = threading.Thread(target=job.run)
    running.start()
    running.join(0.5)
    waits, visible = running.is_alive(), len(LEDGERS["out"].values)
    Bucket.blocks.set()
    running.join(60)
    assert waits
    assert visible == KEYS
    assert sorted(LEDGERS["out"].values) == expected()
