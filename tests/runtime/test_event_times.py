"""The event time of each key group goes on, whatever the parallelism was and is; of other operators, the least."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.metadata import OperatorCheckpoint
from holdfast.common import WatermarkStrategy
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.task.event_times import event_times
from holdfast.runtime.time.clock import Clock, EventTime
from holdfast.state.keys.key_groups import key_group, key_group_range
from holdfast.state_api.regrouping import of_other_groups

MAX = 16
times = st.integers(-5, 5)


def plan(parallelism: int, keyed: int) -> JobPlan:
    """A source, a map, a generator of watermarks, a map, and a keyed operator with a map behind it."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(parallelism).set_max_parallelism(MAX)
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)
    stream = env.from_collection([1]).map(lambda v: v).uid("map")
    timed = stream.assign_timestamps_and_watermarks(strategy).uid("times").map(lambda v: v).uid("timed")
    reduced = timed.key_by(lambda v: v).reduce(max).uid("keyed").set_parallelism(keyed)
    reduced.map(lambda v: v).uid("behind").set_parallelism(keyed).print().uid("sink").set_parallelism(keyed)
    return env._plan("job")


def of_key_groups(found: dict[int, EventTime], parallelism: int) -> dict[int, int]:
    """The event time of each key group, in the subtask that has it."""
    by_group = {}
    for n, time in found.items():
        groups = key_group_range(MAX, parallelism, n)
        by_group.update(dict.fromkeys(range(groups.first, groups.last + 1), time.watermark))
        for first, last, watermark in time.ahead:
            assert groups.first <= first <= last <= groups.last
            assert watermark > time.watermark
            by_group.update(dict.fromkeys(range(first, last + 1), watermark))
    return by_group


def restored(operators: dict[str, OperatorCheckpoint], uid: str, parallelism: int) -> dict[int, EventTime]:
    job = plan(parallelism, parallelism)
    (vertex,) = [v for v in job.vertices if any(chained.uid == uid for chained in v.chain)]
    return {n: event_times(job, operators, vertex, n)[uid] for n in range(vertex.parallelism)}


@given(st.lists(times, min_size=1, max_size=5), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def the_event_time_of_each_key_group_goes_on(watermarks, parallelisms):
    before: dict[int, int] = {}
    for n, watermark in enumerate(watermarks):
        groups = key_group_range(MAX, len(watermarks), n)
        before.update(dict.fromkeys(range(groups.first, groups.last + 1), watermark))
    operator = OperatorCheckpoint("op", max_parallelism=MAX, parallelism=len(watermarks), watermarks=watermarks)
    for parallelism in parallelisms:
        found = restored({"keyed": operator}, "keyed", parallelism)
        assert of_key_groups(found, parallelism) == before
        operator = replace_times(operator, list(found.values()))


def replace_times(operator: OperatorCheckpoint, found: list[EventTime]) -> OperatorCheckpoint:
    ahead = [each for time in found for each in time.ahead]
    watermarks = [time.watermark for time in found]
    return OperatorCheckpoint("op", max_parallelism=MAX, parallelism=len(found), watermarks=watermarks, ahead=ahead)


@given(st.lists(times, max_size=4), st.integers(1, 4))
def the_event_time_of_an_operator_without_keys_goes_on_from_the_subtask_that_is_behind(watermarks, parallelism):
    operator = OperatorCheckpoint("op", parallelism=len(watermarks), watermarks=watermarks)
    least = min(watermarks, default=MIN_TIMESTAMP)
    for n, time in restored({"map": operator}, "map", parallelism).items():
        assert time == EventTime(watermarks[n] if len(watermarks) == parallelism else least)


@pytest.mark.parametrize("parallelism", [1, 2])
def an_older_checkpoint_has_the_event_time_of_an_operator_in_the_head_of_its_chain_or_in_the_generator(parallelism):
    """At parallelism 1 all of it was one chain, which had one clock up to the generator."""
    job = plan(parallelism, parallelism)
    head = job.vertices[0].chain[0].uid
    old = {
        head: OperatorCheckpoint("head", watermarks=[3]),
        "times": OperatorCheckpoint("times", generators=[{"max_timestamp": 70, "emitted": 69}]),
        "keyed": OperatorCheckpoint("keyed", max_parallelism=MAX),
    }
    for uid, time in {"map": 3, "times": 3, "timed": 69, "keyed": 69, "behind": 69}.items():
        assert set(restored(old, uid, parallelism).values()) == {EventTime(time)}, uid


def an_element_is_processed_at_the_event_time_of_its_key_and_a_window_fires_for_keys_for_which_it_has_not():
    clock = Clock()
    ahead = key_group("ahead", MAX)
    others = [key for key in "abcdef" if key_group(key, MAX) != ahead]
    clock.restore(EventTime(50, ((ahead, ahead, 100),)), MAX)
    seen = []
    batch = RecordBatch([1, 2, 3], [60, 61, 62], [others[0], "ahead", others[1]])
    clock.process_by_key(lambda part: seen.append((clock.watermark, part.values)), batch)
    assert sorted(seen) == [(50, [1, 3]), (100, [2])]
    assert clock.watermark == 50
    pairs = [("ahead", 1), (others[0], 2)]
    fired = []
    for watermark in (99, 100, 101):
        clock.advance(watermark, lambda time: fired.append([list(clock.unfired(pairs, each)) for each in (99, 101)]))
    assert fired == [[pairs[1:], pairs]] * 2 + [[pairs, pairs]]
    assert clock.event_time == EventTime(101)


@given(times, st.integers(1, 5), st.integers(1, 5))
def the_event_time_of_windows_goes_on_with_another_number_of_key_groups(watermark: int, before: int, after: int):
    windows = OperatorCheckpoint(
        "reduce", max_parallelism=7, parallelism=before, watermarks=[watermark] * before, definition={"form": "panes"}
    )
    other = of_other_groups("keyed", windows, MAX)
    assert other.max_parallelism == MAX
    assert set(of_key_groups(restored({"keyed": other}, "keyed", after), after).values()) == {watermark}


@pytest.mark.parametrize(("watermarks", "ahead"), [([5, 9], []), ([5, 5], [(0, 2, 9)])])
def the_windows_whose_key_groups_have_fired_up_to_different_times_keep_their_number(watermarks: Any, ahead: Any):
    windows = OperatorCheckpoint("reduce", parallelism=2, watermarks=watermarks, ahead=ahead, definition={"form": "panes"})
    with pytest.raises(ConfigurationError, match=r"'keyed' cannot change: .* from 5 to 9 ms, .* twice"):
        of_other_groups("keyed", windows, MAX)
    assert of_other_groups("keyed", windows, windows.max_parallelism) is windows
    timers = msgspec.structs.replace(windows, definition=None)
    assert of_other_groups("keyed", timers, MAX).watermarks == [5, 5]
