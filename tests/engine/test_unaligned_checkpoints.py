"""Unaligned checkpoints: input that a deadline leaves for later epochs changes no result, whatever happens in between."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.checkpoint.metadata import CheckpointMetadata, SubtaskState
from holdfast.checkpoint.savepoint import read_savepoint
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import CoMapFunction, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.errors import IncompatibleState
from holdfast.runtime.driver.restore_check import check_restore
from holdfast.runtime.plan import listed_states
from holdfast.runtime.plan.task_messages import EpochAssignment, TaskReport
from holdfast.runtime.task.subtask_life import SubtaskStage
from holdfast.runtime.task.task_input import ChannelInput
from holdfast.runtime.task.time_slices import TimeSlices
from holdfast.state.keys.key_groups import group_assigner

from .inprocess import LEDGERS, Crash, Lab, LedgerSink, LedgerWriter, SplitSource
from .programs import UntypedSessions, network, network_model, records, sessions, sessions_model, windows, windows_model
from .test_rescaling import moves, rescaling, run
from .test_same_results import backends, budgets, config, crashes, few, lab, parallelisms, runs, seeds, visible
from .test_savepoints import run as stopped

UNALIGNED = {"execution.checkpointing.unaligned.enabled": "true"}
deadlines = st.sampled_from([1, 5, 40])
"""The most records that a subtask processes in an epoch."""


def unaligned(backend: str, frame: str = "64", cache: str = "256mb") -> dict[str, str]:
    return {**config(backend, frame, cache), **UNALIGNED}


@few
@given(**runs, most=deadlines)
def the_windows_are_those_of_aligned_checkpoints(seed, backend, parallelism, budget, frame, crashes, most):
    data = records(seed, 300)
    options = {"parallelism": parallelism, "budget": budget, "config": unaligned(backend, frame), "seed": seed}
    with lab(windows(data, cut=budget), records_before_deadline=most, **options) as job:
        job.run(crashes)
        assert visible() == windows_model(data)


@few
@given(
    **runs,
    function=st.sampled_from([UntypedSessions, UntypedSessions.__base__]),
    keep_disk=st.booleans(),
    most=deadlines,
)
def the_state_and_timers_are_those_of_aligned_checkpoints(
    seed, backend, parallelism, budget, frame, crashes, function, keep_disk, most
):
    data = records(seed, 300, keys=20)
    options = {"parallelism": parallelism, "budget": budget, "config": unaligned(backend, frame), "keep_disk": keep_disk}
    with lab(sessions(data, cut=budget, function=function), records_before_deadline=most, seed=seed, **options) as job:
        job.run(crashes)
        assert visible() == sessions_model(data)
        counts: dict[str, list[int]] = {}
        for value in LEDGERS["out"].values:
            if value[0] == "element":
                counts.setdefault(value[1], []).append(value[2])
        assert all(numbers == sorted(numbers) for numbers in counts.values())


@few
@given(seed=seeds, backend=backends, parallelism=parallelisms, budget=budgets, crashes=crashes, most=deadlines)
@example(seed=170, backend="hashmap", parallelism=3, budget=400, crashes=[], most=40)  # keys took turns across a watermark
def test_several_shuffles_and_unions_keep_their_records(seed, backend, parallelism, budget, crashes, most):
    data, other = records(seed, 150), records(seed + 1, 100, splits=1)
    other = {name: [(f"k{int(k[1:]) + 50}", ts, v) for k, ts, v in split] for name, split in other.items()}
    options = {"parallelism": parallelism, "budget": budget, "config": unaligned(backend, "3"), "seed": seed}
    with lab(network(data, other, cut=budget), records_before_deadline=most, **options) as job:
        job.run(crashes)
        assert visible() == network_model(data, other, parallelism)


@few
@given(seed=seeds, backend=backends, crashes=crashes, most=deadlines)
def test_tasks_that_die_or_run_twice_keep_the_channel_state(seed, backend, crashes, most):
    data = records(seed, 200)
    options = {"budget": 60, "config": unaligned(backend, "8", "2kb"), "failures": 0.03, "repeats": 0.1, "seed": seed}
    with lab(sessions(data, cut=40), records_before_deadline=most, **options) as job:
        job.run(crashes)
        assert visible() == sessions_model(data)


@settings(few, max_examples=examples(3))
@given(seed=seeds, backend=backends, drivers=moves, last=st.integers(1, 8), most=deadlines, off=st.booleans())
def the_channel_state_follows_its_keys_to_another_parallelism(seed, backend, drivers, last, most, off):
    data = records(seed, 300, keys=20)
    with lab(sessions(data, cut=40), budget=40, config=unaligned(backend, "8"), records_before_deadline=most) as job:
        for parallelism, point, count in drivers:
            job.parallelism = parallelism
            if job._run_until(point, count):
                break
        else:
            job.parallelism = last
            if off:
                job.config = config(backend, "8")
            refusal = ""
            try:
                job.run()
            except IncompatibleState as error:  # with one subtask, the operator is chained: it has no channel any more
                refusal = str(error)
            if refusal:
                assert (off, last) == (True, 1)
                assert "is not the first of its task any more: stop the old program with a savepoint" in refusal
                job.parallelism = 2
                job.run()
        assert visible() == sessions_model(data)


@settings(few, max_examples=examples(3))
@given(seed=seeds, drivers=moves, last=st.integers(1, 8), most=deadlines)
def the_windows_are_complete_at_another_parallelism(seed, drivers, last, most):
    data = records(seed, 300)
    with lab(windows(data, cut=40), budget=40, config=unaligned("hashmap", "8"), records_before_deadline=most) as job:
        run(job, drivers, last)
        assert visible() == windows_model(data)


class Nth(KeyedProcessFunction):
    """Each element, a key and its number within it, with the number that the state gives it."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield *value, self.count.value()


