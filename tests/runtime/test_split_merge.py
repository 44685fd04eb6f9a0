"""The order in which the splits of a source are read, and the watermark over them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import WatermarkStrategy
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.watermark_generator import WatermarkGenerator
from holdfast.connectors.base import Batch, SplitRange
from holdfast.errors import UserCodeError
from holdfast.runtime.plan.event_time import CombinedTime, Deadline, SplitTime, combined
from holdfast.runtime.plan.task_messages import SourceAssignment
from holdfast.runtime.records.user_code import OperatorName
from holdfast.runtime.task import split_merge
from holdfast.runtime.task.split_merge import SplitMerge


class Reader:
    """Reads each record of a split as a batch of its own."""

    def __init__(self, records: dict[str, list[Any]]) -> None:
        self._records = records

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        for record in self._records[part.split]:
            yield Batch([record], [record[1]])


def merge(
    strategy: Any,
    records: dict[str, list[Any]],
    splits: dict[str, SplitTime],
    finished: bool = False,
    ended: str = "",
    deadlines: Sequence[Deadline] = (),
    interval: int = 0,
) -> SplitMerge:
    """``ended``: a split that ends with its records. ``interval``: that of periodic watermarks."""
    ranges = tuple(SplitRange(name, 0, len(each), last=name == ended) for name, each in records.items())
    assignment = SourceAssignment(ranges, splits, MIN_TIMESTAMP, finished)
    owner = OperatorName("source", "source")
    return SplitMerge(Reader(records), assignment, strategy, deadlines, 0, 100, owner, interval)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("given", [[("a", 9), ("a", 12)], []], ids=["with records", "without"])
def a_split_that_has_ended_holds_the_watermark_back_no_longer(given: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(split_merge, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    splits = {"a": SplitTime(5), "b": SplitTime(50)}
    for ended, left, watermark in (("", {"a", "b"}, 11 if given else 4), ("a", {"b"}, 49)):
        merged = merge(strategy, {"a": given}, splits, ended=ended)
        assert merged.read_seconds == 0
        assert [batch.values[0] for batch, *_ in merged.batches()] == given
        assert (set(merged.splits), merged.watermark) == (left, watermark)
        assert merged.read_seconds == (3 if given else 0), "one tick for each batch, and one for the end"


@pytest.mark.parametrize("generator", [None, Told])
def a_batch_tells_which_of_its_records_are_late_by_their_own_split(generator: Any):
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if generator is not None:
        strategy = WatermarkStrategy.for_generator(generator)
    records: dict[str, list[Any]] = {"a": [("a", 10, 9), ("a", 3, 9), ("a", 12, 11)], "b": [("b", 3, 2), ("b", 4, 3)]}
    merged = merge(strategy, records, {}, deadlines=[lambda stamp: stamp])
    late = {batch.values[0][:2]: late for batch, _, late, _ in merged.batches()}
    assert late == {("a", 10): [], ("a", 3): [(0, 1, 9)], ("a", 12): [], ("b", 3): [], ("b", 4): []}


class Periodic(WatermarkGenerator):
    """Emits the highest timestamp with each call, and at its end 100 more."""

    def __init__(self) -> None:
        self.highest = 0

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        self.highest = max(self.highest, event_timestamp)

    def on_periodic_emit(self, output: Any) -> None:
        output.emit_watermark(self.highest)
        self.highest += 100


def a_periodic_watermark_is_asked_for_behind_each_batch_and_at_the_end_of_the_epoch():
    for interval, during, end in ((200, 10, 110), (0, MIN_TIMESTAMP, MIN_TIMESTAMP)):
        merged = merge(WatermarkStrategy.for_generator(Periodic), {"a": [("a", 10)]}, {}, interval=interval)
        assert [watermark for *_, watermark in merged.batches()] == [during]
        assert merged.watermark == end
        stored = merged.splits["a"].generated
        assert stored is not None
        assert stored.watermark == end
        assert merged.next_processing_time == (1000 if interval else None)


def a_record_on_which_the_timestamp_assigner_fails_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch):
    def read(self: Reader, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        yield Batch([4, 2, 0, 1], None if part.split == "b" else [40, 20, 0, 10], locate="line {}".format)

    monkeypatch.setattr(Reader, "read", read)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    (batch,) = merge(strategy.with_timestamp_assigner(lambda value, stamp: stamp + value), {"a": [1]}, {}).batches()
    assert batch[1] == [44, 22, 0, 11]
    (batch,) = merge(strategy.with_timestamp_assigner(lambda value, stamp: (value, stamp)[0]), {"b": [1]}, {}).batches()
    assert batch[1] == [4, 2, 0, 1], "a source without timestamps"
    failing = merge(strategy.with_timestamp_assigner(lambda value, stamp: 100 // value), {"a": [1]}, {})
    with pytest.raises(UserCodeError, match=r"(?s)ZeroDivisionError.*record: line 2"):
        list(failing.batches())


class Silent(Told):
    """Marks its split as idle after each record."""

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        output.emit_watermark(event_timestamp)
        output.mark_idle()


def a_split_that_its_generator_marks_as_idle_holds_nothing_back():
    records: dict[str, list[Any]] = {"a": [("a", 5), ("a", 9)]}
    for generator, idle, watermark in ((Silent, True, 9), (Told, False, 3)):
        given = records if generator is Silent else {"a": [("a", 5, 5)], "b": [("b", 3, 3)]}
        merged = merge(WatermarkStrategy.for_generator(generator), given, {})
        assert [batch.values[0][0] for batch, *_ in merged.batches()] == (["a", "a"] if idle else ["a", "b"])
        assert (merged.idle, merged.watermark) == (idle, watermark)


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


def the_records_of_a_source_without_timestamps_come_to_the_generator_at_the_least_one(monkeypatch: pytest.MonkeyPatch):
    def read(self: Reader, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        yield Batch([("a", 0, 5), ("a", 0, 7)], None)

    seen: list[int] = []

    class Seeing(Told):
        def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
            seen.append(event_timestamp)
            output.emit_watermark(event[2])

    monkeypatch.setattr(Reader, "read", read)
    (batch,) = merge(WatermarkStrategy.for_generator(Seeing), {"a": [1]}, {}).batches()
    assert (batch[1], batch[3]) == (None, 7)
    assert seen == [MIN_TIMESTAMP] * 2
