"""Samples of the records on an edge of a running job, and late records in its figures."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from engine.inprocess import Lab, LedgerSink
from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.protocol.statistics import edge_between, plan_shape
from holdfast.runtime.records.samples import EdgeSample, SampleRequests


class Unshowable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


class Report:
    def __init__(self, task: tuple[int, int], samples: dict[int, EdgeSample]) -> None:
        self.task = task
        self.samples = samples


def taken(values: list[Any], keys: list[Any] | None = None) -> EdgeSample:
    sample = EdgeSample()
    sample.take(values, None, keys)
    return sample


def a_sample_is_small_however_much_passes() -> None:
    sample = EdgeSample()
    for start in range(0, 100_000, 1000):
        values = [f"{n} {'x' * 10_000}" for n in range(start, start + 10)] * 100
        sample.take(values, list(range(1000)), [n % 400 for n in range(1000)])
    packed = sample.packed()
    assert (packed.passed, packed.counted) == (100_000, 10_000)
    assert len(packed.records) == 10
    assert all(len(record.value) <= 300 for record in packed.records)
    assert len(packed.keys) == 10


def a_value_that_cannot_be_shown_does_not_fail_the_job() -> None:
    (record,) = taken([Unshowable()], [Unshowable()]).records
    assert record.value == "<Unshowable, whose repr failed: ZeroDivisionError>" == record.key


def test_the_subtasks_samples_become_one_with_the_most_frequent_keys_first() -> None:
    whole = EdgeSample.merged([taken([1, 2], ["big", "a"]), taken([3, 4], ["big", "b"])])
    assert [record.value for record in whole.records] == ["1", "3", "2", "4"]
    assert whole.keys.most_common(1) == [("'big'", 2)]


def a_request_waits_for_an_epoch_in_which_records_pass() -> None:
    requests = SampleRequests()
    first, same, other = requests.add((1, 2)), requests.add((1, 2)), requests.add((2, 3))
    assert requests.wanted == {(1, 2), (2, 3)}
    requests.take([Report((1, 0), {2: EdgeSample()}), Report((1, 1), {2: EdgeSample()})])
    assert not first.done()
    requests.take([Report((1, 0), {2: taken([7])}), Report((1, 1), {2: EdgeSample()})])
    assert first.result(0).passed == same.result(0).passed == 1
    assert requests.wanted == {(2, 3)}
    requests.end()
    with pytest.raises(HoldfastError, match="has ended before a record passed"):
        other.result(0)
    with pytest.raises(HoldfastError, match="has ended"):
        requests.add((1, 2))


def test_requests_of_many_threads_are_all_answered() -> None:
    requests = SampleRequests()
    answers = []

    def ask() -> None:
        for _ in range(200):
            answers.append(requests.add((1, 2)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        requests.take([Report((1, 0), {2: taken([1])})])
    requests.take([Report((1, 0), {2: taken([1])})])
    assert len(answers) == 800
    assert all(answer.result(0).passed == 1 for answer in answers)


def test_a_running_job_gives_a_sample_of_an_edge_and_its_late_records(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        late = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda each, _: each[1])
        words = env.from_collection([("a", 60_000), ("b", 61_000), ("a", 2_000)])
        keyed = words.assign_timestamps_and_watermarks(late).key_by(lambda each: each[0], Types.STRING())
        windows = keyed.window(TumblingEventTimeWindows.of(Time.seconds(10)))
        counted = windows.reduce(lambda one, other: one).start_new_chain()
        counted.sink_to(LedgerSink("samples"))

    lab = Lab(build, tmp_path, parallelism=1, budget=1, ledgers=("samples",))
    coordinator = lab.coordinator()
    source, window = lab.plan().vertices
    shown = plan_shape(lab.plan())["nodes"]
    edge = edge_between(lab.plan(), shown[0]["id"], shown[1]["id"])
    assert edge == (source.id, window.id)
    with pytest.raises(ConfigurationError, match="no edge from vertex"):
        edge_between(lab.plan(), shown[1]["id"], shown[0]["id"])
    wanted = coordinator.samples.add(edge)
    coordinator.run()
    lab.close()
    sample = wanted.result(0)
    assert sample.records[0] == (60_000, "'a'", "('a', 60000)")
    assert sample.keys["'a'"] >= 1
    assert lab.metrics is not None
    (late,) = lab.metrics.snapshot().late
    assert (late.timestamp, late.value) == (2_000, "('a', 2000)")
    assert late.watermark >= 60_999
