"""Drivers: how they start, end and are overtaken, and what they leave to each other."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoint.retention import Retention
from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import (
    ProcessFunction,
    StreamExecutionEnvironment,
)
from holdfast.errors import ConfigurationError, HoldfastError, StorageError
from holdfast.runtime.protocol import machine

from .inprocess import LEDGERS, Crash, Lab, LedgerSink, SplitSource
from .programs import everything, stream
from .small_programs import Pass, program, strategy


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

    def making(job_info: Any, plan: Any) -> Any:
        made: Any = make(job_info, plan)
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
