"""State between drivers: local stores, materialisations, timers that fire once, time-to-live."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from typing import Any

import pytest

from holdfast.common import Time, Types
from holdfast.datastream import (
    KeyedProcessFunction,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.state.backends import compaction
from holdfast.state.store.store import RocksDBStore

from .inprocess import LEDGERS, Lab
from .programs import records, sessions, sessions_model
from .small_programs import Remember, program, visible


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("disk", ["kept", "lost"])
@pytest.mark.parametrize("cache", ["256mb", "2kb"])
def a_state_comes_back_from_materialisations_and_deltas(job, monkeypatch, backend, disk, cache):
    monkeypatch.setattr(compaction, "MOST_DELTAS", 4)
    data = records(5, 200, keys=30)
    crashes = [("run", 9), ("after complete", 7), ("before commit", 5), ("before complete", 6)]
    settings = {"state.backend.type": backend, "state.backend.cache.size": cache}
    lab = job(sessions(data, cut=8), config=settings, budget=30, keep_disk=disk == "kept")
    lab.run(crashes)
    assert visible() == sessions_model(data)
    assert any(path.endswith((".dump", ".sst")) for path in lab.storage.list("")), "no materialisation"


@pytest.mark.parametrize(("backend", "disk", "fetched"), [("rocksdb", True, 0), ("rocksdb", False, 2), ("hashmap", True, 2)])
def the_metrics_tell_how_often_a_state_was_found_where_it_had_been_left(job, backend, disk, fetched):
    data = records(5, 200, keys=30)
    lab = job(sessions(data, cut=8), config={"state.backend.type": backend}, budget=30, keep_disk=disk)
    lab.run([("after complete", 7)])
    values = lab.metrics.snapshot().values  # the second driver's: its two subtasks start once
    needed = 2 * values["numEpochs"]
    assert values["numStateFetches"] == fetched
    assert values["localStateShare"] == (needed - fetched) / needed


class Counts(KeyedProcessFunction):
    def open(self, runtime_context):
        metrics = runtime_context.get_metrics_group()
        metrics.counter("opened").inc()
        self.seen = metrics.counter("seen")

    def process_element(self, value, ctx):
        self.seen.inc()
        return ()


@pytest.mark.parametrize("trouble", [0.0, 0.2])
def the_counts_of_open_are_told_and_records_count_once_whatever_runs_again(job, trouble):
    data = [(f"k{n % 30}", n) for n in range(200)]
    lab = job(program(Counts(), data), budget=20, failures=trouble / 4, repeats=trouble)
    lab.run()
    told = lab.metrics.snapshot().user_values
    assert told["KeyedProcess.seen"] == len(data)
    assert told["KeyedProcess.opened"] >= 2  # one of each subtask, and of each that was opened again
    assert trouble or told["KeyedProcess.opened"] == 2


class FireOnce(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value[1] + 10)
        return ()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("point", ["run", "before complete", "after complete", "after commit"])
def a_timer_fires_once_after_restore(job, backend, point):
    values = [("a", 0), ("b", 1), ("b", 9), ("c", 10), ("c", 30), ("a", 31)]
    lab = job(program(FireOnce(), values), config={"state.backend.type": backend})
    lab.run([(point, n) for n in (1, 2, 1, 3, 1, 1)])
    assert sorted(LEDGERS["out"].values) == sorted((key, at + 10) for key, at in values)


class Follow(KeyedProcessFunction):
    """A timer whose callback sets the next one, three times."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value[1] + 10)
        return ()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp
        if timestamp < 40:
            ctx.timer_service().register_event_time_timer(timestamp + 10)


@pytest.mark.parametrize("cut", [1, 100])
def test_timers_that_timers_set_fire_at_the_end_of_the_input(job, cut):
    job(program(Follow(), [("a", 0), ("b", 5)], cut)).run()
    assert sorted(LEDGERS["out"].values) == sorted(
        [("a", t) for t in (10, 20, 30, 40)] + [("b", t) for t in (15, 25, 35, 45)]
    )


def an_array_can_be_kept_in_state(job):
    numpy = pytest.importorskip("numpy")
    values = [("a", n, numpy.arange(n + 2)) for n in range(6)]
    job(program(Remember(), values)).run([("after complete", 2)])
    assert [None if v is None else list(v) for _, v in LEDGERS["out"].values] == [
        None,
        *(list(range(n + 2)) for n in range(5)),
    ]


