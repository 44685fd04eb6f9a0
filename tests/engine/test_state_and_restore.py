"""State between drivers: local stores, materialisations, timers that fire once, programs that changed."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.retention import Retention
from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedProcessFunction,
    ProcessFunction,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import ConfigurationError, HoldfastError, IncompatibleState, StorageError, UserCodeError
from holdfast.runtime import machine
from holdfast.state import backend as backends
from holdfast.state.store import RocksDBStore

from .inprocess import LEDGERS, Crash, Lab, LedgerSink, SplitSource
from .programs import everything, records, sessions, sessions_model, stream


@pytest.fixture
def job(tmp_path: Path):
    """Makes a lab for a program."""
    labs: list[Lab] = []

    def make(build: Any, name: str = "", **options: Any) -> Lab:
        LEDGERS["out"].committed.clear()
        here = Lab(build, tmp_path / name, **{"budget": 1, **options})
        labs.append(here)
        return here

    yield make
    for lab in labs:
        lab.close()


def visible() -> Counter[Any]:
    return Counter(map(repr, LEDGERS["out"].values))


def strategy() -> Any:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, _: r[1])


def timed(env: StreamExecutionEnvironment, values: list[Any], cut: int = 0) -> Any:
    return env.from_source(SplitSource({"only": values}, cut), strategy(), "source").uid("source")


def program(function: Any, values: list[Any], cut: int = 0) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        timed(env, values, cut).key_by(lambda r: r[0]).process(function).uid("keyed").sink_to(LedgerSink("out")).uid("out")

    return build


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("disk", ["kept", "lost"])
@pytest.mark.parametrize("cache", ["256mb", "2kb"])
def a_state_comes_back_from_materialisations_and_deltas(job, monkeypatch, backend, disk, cache):
    monkeypatch.setattr(backends, "MOST_DELTAS", 4)
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


class Remember(KeyedProcessFunction):
    """Tells the value that it had kept, then keeps this one."""

    def __init__(self, type_info: Any = None, name: str = "kept") -> None:
        self._type = type_info
        self._name = name

    def open(self, runtime_context):
        self.kept = runtime_context.get_state(ValueStateDescriptor(self._name, self._type))

    def process_element(self, value, ctx):
        yield value[0], self.kept.value()
        self.kept.update(value[2])


def an_array_can_be_kept_in_state(job):
    numpy = pytest.importorskip("numpy")
    values = [("a", n, numpy.arange(n + 2)) for n in range(6)]
    job(program(Remember(), values)).run([("after complete", 2)])
    assert [None if v is None else list(v) for _, v in LEDGERS["out"].values] == [
        None,
        *(list(range(n + 2)) for n in range(5)),
    ]


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

    def writing(self, rows, deletes=()):
        rows = list(rows)
        puts.append(len(rows))
        if len(puts) == 20:
            self.damaged = True
            raise OSError("no space left on device")
        write(self, rows, deletes)

    def closing(self):
        close(self)
        if self.damaged:
            assert os.path.exists(self.path)
            raise OSError("no space left on device")

    def opening(self, path, settings):
        opened.append(os.path.exists(os.path.join(path, "CURRENT")))
        init(self, path, settings)

    init, opened = RocksDBStore.__init__, []
    monkeypatch.setattr(RocksDBStore, "write", writing)
    monkeypatch.setattr(RocksDBStore, "close", closing)
    monkeypatch.setattr(RocksDBStore, "__init__", opening)
    data = records(5, 200, keys=30)
    job(sessions(data, cut=8), config={"state.backend.cache.size": "2kb"}, budget=30).run()
    assert visible() == sessions_model(data)
    assert "no space left on device" in caplog.text
    assert sorted(opened) == [False, False, False, True]  # the other subtask's is used again


def a_changed_graph_is_refused_before_input_is_read(job):
    values = [("a", n, "v") for n in range(6)]

    def without_uids(function: Any) -> Any:
        def build(env: StreamExecutionEnvironment) -> None:
            keyed = timed(env, values).key_by(lambda r: r[0]).process(function)
            keyed.sink_to(LedgerSink("out"))

        return build

    class Renamed(Remember):
        def process_element(self, value, ctx):
            raise AssertionError("input was read")

    lab = job(without_uids(Remember()))
    assert not lab._run_until("after complete", 2)
    lab.build = without_uids(Renamed())
    with pytest.raises(IncompatibleState, match="uid"):
        lab.run()


def a_sink_that_went_with_output_prepared_is_refused(job):
    values = [("a", n, "v") for n in range(6)]

    def build(sink_uid: str) -> Any:
        def program(env: StreamExecutionEnvironment) -> None:
            timed(env, values).key_by(lambda r: r[0]).process(Remember()).uid("keyed").sink_to(LedgerSink("out")).uid(
                sink_uid
            )

        return program

    lab = job(build("one"))
    assert not lab._run_until("after complete", 2)
    lab.build = build("two")
    with pytest.raises(IncompatibleState, match="one"):
        lab.run()
    lab.build = build("one")
    lab.run()
    assert len(LEDGERS["out"].values) == 6


def test_another_max_parallelism_is_refused(job):
    lab = job(program(Remember(), [("a", n, "v") for n in range(6)]))
    assert not lab._run_until("after complete", 2)
    lab.config = {"pipeline.max-parallelism": "64"}
    with pytest.raises(IncompatibleState, match="max parallelism 128"):
        lab.run()


def test_another_type_of_a_state_is_refused(job):
    values = [("a", n, n) for n in range(6)]
    lab = job(program(Remember(Types.LONG()), values))
    assert not lab._run_until("after complete", 2)
    lab.build = program(Remember(Types.STRING()), values)
    with pytest.raises(IncompatibleState, match="'kept'"):
        lab.run()


class FailsToOpen(KeyedProcessFunction):
    def open(self, runtime_context):
        raise FileNotFoundError("model.bin")

    def process_element(self, value, ctx):
        return ()


def a_function_that_cannot_open_is_named(job):
    with pytest.raises(UserCodeError, match=r"model\.bin") as failure:
        job(program(FailsToOpen(), [("a", 1)])).run()
    text = str(failure.value)
    assert text.startswith("Traceback")
    assert "test_state_and_restore.py" in text.splitlines()[1]
    assert "'keyed'" in text


class FailsOnTimer(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value[1])
        return ()

    def on_timer(self, timestamp, ctx):
        raise ValueError("no time")


def a_timer_that_fails_ends_the_job(job):
    with pytest.raises(UserCodeError, match="no time") as failure:
        job(program(FailsOnTimer(), [("a", 17)])).run()
    text = str(failure.value)
    assert text.startswith("Traceback")
    assert "key: 'a'" in text
    assert "timer 17" in text


class FailsAt(KeyedProcessFunction):
    def process_element(self, value, ctx):
        if value[2] == "bad":
            raise ValueError("what is that")
        yield value


@pytest.mark.parametrize("parallelism", [1, 3])
def a_record_on_which_a_function_fails_is_named(job, parallelism):
    values = [("a", n, "good") for n in range(5)] + [("b", 5, "bad"), ("a", 6, "good")]
    lab = job(program(FailsAt(), values, cut=3), parallelism=parallelism)
    with pytest.raises(UserCodeError) as failure:
        lab.run()
    text = str(failure.value)
    assert text.startswith("Traceback")
    assert "in process_element" in text.splitlines()[1]
    for part in ("ValueError: what is that", "'KeyedProcess' (uid 'keyed')", "key: 'b'", "record: split only, record 5"):
        assert part in text
    before = [value for value in LEDGERS["out"].values]
    assert before == values[: len(before)]
    # The program is mended: it goes on where the other one failed.
    lab.build = program(Pass(), values, cut=3)
    lab.run()
    assert LEDGERS["out"].values == values


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("key", [["a", "list"], {"a": "dict"}])
def a_value_that_cannot_be_a_key_is_named(job, parallelism, key):
    def build(env: StreamExecutionEnvironment) -> None:
        timed(env, [("a", 0)]).key_by(lambda r: key).process(Pass()).sink_to(LedgerSink("out"))

    with pytest.raises(HoldfastError, match="key") as failure:
        job(build, parallelism=parallelism).run()
    assert isinstance(failure.value, UserCodeError)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("key", [float("nan"), ["a", "list"], lambda: 0], ids=["NaN", "list", "function"])
def a_value_that_cannot_be_a_key_is_named_with_its_record_anywhere_in_a_batch(job, parallelism, key):
    def build(env: StreamExecutionEnvironment) -> None:
        data = [("a", 0), ("b", 0), ("bad", 0), ("c", 0)]
        timed(env, data).key_by(lambda r: key if r[0] == "bad" else r[0]).process(Pass()).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError) as failure:
        job(build, parallelism=parallelism).run()
    assert "element: ('bad', 0)" in str(failure.value)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def a_key_of_any_text_has_its_state(job, parallelism, backend):
    texts = ["\ud800", "é", "\udc80x", "plain"]

    def build(env: StreamExecutionEnvironment) -> None:
        timed(env, [(text, 0) for text in texts * 3], cut=4).key_by(lambda r: r[0]).process(Last()).sink_to(
            LedgerSink("out")
        )

    config = {"state.backend.type": backend, "state.backend.cache.size": "1kb"}
    job(build, parallelism=parallelism, budget=4, config=config).run([("after complete", 2)])
    assert visible() == Counter({repr((text, n)): 1 for text in texts for n in (1, 2, 3)})


class Last(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield value[0], self.count.value()


def a_source_that_cannot_start_ends_the_job(job):
    class Missing(SplitSource):
        def create_enumerator(self, info, uid):
            raise ConfigurationError("there is no topic payments")

    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(Missing({"only": []}), WatermarkStrategy.no_watermarks(), "missing").sink_to(LedgerSink("out"))

    with pytest.raises(ConfigurationError, match="payments"):
        job(build).run()


def a_split_stays_with_its_event_time_after_a_restart(job):
    """A slow split must not be judged by the watermark of a fast one because another subtask reads it now."""
    # The third split takes the first subtask's place in the new driver's count when the first has ended.
    data = {
        "ended": [("e", 0, 1)],
        "fast": [("f", n * 60_000, 1) for n in range(10)],
        "slow": [("s", n * 1_000, 1) for n in range(10)],
    }

    def build(env: StreamExecutionEnvironment) -> None:
        from holdfast.common import Time
        from holdfast.datastream import TumblingEventTimeWindows

        windowed = stream(env, data, cut=2).key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(Time.seconds(1)))
        windowed.reduce(lambda a, b: (a[0], a[1], a[2] + b[2])).sink_to(LedgerSink("out"))

    job(build).run([("after complete", 2), ("after complete", 2), ("after complete", 1)])
    assert sorted(LEDGERS["out"].values) == sorted(everything(data))


def a_bounded_job_runs_no_epoch_after_its_last(job):
    lab = job(program(Pass(), [("a", n, "v") for n in range(4)], cut=0), budget=100)
    coordinator = lab.coordinator()
    coordinator.run()
    assert coordinator.completed is not None
    assert coordinator.completed.checkpoint_id == 2  # the first position is the take-over


def a_sweep_during_a_storage_outage_does_not_fail_the_job(job, monkeypatch, caplog):
    sweep = Retention.sweep

    def sweeping(self, *oldest_open_epoch):
        if oldest_open_epoch:  # beside a running epoch
            raise StorageError("no answer")
        return sweep(self)

    monkeypatch.setattr(machine, "_SWEEP_EVERY", 5)
    monkeypatch.setattr(Retention, "sweep", sweeping)
    job(program(Pass(), [("a", n, "v") for n in range(20)], cut=1)).run()
    assert "Orphan sweep failed, retrying later: no answer" in caplog.text
    assert "starts again" not in caplog.text


def a_driver_that_was_overtaken_stops(job):
    from holdfast.errors import Fenced

    values = [("a", n, "v") for n in range(20)]
    lab = job(program(Pass(), values), config={"state.backend.type": "hashmap"})
    first = lab.coordinator()
    complete = first._log.complete
    counted = []

    def overtaken(checkpoint: Any) -> None:
        counted.append(checkpoint)
        if len(counted) == 5:
            other = Lab(lab.build, lab.directory, budget=1, config=lab.config)
            assert not other._run_until("after complete", 3)
        complete(checkpoint)

    first._log.complete = overtaken  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        first.run()
    lab.close()
    lab.run()
    assert LEDGERS["out"].values == values


def a_driver_that_was_overtaken_stops_although_it_completes_no_epoch(job):
    """Its epochs fail: the files that it goes on from are those of its successor, who has deleted them."""
    from holdfast.errors import Fenced

    values = [("a", n, "v") for n in range(20)]
    lab = job(program(Pass(), values), config={"state.backend.type": "hashmap"})
    first = lab.coordinator()
    make = first._make_executor

    def making(job_info: Any) -> Any:
        made: Any = make(job_info)
        failed = []

        def run(order: Any) -> Any:
            assert not failed, "it was overtaken, and starts again"
            failed.append(order)
            other = Lab(lab.build, lab.directory, budget=1, config=lab.config)
            assert not other._run_until("after complete", 3)
            raise HoldfastError("no such file")

        made.run = run
        return made

    first._make_executor = making
    with pytest.raises(Fenced):
        first.run()
    lab.close()
    lab.run()
    assert LEDGERS["out"].values == values


def test_a_crash_is_not_handled(job):
    lab = job(program(Pass(), [("a", n, "v") for n in range(4)]))
    coordinator = lab.coordinator()

    def die(checkpoint: Any) -> None:
        raise Crash

    coordinator._log.complete = die  # type: ignore[method-assign]
    with pytest.raises(Crash):
        coordinator.run()


def a_checkpoint_is_shown_by_the_name_for_going_back_to_it(job):
    lab = job(program(Pass(), [("a", 1), ("a", 2)]))
    lab.run()
    newest = lab.metrics.snapshot().checkpoints[0]
    assert newest.path == (lab.directory / "checkpoints" / "job" / "log" / f"{newest.id:020d}").as_uri()


class _Watermarks(ProcessFunction):
    def process_element(self, value, ctx):
        yield value[0], value[1], ctx.timer_service().current_watermark()


@pytest.mark.parametrize("parallelism", [1, 3])
def the_event_time_continues_when_the_parallelism_without_keys_changes(job, parallelism):
    data = {name: [(name, 1_000 * n) for n in range(8)] for name in ("a", "b")}

    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(SplitSource(data), WatermarkStrategy.no_watermarks(), "source").uid("source")
        source.assign_timestamps_and_watermarks(strategy()).process(_Watermarks()).sink_to(LedgerSink("out"))

    here = job(build, parallelism=2, budget=4)
    assert not here._run_until("after complete", 2)
    before = {(name, time) for name, time, _ in LEDGERS["out"].values}
    here.parallelism = parallelism
    here.run()
    after = [(name, time, watermark) for name, time, watermark in LEDGERS["out"].values if (name, time) not in before]
    assert len(before) + len(after) == 16
    behind = min(max(time for name, time in before if name == each) for each in data) - 1
    assert all(watermark >= behind for _, _, watermark in after)
