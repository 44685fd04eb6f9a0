"""Progress of a source: when its splits are idle, and to which subtasks they go."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorCheckpoint, SourceState
from holdfast.common import Duration, WatermarkStrategy
from holdfast.connectors.base import EpochInput, SplitRange
from holdfast.connectors.collection import CollectionSource
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.runtime.plan.event_time import GeneratorState, SplitTime
from holdfast.runtime.plan.plan import SourceSpec, Vertex
from holdfast.runtime.plan.task_messages import SourceAssignment, TaskReport
from holdfast.runtime.protocol.events import PlannedInput
from holdfast.runtime.protocol.sources import SourceProgress, source_progress

IDLE_MS = 500
WITH_IDLENESS = WatermarkStrategy.for_monotonous_timestamps().with_idleness(Duration.of_millis(IDLE_MS))


class Marked(SplitRange):
    """A range of a source's own class."""


def progress(
    restored: SourceState | None = None,
    parallelism: int = 1,
    dealt: int | None = None,
    strategy: WatermarkStrategy = WITH_IDLENESS,
) -> SourceProgress:
    vertex = Vertex(0, "s", parallelism, 128, 0, ())
    return SourceProgress(vertex, SourceSpec("s", True, "s", None, strategy), restored, dealt)  # type: ignore[arg-type]


def planned(*splits: str) -> PlannedInput:
    return PlannedInput(EpochInput(tuple(SplitRange(name, 0, 1) for name in splits)), None)


def read(source: SourceProgress, answer: PlannedInput, stamps: Mapping[str, int] = {}) -> None:
    """Complete an epoch in which each split of the answer had a record; ``stamps``: their timestamps."""
    reports = []
    for task, assignment in source.assignments(answer).items():
        for part in assignment.ranges:
            assignment.splits[part.split].heard = True
            assignment.splits[part.split].max_timestamp = stamps.get(part.split, 0)
        reports.append(TaskReport(task, "attempt", splits=assignment.splits))
    source.read(reports)


def idle(source: SourceProgress, *splits: str) -> set[str]:
    """The idle splits of an epoch with input of these splits."""
    given = source.assignments(planned(*splits))
    return {name for assignment in given.values() for name, split in assignment.splits.items() if split.idle}


def a_split_is_idle_once_it_was_asked_in_vain_for_the_whole_timeout():
    source = progress()
    source.asked(planned("a", "b"), 0)
    read(source, planned("a", "b"))
    source.asked(planned("a"), 400)
    read(source, planned("a"))
    source.asked(planned("a"), 499)
    assert idle(source) == set()
    source.asked(planned("a"), 500)
    assert idle(source) == {"b"}
    source.asked(planned("b"), 600)
    read(source, planned("b"))
    assert idle(source) == set()


def a_split_that_is_held_back_is_not_idle():
    """It is too far ahead of its watermark group, and may have records."""
    source = progress()
    source.asked(planned("a", "b", "c"), 0)
    read(source, planned("a", "b", "c"))
    source.asked(planned("a")._replace(held=frozenset({"b", "unknown"})), IDLE_MS)
    assert idle(source, "a") == {"c"}


def the_watermarks_of_splits_that_are_not_idle_are_as_far_behind_as_the_strategy_says():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(30))
    source = progress(strategy=strategy.with_idleness(Duration.of_millis(IDLE_MS)))
    source.asked(planned("a", "b"), 0)
    read(source, planned("a", "b"), {"a": 700, "b": 600})
    assert source.active_watermarks() == {"a": 669, "b": 569}
    source.asked(planned("a"), IDLE_MS)
    read(source, planned("a"), {"a": 800})
    assert source.active_watermarks() == {"a": 769}


def a_subtask_goes_on_from_the_watermark_that_it_has_emitted():
    source = progress(parallelism=2)
    read(source, planned("a", "b"))
    source.read([TaskReport((0, n), "attempt", splits=splits_of(source, n), watermark=40 + n) for n in range(2)])
    assert [given.watermark for given in source.assignments(planned()).values()] == [40, 41]


def splits_of(source: SourceProgress, subtask: int) -> dict[str, SplitTime]:
    return source.assignments(planned())[(0, subtask)].splits


