"""The order in which the splits of a source are read, and the watermark over them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import WatermarkStrategy
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.watermark_generator import WatermarkGenerator
from holdfast.connectors.base import Batch, SplitRange
from holdfast.runtime.plan.event_time import CombinedTime, SplitTime, combined
from holdfast.runtime.plan.task_messages import SourceAssignment
from holdfast.runtime.task.split_merge import SplitMerge


class Reader:
    """Reads each record of a split as a batch of its own."""

    def __init__(self, records: dict[str, list[Any]]) -> None:
        self._records = records

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        for record in self._records[part.split]:
            yield Batch([record], [record[1]])


def merge(strategy: Any, records: dict[str, list[Any]], splits: dict[str, SplitTime], finished: bool = False) -> SplitMerge:
    ranges = tuple(SplitRange(name, 0, len(each)) for name, each in records.items())
    assignment = SourceAssignment(ranges, splits, MIN_TIMESTAMP, finished)
    return SplitMerge(Reader(records), assignment, strategy, [], 0, 100, ("source", "source"))  # type: ignore[arg-type]


class Told(WatermarkGenerator):
    """Emits the watermark that is in the record."""

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        output.emit_watermark(event[2])

    def on_periodic_emit(self, output: Any) -> None:
        pass


def the_split_with_the_lowest_watermark_is_read_first_whatever_its_timestamps():
    records = {"a": [("a", 1, 50), ("a", 2, 60)], "b": [("b", 900, 10), ("b", 901, 20), ("b", 902, 55)]}
    strategy = WatermarkStrategy.for_generator(Told)
    read = [batch.values[0] for batch, *_ in merge(strategy, records, {}).batches()]
    assert read == [("a", 1, 50), ("b", 900, 10), ("b", 901, 20), ("b", 902, 55), ("a", 2, 60)]


def the_records_behind_an_empty_batch_are_read_and_a_split_with_records_is_heard(monkeypatch: pytest.MonkeyPatch):
    def read(self: Reader, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        for record in self._records[part.split]:
            yield Batch([], [])
            yield Batch([record], [record[1]])
        yield Batch([], [])

    monkeypatch.setattr(Reader, "read", read)
    records: dict[str, list[Any]] = {"a": [("a", 1), ("a", 3)], "b": [("b", 2)], "c": []}
    merged = merge(WatermarkStrategy.for_monotonous_timestamps(), records, {"d": SplitTime(7)})
    assert [batch.values for batch, *_ in merged.batches()] == [[("a", 1)], [("b", 2)], [("a", 3)]]
    assert {name: split.heard for name, split in merged.splits.items()} == {"a": True, "b": True, "c": False, "d": False}


def a_split_that_is_idle_does_not_hold_the_watermark_back_and_is_active_again_with_its_first_record():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    splits = {"a": SplitTime(5), "b": SplitTime(2, idle=True), "c": SplitTime(3, idle=True)}
    merged = merge(strategy, {"a": [("a", 8)], "b": [("b", 6)]}, splits)
    assert [(batch.values[0][0], watermark) for batch, *_, watermark in merged.batches()] == [("b", 4), ("a", 5)]
    assert merged.watermark == 5
    assert not merged.idle


def a_source_all_of_whose_splits_are_idle_is_idle_and_as_far_as_the_furthest():
    splits = {"a": SplitTime(5, idle=True), "b": SplitTime(9, idle=True)}
    merged = merge(WatermarkStrategy.for_monotonous_timestamps(), {}, splits)
    assert list(merged.batches()) == []
    assert (merged.idle, merged.watermark) == (True, 8)


def a_source_that_has_ended_is_at_the_end_of_time_and_not_idle():
    merged = merge(WatermarkStrategy.for_monotonous_timestamps(), {}, {"a": SplitTime(5, idle=True)}, finished=True)
    assert list(merged.batches()) == []
    assert (merged.idle, merged.watermark) == (False, MAX_TIMESTAMP)


class Silent(Told):
    """Marks its split as idle after each record."""

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        output.emit_watermark(event_timestamp)
        output.mark_idle()


def calls_of(strategy: Any, splits: int, last: bool) -> int:
    """The calls and resumptions of functions, also those of C, while three records of each of the splits are read."""
    records = {str(n): [(str(n), splits * turn + n, splits * turn + n) for turn in range(3)] for n in range(splits)}
    ranges = tuple(SplitRange(name, 0, len(each), last=last) for name, each in records.items())
    assignment = SourceAssignment(ranges, {}, MIN_TIMESTAMP, False)
    merged = SplitMerge(Reader(records), assignment, strategy, [], 0, 100, ("source", "source"))  # type: ignore[arg-type]
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        read = sum(len(batch.values) for batch, *_ in merged.batches())
    finally:
        sys.setprofile(before)
    assert read == 3 * splits
    return calls


@pytest.mark.parametrize("last", [False, True], ids=["partitions", "files"])
@pytest.mark.parametrize("generator", [None, Told, Silent])
def the_work_for_many_splits_grows_with_their_number(generator: Any, last: bool) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if generator is not None:
        strategy = WatermarkStrategy.for_generator(generator)
    once, twice = (calls_of(strategy, number, last) for number in (100, 200))
    assert twice <= 2.3 * once


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.tuples(st.integers(0, 5), st.booleans())))))
def test_the_combined_time_of_splits_is_kept_while_they_move_fall_silent_and_end(changes: list[tuple[str, Any]]) -> None:
    kept = CombinedTime()
    splits = dict.fromkeys("abc", (0, False))
    for name in splits:
        kept.put(name, 0, False)
    for name, change in changes:
        if change is None:
            splits.pop(name, None)
            kept.remove(name)
        elif name in splits:
            ahead, idle = change
            splits[name] = splits[name][0] + ahead, idle
            kept.put(name, *splits[name])
        assert kept.combined() == combined(splits.values())