def skewed(seed: int, size: int) -> dict[str, list[tuple[str, int]]]:
    """Numbered elements of 13 keys in two splits; one key of each split has half of the elements."""
    draw, counts = random.Random(seed), Counter[str]()
    data: dict[str, list[tuple[str, int]]] = {"a": [], "b": []}
    for _ in range(size):
        split = draw.choice("ab")
        key = split if draw.random() < 0.5 else split + str(draw.randrange(6))
        counts[key] += 1
        data[split].append((key, counts[key]))
    return data


@settings(few, max_examples=examples(6))
@given(
    seed=seeds, backend=backends, drivers=moves, last=st.integers(1, 5), most=deadlines, frame=st.sampled_from(["3", "64"])
)
@example(
    seed=3926,
    backend="hashmap",
    drivers=[
        (4, "before commit", 3),
        (8, "before complete", 4),
        (7, "after commit", 2),
        (8, "before commit", 3),
        (4, "before commit", 2),
        (7, "before commit", 3),
    ],
    last=2,
    most=5,
    frame="3",
)  # a key's records had come from two subtasks, and were joined
def the_records_of_a_key_stay_in_order_while_keys_take_turns(seed, backend, drivers, last, most, frame):
    data = skewed(seed, 300)

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(SplitSource(data, cut=40), WatermarkStrategy.no_watermarks(), "source").uid("source")
        stream.key_by(lambda value: value[0], Types.STRING()).process(Nth()).uid("nth").sink_to(LedgerSink("out")).uid(
            "sink"
        )

    with lab(build, budget=40, config=unaligned(backend, frame), records_before_deadline=most) as job:
        run(job, drivers, last)
        assert visible() == Counter(repr((key, nth, nth)) for split in data.values() for key, nth in split)


# ---- one job, checkpoint by checkpoint

HOT, OTHERS = "hot", "abcdefgh"
EACH = 60
DATA = {"hot": [HOT] * EACH, "others": [OTHERS[n % 8] for n in range(EACH)]}


