"""Watermark alignment: no source of a group runs ahead of the others, and the results stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, Time, WatermarkStrategy
from holdfast.connectors.base import EpochInput, JobInfo
from holdfast.datastream import StreamExecutionEnvironment, TumblingEventTimeWindows
from holdfast.errors import ConfigurationError

from .inprocess import LEDGERS, Lab, LedgerSink, SplitEnumerator, SplitSource
from .test_same_results import few, lab
from .test_time import crash_lists

DRIFT = 300
PLANS: list[tuple[str, dict[str, int]]] = []
"""For each plan of an epoch: the source, and the position of each split before it."""


@dataclass(frozen=True)
class RecordedSource(SplitSource):
    """A source that records its plans. It pauses single splits, or leaves that to the engine."""

    name: str = ""
    pauses: bool = True

    def create_enumerator(self, job: JobInfo, uid: str) -> SplitEnumerator:
        return (PausingSplits if self.pauses else RecordedEnumerator)(self, job.generation)


class RecordedEnumerator(SplitEnumerator):
    def __init__(self, source: RecordedSource, generation: int) -> None:
        super().__init__(source, generation)
        self._name = source.name
        self._paused: set[str] = set()

    def plan(self, max_records: int) -> EpochInput:
        before = dict(self._next)
        planned = super().plan(max_records)
        PLANS.append((self._name, {s: before[s] for s in self._next if self._next[s] > before[s] and s not in self._paused}))
        return planned


class PausingSplits(RecordedEnumerator):
    def pause(self, splits: Collection[str]) -> None:
        self._paused = set(splits)

    def plan(self, max_records: int) -> EpochInput:
        before = dict(self._next)
        planned = super().plan(max_records)
        for name in self._paused:
            self._next[name] = before[name]
        ranges = tuple(part for part in planned.ranges if part.split not in self._paused)
        left = sum(size - self._next[name] for name, size in self._sizes.items())
        return EpochInput(ranges, left, finished=left == 0)


def aligned(group: str = "g") -> WatermarkStrategy:
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record, _: record[1])
    return times.with_watermark_alignment(group, Duration.of_millis(DRIFT)) if group else times


def sums_of_two(sources: list[RecordedSource], strategy: WatermarkStrategy) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        PLANS.clear()
        first, *others = (env.from_source(source, strategy, source.name) for source in sources)
        windows = first.union(*others).key_by(lambda record: record[0])
        sums = windows.window(TumblingEventTimeWindows.of(Time.milliseconds(100))).reduce(
            lambda a, b: (a[0], max(a[1], b[1]), a[2] + b[2])
        )
        sums.sink_to(LedgerSink("out"))

    return build


def sparse_and_dense(pauses: bool) -> list[RecordedSource]:
    return [
        RecordedSource({"a": [("k", 100 * n, 1) for n in range(60)]}, name="sparse", pauses=pauses),
        RecordedSource({"b": [("k", 10 * n, 1) for n in range(600)]}, name="dense", pauses=pauses),
    ]


@pytest.mark.parametrize("pauses", [True, False])
def a_source_ahead_of_its_group_waits_until_the_others_have_caught_up(tmp_path, pauses):
    LEDGERS["out"].committed.clear()
    Lab(sums_of_two(sparse_and_dense(pauses), aligned()), tmp_path, parallelism=1, budget=10).run()
    at = {"sparse": 0, "dense": 0}
    ahead = []
    for name, begun in PLANS:
        for position in begun.values():
            at[name] = position * (100 if name == "sparse" else 10)
            if name == "sparse":
                ahead.append(at["sparse"] - at["dense"])
    assert len(ahead) == 6, "each epoch has 10 records of the sparse source, or none"
    assert max(ahead[1:]) <= DRIFT + 2 * 100, "it read on though it was further ahead than the drift"


def test_without_alignment_the_sparse_source_runs_ahead(tmp_path):
    LEDGERS["out"].committed.clear()
    Lab(sums_of_two(sparse_and_dense(True), aligned("")), tmp_path, parallelism=1, budget=10).run()
    assert [name for name, begun in PLANS if begun][:12] == ["sparse", "dense"] * 6


@settings(few, max_examples=40)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([1, 20]), st.lists(st.integers(0, 20), min_size=1, max_size=25)), min_size=2, max_size=4
    ),
    pauses=st.booleans(),
    parallelism=st.integers(1, 2),
    budget=st.sampled_from([2, 5, 1000]),
    crashes=crash_lists,
)
def test_alignment_changes_no_result(steps, pauses, parallelism, budget, crashes):
    expected: Counter[Any] = Counter()
    splits = []
    for position, (scale, each) in enumerate(steps):
        times = [scale * sum(each[: n + 1]) for n in range(len(each))]
        splits.append([(f"k{position}", time, 1) for time in times])
        expected.update((f"k{position}", time // 100) for time in times)
    sources = [
        RecordedSource({"s": splits[0]}, name="first", pauses=pauses),
        RecordedSource({f"t{n}": each for n, each in enumerate(splits[1:])}, name="second", pauses=pauses),
    ]
    with lab(sums_of_two(sources, aligned()), parallelism=parallelism, budget=budget) as job:
        job.run(crashes)
        found = {(key, time // 100): total for key, time, total in LEDGERS["out"].values}
        assert found == dict(expected)


def test_alignment_is_for_sources_with_watermarks():
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="cannot hold back a stream"):
        env.from_collection([1]).assign_timestamps_and_watermarks(aligned())
    with pytest.raises(ValueError, match="without watermarks"):
        WatermarkStrategy.no_watermarks().with_watermark_alignment("g", Duration.of_seconds(1))