class RemembersLater(Remember):
    """Asks for its state only at the fifth element, when keys have come without state."""

    def open(self, runtime_context):
        self.kept = None
        self.ask = super().open
        self.runtime_context = runtime_context

    def process_element(self, value, ctx):
        if value[2] >= 4 and self.kept is None:
            self.ask(self.runtime_context)
        return [(value[0], None)] if self.kept is None else super().process_element(value, ctx)


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("budget", [1, 2, 3, 20])
def a_function_may_ask_for_its_first_state_at_any_time(job, backend, budget):
    values = [(key, n, n) for n, key in enumerate("ababababab")]
    lab = job(program(RemembersLater(), values), config={"state.backend.type": backend}, parallelism=1, budget=budget)
    lab.run([("after complete", 2), ("after complete", 2)])
    told = [None] * 6 + [4, 5, 6, 7]
    assert sorted(LEDGERS["out"].values, key=str) == sorted(zip("ababababab", told), key=str)


class RememberForAWhile(Remember):
    """Keeps it only for an hour, or for no time."""

    def __init__(self, hours: float) -> None:
        super().__init__(Types.LONG())
        self.ttl = StateTtlConfig.new_builder(Time.milliseconds(round(hours * 3_600_000) or 1)).build()

    def open(self, runtime_context):
        descriptor = ValueStateDescriptor("kept", Types.LONG())
        descriptor.enable_time_to_live(self.ttl)
        self.kept = runtime_context.get_state(descriptor)


@pytest.mark.parametrize(("hours", "expected"), [(1, [None, 0, 1, 2, 3, 4]), (0, [None] * 6)])
def a_state_with_a_time_to_live_is_forgotten_in_time(job, monkeypatch, hours, expected):
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(seconds) * 10**9)
    job(program(RememberForAWhile(hours), [("a", n, n) for n in range(6)])).run([("after complete", 2)])
    assert [v for _, v in LEDGERS["out"].values] == expected


def a_local_store_of_other_checkpoints_is_not_used(job):
    """The same job name and disk, but other storage: what lies on the disk belongs to another life."""
    settings = {"state.backend.cache.size": "1b"}  # every committed row leaves for the store at once
    first = [("a", 0, "first"), ("b", 1, "first"), ("c", 2, "first"), ("d", 3, "x"), ("d", 4, "x"), ("d", 5, "x")]
    second = [("x", n, "second") for n in range(8)] + [("a", 9, "second"), ("c", 10, "second")]

    def lab(name: str, values: list[Any]) -> Lab:
        return job(program(Remember(Types.STRING()), values), name, config=settings, parallelism=1)

    two = lab("two", second)
    assert not two._run_until("after complete", 8)
    shutil.move(str(two.disk), str(two.directory / "kept-disk"))
    one = lab("one", first)
    assert not one._run_until("after complete", 5)
    LEDGERS["out"].committed.clear()
    shutil.move(str(one.disk), str(two.disk))
    two.run()
    got = dict(LEDGERS["out"].values)
    assert got["a"] is None
    assert got["c"] is None


def a_local_store_that_failed_is_removed_even_if_it_cannot_be_closed(job, monkeypatch, caplog):
    """RocksDB cannot be closed when it could not write the rows that it holds in memory."""
    write, close = RocksDBStore.write, RocksDBStore.close
    puts = []

    def writing(self, rows, *others):
        rows = list(rows)
        puts.append(len(rows))
        if len(puts) == 20:
            self.damaged = True
            raise OSError("no space left on device")
        write(self, rows, *others)

    def closing(self):
        close(self)
        if self.damaged:
            assert os.path.exists(self.path)
            raise OSError("no space left on device")

    def opening(self, path, settings, **background):
        opened.append(os.path.exists(os.path.join(path, "CURRENT")))
        init(self, path, settings, **background)

    init, opened = RocksDBStore.__init__, []
    monkeypatch.setattr(RocksDBStore, "write", writing)
    monkeypatch.setattr(RocksDBStore, "close", closing)
    monkeypatch.setattr(RocksDBStore, "__init__", opening)
    data = records(5, 200, keys=30)
    job(sessions(data, cut=8), config={"state.backend.cache.size": "2kb"}, budget=30).run()
    assert visible() == sessions_model(data)
    assert "no space left on device" in caplog.text
    assert sorted(opened) == [False, False, False, True]  # the other subtask's is used again