class Numbered(KeyedProcessFunction):
    """Each element with its number within its key."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value, self.count.value()


def counting(env: StreamExecutionEnvironment) -> None:
    """Number the elements of a key with half of the elements, and of eight others."""
    stream = env.from_source(SplitSource(DATA, cut=15), WatermarkStrategy.no_watermarks(), "source").uid("source")
    numbered = stream.key_by(lambda key: key, Types.STRING()).process(Numbered()).uid("numbered")
    numbered.sink_to(LedgerSink("out")).uid("sink")


COUNTED = Counter([repr((HOT, n + 1)) for n in range(EACH)] + [repr((OTHERS[n % 8], n // 8 + 1)) for n in range(EACH)])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Lab]:
    LEDGERS["out"].committed.clear()
    made = Lab(counting, tmp_path, budget=30, config=unaligned("hashmap", "4"), records_before_deadline=8, early=False)
    yield made
    made.close()


def completed(job: Lab) -> list[CheckpointMetadata]:
    """Run a driver to the end of the job; returns the checkpoints that it completed."""
    coordinator = job.coordinator()
    complete, checkpoints = coordinator._log.complete, []

    def completing(checkpoint: CheckpointMetadata, *more: Any) -> None:
        complete(checkpoint, *more)
        checkpoints.append(checkpoint)

    coordinator._log.complete = completing  # type: ignore[method-assign]
    coordinator.run()
    job.close()
    return checkpoints


def states(checkpoint: CheckpointMetadata) -> list[SubtaskState]:
    return [state for state in checkpoint.operators["numbered"].subtasks if state.has_channel_state]


def the_input_behind_the_deadline_is_in_the_checkpoints_and_not_in_the_last(job):
    checkpoints = completed(job)
    assert sum(bool(states(checkpoint)) for checkpoint in checkpoints) >= 3
    assert not states(checkpoints[-1])
    assert visible() == COUNTED


def the_frames_of_an_epoch_are_written_once(job, monkeypatch):
    monkeypatch.setattr(listed_states.write_part, "__defaults__", (0,))  # any frames go to a file
    found = [
        {file.path for state in states(each) for file in state.files() if file.path.endswith(".channel")}
        for each in completed(job)
    ]
    assert any(one & two for one, two in itertools.pairwise(found)), "frames wait for more than one epoch"
    assert all(len(two - one) <= 2 for one, two in itertools.pairwise(found)), "each subtask writes those of the epoch"
    assert not any(one - two & three for one, two, three in zip(found, found[1:], found[2:])), "and never again"


def the_sources_stop_while_too_much_waits(job):
    job.config["holdfast.epoch.max-channel-state"] = "1b"
    checkpoints = completed(job)
    pairs = [
        (one.sources["source"].enumerator, two.sources["source"].enumerator)
        for one, two in itertools.pairwise(checkpoints)
        if states(one)
    ]
    assert len(pairs) >= 3
    assert all(one == two for one, two in pairs)
    assert visible() == COUNTED


def a_subtask_begins_with_its_channel_state_before_the_frames_of_the_epoch_arrive(job, monkeypatch):
    early, start_early = [], ChannelInput.start_early

    def starting(self: ChannelInput, slices: Any, tick: Any, report: TaskReport) -> None:
        before = report.records_in
        start_early(self, slices, tick, report)
        early.append(report.records_in - before)

    monkeypatch.setattr(ChannelInput, "start_early", starting)
    job.early = True
    job.run()
    assert sum(early) > 0
    assert visible() == COUNTED


def an_epoch_that_began_early_is_given_up_when_its_run_does_not_come(job):
    coordinator = job.coordinator()
    complete, given_up = coordinator._log.complete, []

    def completing(checkpoint: CheckpointMetadata, *more: Any) -> None:
        complete(checkpoint, *more)
        assert job.executor is not None
        for task, subtask in job.executor._subtasks.items():
            order = EpochAssignment(checkpoint.checkpoint_id + 1, 7, checkpoint.checkpoint_id, 0, 1, 0, 0, {})
            order = replace(order, later={task: subtask._life._token})
            if subtask.can_start_early(order):
                subtask.start_early(order, TimeSlices(60))
                subtask.give_up_early(order)
                assert subtask._life.state is SubtaskStage.RUNNING, "its run may still come"
                subtask.give_up_early(replace(order, run=8))
                given_up.append(subtask._life.state)

    coordinator._log.complete = completing  # type: ignore[method-assign]
    coordinator.run()
    assert len(given_up) >= 3
    assert set(given_up) == {SubtaskStage.CLOSED}
    assert visible() == COUNTED


SECONDS = [0.0]


class SlowForOneKey(Numbered):
    """Takes a second for each element of the hot key, by a clock of its own."""

    def process_element(self, value: str, ctx: Any) -> Iterator[Any]:
        SECONDS[0] += value == HOT
        yield from super().process_element(value, ctx)


def test_keys_beside_a_slow_key_take_turns_with_it(job, monkeypatch):
    monkeypatch.setattr(f"{__name__}.Numbered", SlowForOneKey)
    job.parallelism, job.records_before_deadline = 1, 0
    job.slices = lambda seconds: TimeSlices(5, lambda: SECONDS[0])  # five elements of the hot key
    job.config |= {"holdfast.frame.records": "64"}
    coordinator = job.coordinator()
    complete = coordinator._log.complete
    behind: list[int] = []
    slow: list[int] = []
    read, waits, hot = [0], [False], [0]

    def completing(checkpoint: CheckpointMetadata, *more: Any) -> None:
        shown = sum(value[0] != HOT for value in LEDGERS["out"].values)  # with the checkpoint before this one
        hot.append(len(LEDGERS["out"].values) - shown)
        if any(waits[-2:-1]):
            behind.append(read[-1] - shown)
            slow.append(hot[-1] - hot[-2])
        read.append(checkpoint.sources["source"].enumerator["others"])
        waits.append(bool(states(checkpoint)))
        complete(checkpoint, *more)

    coordinator._log.complete = completing  # type: ignore[method-assign]
    coordinator.run()
    assert len(behind) >= 2
    assert set(behind) == {0}, "while the hot key waits, the others of an epoch are visible with its checkpoint"
    assert max(slow) <= 6, "a deadline is overrun by one call, however quick the others are"
    assert visible() == COUNTED


class SlowWriter(LedgerWriter):
    """Takes a second for each result of the hot key, by the same clock."""

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        SECONDS[0] += sum(value[0] == HOT for value in values)
        super().write(values, timestamps)


@pytest.mark.parametrize("slow", ["function", "sink"])
def a_slow_key_does_not_hold_up_the_others(job, monkeypatch, slow):
    if slow == "function":
        monkeypatch.setattr(f"{__name__}.Numbered", SlowForOneKey)
    else:
        monkeypatch.setattr(LedgerSink, "create_writer", lambda self, context: SlowWriter())
    job.slices, job.records_before_deadline = lambda seconds: TimeSlices(seconds, lambda: SECONDS[0]), 0
    owner = {key: owned for key, owned in zip([HOT, *OTHERS], group_assigner(128, 2)([HOT, *OTHERS]))}
    free = [key for key in OTHERS if owner[key] != owner[HOT]]
    read, shown = [], []
    coordinator = job.coordinator()
    complete = coordinator._log.complete

    def completing(checkpoint: CheckpointMetadata, *more: Any) -> None:
        # The output of the checkpoint before is visible now.
        shown.append(sorted(value for value in LEDGERS["out"].values if value[0] in free))
        position = checkpoint.sources["source"].enumerator["others"]
        read.append(sorted((OTHERS[n % 8], n // 8 + 1) for n in range(position) if OTHERS[n % 8] in free))
        waits.append(bool(states(checkpoint)))
        complete(checkpoint, *more)

    waits: list[bool] = []
    coordinator._log.complete = completing  # type: ignore[method-assign]
    coordinator.run()
    assert sum(waits) >= 3
    assert shown[1:] == read[:-1]
    assert visible() == COUNTED


def without_channel_state(checkpoint: CheckpointMetadata) -> bool:
    return not any(state.has_channel_state for operator in checkpoint.operators.values() for state in operator.subtasks)


def in_savepoint(savepoint: str) -> CheckpointMetadata:
    return read_savepoint(savepoint).savepoint.checkpoint


@pytest.mark.parametrize("after", range(2, 7))
def a_savepoint_of_a_running_job_has_no_channel_state(job, after):
    assert without_channel_state(in_savepoint(stopped(job, after, stop=False)))
    assert visible() == COUNTED


@pytest.mark.parametrize(("drain", "width"), [(False, 3), (True, 2)])
def the_last_savepoint_of_a_job_has_no_channel_state(job, drain, width):
    job.savepoint = stopped(job, 4, drain=drain)
    checkpoint = in_savepoint(job.savepoint)
    assert without_channel_state(checkpoint)
    assert max(checkpoint.sources["source"].enumerator.values()) < EACH, "it has not read on to the end of the input"
    job.parallelism = width
    job.run()
    assert visible() == COUNTED


def test_a_job_rescales_with_channel_state_while_it_runs(job):
    coordinator, answers = rescaling(job, {2: 3, 6: 1, 10: 2})
    coordinator.run()
    job.close()
    assert [answer.exception() for answer in answers] == [None, None, None]
    assert visible() == COUNTED


def until_input_waits(job: Lab) -> None:
    """Run a driver that dies once a checkpoint has channel state."""
    coordinator = job.coordinator()
    complete = coordinator._log.complete

    def completing(checkpoint: CheckpointMetadata, *more: Any) -> None:
        complete(checkpoint, *more)
        if states(checkpoint):
            raise Crash

    coordinator._log.complete = completing  # type: ignore[method-assign]
    with pytest.raises(Crash):
        coordinator.run()
    job.close()


def the_operator_that_has_channel_state_must_stay_the_first_of_its_task(job):
    until_input_waits(job)

    def without_the_shuffle(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(SplitSource(DATA), WatermarkStrategy.no_watermarks(), "source").uid("source")
        stream.map(lambda key: key).uid("numbered").sink_to(LedgerSink("out")).uid("sink")

    job.build = without_the_shuffle
    with pytest.raises(IncompatibleState, match=r"checkpoint \d+ of .* 'numbered', its keyed state"):
        job.run()
    job.config["execution.state-recovery.ignore-unclaimed-state"] = "true"
    with pytest.raises(IncompatibleState, match=r"channel state of operator .* not the first of its task"):
        job.run()


def the_inputs_of_an_operator_with_channel_state_must_stay(job):
    until_input_waits(job)

    def with_two_inputs(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(SplitSource(DATA), WatermarkStrategy.no_watermarks(), "source").uid("source")
        keyed = stream.key_by(lambda key: key, Types.STRING())
        keyed.connect(keyed).map(Both()).uid("numbered").sink_to(LedgerSink("out")).uid("sink")

    job.build = with_two_inputs
    job.config["execution.state-recovery.ignore-unclaimed-state"] = "true"
    job.config["execution.checkpointing.dir"] = str(job.directory / "checkpoints")
    (problem,) = check_restore(job.plan()).problems
    with pytest.raises(IncompatibleState, match=r"has channel state of .* from inputs") as refused:
        job.run()
    assert str(refused.value) == problem


class Both(CoMapFunction):
    def map1(self, value: str) -> str:
        return value

    def map2(self, value: str) -> str:
        return value