def test_time_in_which_nobody_asks_is_no_silence():
    source = progress()
    source.asked(planned("a", "b"), 0)
    read(source, planned("a", "b"))
    source.asked(planned("a"), 10)
    # The epoch fails and is run again after a delay, or takes long, or epochs without input follow it.
    assert idle(source) == idle(source) == set()
    read(source, planned("a"))
    source.asked(planned("b"), 60_000)
    assert idle(source, "b") == {"a"}, "it had nothing when it was asked after all that time"
    read(source, planned("b"))


def a_new_split_without_records_is_silent_from_the_first_question_on():
    source = progress()
    first = PlannedInput(EpochInput((SplitRange("a", 0, 1), SplitRange("b", 0, 0))), None)
    source.asked(first, 0)
    (assignment,) = source.assignments(first).values()
    assert set(assignment.splits) == {"a", "b"}
    assignment.splits["a"].heard = True
    source.read([TaskReport((0, 0), "attempt", splits=assignment.splits)])
    source.asked(planned("a"), IDLE_MS)
    assert idle(source, "a") == {"b"}


def the_time_before_the_first_question_of_a_start_is_no_silence():
    source = progress(SourceState(None, {"a": {"max_timestamp": 5, "owner": 0}, "b": {"max_timestamp": 9, "owner": 0}}))
    assert idle(source) == set(), "the epoch that opens the tasks"
    assert source.next_idle() is None
    source.asked(planned(), 100_000)
    assert idle(source) == set()
    assert source.next_idle() == 100_000 + IDLE_MS
    source.asked(planned(), 100_000 + IDLE_MS)
    assert idle(source) == {"a", "b"}


def a_split_without_records_holds_event_time_back_once_others_have_had_some_for_ten_seconds():
    source = progress(strategy=WatermarkStrategy.for_monotonous_timestamps())
    source.asked(planned("a", "b"), 0)
    read(source, planned("a", "b"))
    for now in (5_000, 9_999, 10_000):
        source.asked(planned("a"), now)
        read(source, planned("a"), {"a": now})
        assert source.holding() == ({"b": 10.0} if now == 10_000 else {})
    source = progress(strategy=WatermarkStrategy.for_monotonous_timestamps())
    source.asked(planned("a", "b"), 0)
    read(source, planned("a", "b"))
    source.asked(planned("a"), 9_999)
    read(source, planned("a"), {"a": 9_999})
    source.asked(planned(), 60_000)
    assert source.holding() == {}, "without input anywhere nothing waits"
    source.asked(planned("a"), 70_000)
    read(source, planned("a"), {"a": 70_000})
    assert source.holding() == {"b": 70.0}
    source.asked(planned("b"), 71_000)
    read(source, planned("b"), {"b": 71_000})
    assert source.holding() == {}


def a_split_whose_generator_is_idle_or_that_is_not_the_furthest_behind_holds_nothing_back():
    source = progress(strategy=WatermarkStrategy.for_monotonous_timestamps())
    source.asked(planned(*"abcde"), 0)
    read(source, planned(*"abcde"), {"a": 7, "b": 7, "c": 8, "d": 7, "e": 7})
    source.asked(planned("a", "d"), 90_000)
    read(source, planned("a", "d"), {"a": 9, "d": 7})
    (assignment,) = source.assignments(planned()).values()
    assignment.splits["e"].generated = GeneratorState(b"", 7, True)
    source.read([TaskReport((0, 0), "attempt", splits=assignment.splits)])
    source.asked(planned("a"), 95_000)
    read(source, planned("a"), {"a": 9})
    assert source.holding() == {"b": 95.0}, "d is as far behind, but had a record five seconds ago"


def test_a_source_with_an_idle_timeout_or_without_watermarks_waits_for_no_split():
    for strategy in (WITH_IDLENESS, WatermarkStrategy.no_watermarks()):
        source = progress(strategy=strategy)
        source.asked(planned("a", "b"), 0)
        read(source, planned("a", "b"))
        source.asked(planned("a"), 50_000)
        read(source, planned("a"), {"a": 50_000})
        assert source.holding() == {}
    assert source.next_idle() is None


def owners(source: SourceProgress) -> dict[str, int]:
    return {name: task[1] for task, given in source.assignments(planned()).items() for name in given.splits}


