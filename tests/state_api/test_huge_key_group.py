"""A key group of any size is read and written in bounded memory: what is held does not grow with it."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.metadata import OperatorCheckpoint, SubtaskState
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Types
from holdfast.datastream import MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import StorageError
from holdfast.state.backends import canonical, portions
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.backends.canonical import parts_of, write_part
from holdfast.state.cells import row_pieces
from holdfast.state.rows import restored_rows, table
from holdfast.state.store import scratch
from holdfast.state.store.scratch import scratch_directory
from holdfast.state.store.store import RocksDBStore
from holdfast.state.stored import delta, delta_files
from holdfast.state.timers import timer_family
from holdfast.state_api import KeyedStateBootstrapFunction, KeyedStateReaderFunction, bootstrap_task, state_rows
from holdfast.state_api import timers_by_key as timers_module
from holdfast.state_api.bootstrap_task import Target
from holdfast.state_api.regrouping import RegroupTask

from .test_bootstrap import reader, written

MEMORY = 100_000
FEW, MANY = 2_500, 12_500
TEXT = ValueStateDescriptor("text", Types.STRING())
ENTRIES = MapStateDescriptor("entries", Types.LONG(), Types.LONG())


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is some megabytes in production is some kilobytes here."""
    for module, name, least in (
        (canonical, "_MEMORY", MEMORY),
        (timers_module, "_MEMORY", MEMORY),
        (timers_module, "_AT_ONCE", 100),
        (portions, "_FILE", 50_000),
        (state_rows, "_MOST", 200),
        (table, "_BLOCKS", 2),
        (restored_rows, "_BLOCK", 64),
        (timer_family, "_DUMPED", 500),
        (timer_family, "_REPLAYED", 500),
        (bootstrap_task, "_MEMORY", MEMORY),
        (delta, "_CHANGE", 20_000),
        (row_pieces, "_BLOCK", 128),
        (bootstrap_task, "_FIRST", 500),
        (bootstrap_task, "_MOST", 500),
        (delta_files, "_LEAST_MAPPED", 1 << 40),
    ):
        monkeypatch.setattr(module, name, least)


class Made(KeyedStateBootstrapFunction):
    """A text and a timer for every key; and a large map for one."""

    def open(self, runtime_context: Any) -> None:
        self.text = runtime_context.get_state(TEXT)
        self.entries = runtime_context.get_map_state(ENTRIES)

    def process_element(self, value: Any, ctx: Any) -> None:
        self.text.update(f"{value:0100}")
        ctx.timer_service().register_event_time_timer(value % 97 * 70_000)
        if value == 7:
            self.entries.put_all({n: n for n in range(1_000)})


def one_group(directory: Path, rows: int) -> OperatorCheckpoint:
    """An operator with all its keys in one key group."""
    directory.mkdir()
    records = [(f"k{n}", n) for n in range(rows)]
    return written(str(directory), Made(), records, OperatorCheckpoint("keyed", True, 1), 1)


def held(do: Callable[[], Any]) -> int:
    """The most bytes that Python's objects took at a time."""
    gc.collect()
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Lengths(KeyedStateReaderFunction):
    def open(self, runtime_context: Any) -> None:
        self.text = runtime_context.get_state(TEXT)

    def read_key(self, key: Any, ctx: Any) -> Any:
        yield len(self.text.value()) + len(ctx.registered_event_time_timers())


def columns(directory: str, operator: OperatorCheckpoint) -> int:
    batches = reader(directory, operator).read_keyed_state("keyed")
    return sum(len(row["text"]) + 1 for batch in batches for row in batch.to_pylist())


def by_function(directory: str, operator: OperatorCheckpoint) -> int:
    batches = reader(directory, operator).read_keyed_state("keyed", Lengths(), output_type=Types.LONG())
    return sum(sum(batch.column(0).to_pylist()) for batch in batches)


def timers(directory: str, operator: OperatorCheckpoint) -> int:
    return 101 * sum(batch.num_rows for batch in reader(directory, operator).read_timers("keyed"))


def saved(directory: str, operator: OperatorCheckpoint) -> int:
    storage = Storage.open(f"file://{directory}")
    (part,) = parts_of("keyed", operator)
    handle, schema = write_part(part, storage, storage, StateBackendSettings.of({}), directory)
    assert len(handle.base) > 3
    copy = msgspec.structs.replace(operator, subtasks=[SubtaskState([handle])], schemas={handle.schema: schema})
    return timers(directory, copy) if tracemalloc.is_tracing() else columns(directory, copy)


def regrouped(directory: str, operator: OperatorCheckpoint) -> int:
    task = RegroupTask(f"file://{directory}", Target(f"file://{directory}", {}, 0), 3)
    files = list(task(0, list(parts_of("keyed", operator))))
    assert len(files) > 3
    one = operator.subtasks[0].keyed[0]
    handles = [msgspec.structs.replace(one, first=0, last=2, schema=name, base=[file]) for name, _, file in files]
    schemas = {name: schema for name, schema, _ in files}
    other = msgspec.structs.replace(operator, subtasks=[SubtaskState(handles)], max_parallelism=3, schemas=schemas)
    return timers(directory, other) if tracemalloc.is_tracing() else columns(directory, other)


class Rewritten(Made):
    def process_element(self, value: Any, ctx: Any) -> None:
        assert self.text.value() == f"{value:0100}"
        self.text.update("-" * 100)


def repaired(directory: str, operator: OperatorCheckpoint) -> int:
    other = written(directory, Rewritten(), [("k5", 5)], operator, 1)
    return timers(directory, other) if tracemalloc.is_tracing() else columns(directory, other)


@pytest.mark.parametrize("use", [columns, by_function, timers, saved, regrouped, repaired])
def the_memory_held_does_not_grow_with_the_key_group(use: Callable[[str, OperatorCheckpoint], int], tmp_path: Path) -> None:
    few, many = one_group(tmp_path / "few", FEW), one_group(tmp_path / "many", MANY)
    assert use(str(tmp_path / "few"), few) == 101 * FEW
    assert use(str(tmp_path / "many"), many) == 101 * MANY
    first = held(lambda: use(str(tmp_path / "few"), few))
    second = held(lambda: use(str(tmp_path / "many"), many))
    assert second - first < 101 * (MANY - FEW) / 10  # of the rows that were added, a tenth at most is held


def a_full_disk_for_temporary_files_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = one_group(tmp_path / "few", FEW)

    def full(*_: Any) -> None:
        raise OSError("the local store /tmp/spilled failed: No space left on device")

    monkeypatch.setattr(RocksDBStore, "write", full)
    with pytest.raises(StorageError, match=r"No space left on device. Free space there, or .*TMPDIR"):
        columns(str(tmp_path / "few"), operator)


def the_temporary_files_of_killed_processes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_NEW_S", -1.0)
    code = f"""if True:
        import os, sys
        from holdfast.state.store.scratch import scratch_directory
        with scratch_directory({str(tmp_path)!r}) as directory:
            print(directory, flush=True)
            sys.stdin.read()
            os._exit(1)
    """
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with scratch_directory(str(tmp_path)) as own:
            assert sorted(tmp_path.iterdir()) == sorted([left, Path(own)])  # both are in use
        process.stdin.close()
        process.wait()
    assert left.exists()
    with scratch_directory(str(tmp_path)) as own:
        assert list(tmp_path.iterdir()) == [Path(own)]
    assert list(tmp_path.iterdir()) == []