def test_splits_are_dealt_anew_whenever_the_parallelism_changes():
    first = progress(parallelism=1)
    read(first, planned(*"abcdefgh"))
    stored = first.state(planned())
    assert list(owners(progress(stored, parallelism=4)).values()).count(3) == 2
    up = progress(stored, parallelism=4).state(planned())
    assert sorted(owners(progress(up, parallelism=3)).values()) == [0, 0, 0, 1, 1, 1, 2, 2]


def test_new_splits_are_dealt_to_the_subtasks_in_turn():
    source = progress(parallelism=3)
    read(source, planned("a", "b"))
    read(source, planned(*"cdefg"))
    assert owners(source) == {name: n % 3 for n, name in enumerate("abcdefg")}


def test_splits_stay_with_their_subtasks_at_the_same_parallelism():
    stored = SourceState(None, {name: {"max_timestamp": 5, "owner": n, "dealt": 3} for name, n in zip("abc", (2, 0, 2))})
    assert owners(progress(stored, parallelism=3)) == {"a": 2, "b": 0, "c": 2}


def test_checkpoints_before_splits_told_their_parallelism_take_that_of_their_operator():
    stored = SourceState(None, {name: {"max_timestamp": 5, "owner": 0} for name in "abcd"})
    assert sorted(owners(progress(stored, parallelism=2, dealt=1)).values()) == [0, 0, 1, 1]
    assert sorted(owners(progress(stored, parallelism=2, dealt=2)).values()) == [0, 0, 0, 0]


def test_such_a_checkpoint_tells_the_parallelism_by_the_head_of_the_sources_chain():
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(2)
    env.from_source(CollectionSource([1]), WatermarkStrategy.no_watermarks(), "s").uid("s").map(abs).print().uid("out")
    job = env._plan("job")
    head = job.vertices[0].chain[0].uid
    position = SourceState({"next": 1}, {name: {"max_timestamp": 5, "owner": 0} for name in "abcd"})
    for parallelism, dealt in ((1, [0, 0, 1, 1]), (2, [0, 0, 0, 0])):
        operators = {head: OperatorCheckpoint("s", parallelism=parallelism), "out": OperatorCheckpoint("out", parallelism=2)}
        (source,) = source_progress(
            job, CheckpointMetadata(1, 1, "", "job", 0, sources={"s": position}, operators=operators)
        )
        assert sorted(owners(source).values()) == dealt
        assert source.enumerator == {"next": 1}
    (new,) = source_progress(job, None)
    assert (new.enumerator, new.finished, owners(new)) == (None, False, {})


def a_source_that_has_ended_in_a_checkpoint_has_ended_in_the_next_run():
    source = progress()
    read(source, planned("a"))
    for ended in (False, True):
        last = PlannedInput(EpochInput(finished=ended), "position")
        again = progress(source.state(last))
        assert (again.enumerator, again.finished) == ("position", ended)
        assert set(owners(again)) == {"a"}, "the end has no split of its own"
        source.completed(last)
        assert (source.enumerator, source.finished) == ("position", ended)


def a_new_split_begins_at_the_time_that_its_source_knows():
    source = progress()
    (assignment,) = source.assignments(PlannedInput(EpochInput((SplitRange("a", 0, 1, since=700),)), None)).values()
    assert assignment.splits["a"].max_timestamp == 700


def the_rows_of_splits_arrive_as_they_were_sent():
    parts = (
        SplitRange("a", 0, 5, 5, ("topic", 0, -1)),
        SplitRange("b", {"line": 1}, None, last=True, since=9),
        Marked("c", 0, 1),
    )
    times = {"a": SplitTime(4, True, False, GeneratorState(b"pickled", 7, True)), "b": SplitTime(heard=True)}
    sent = SourceAssignment(parts, times, 3, True)
    arrived = pickle.loads(pickle.dumps(sent, 5))
    assert arrived == sent
    assert [type(part) for part in arrived.ranges] == [SplitRange, SplitRange, Marked]
    report = TaskReport((0, 1), "attempt", splits=times, watermark=3, warnings={"a": "b"})
    assert pickle.loads(pickle.dumps(report, 5)) == report
    assert report.splits is times
