"""Unaligned checkpoints: how long subtasks process an epoch's input, and how much the sources read meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoint.metadata import CHANNEL_STATE, CheckpointMetadata, ListPart, OperatorCheckpoint, SubtaskState
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.runtime.plan.plan import JobPlan, Vertex
from holdfast.runtime.plan.task_messages import Deadline, TaskReport
from holdfast.runtime.protocol.alarm import Alarm
from holdfast.runtime.protocol.events import Instant
from holdfast.runtime.protocol.unaligned import ALIGNMENT_SECONDS, UnalignedCheckpoints, can_be_cut
from holdfast.runtime.records.frames import Frame
from holdfast.runtime.task.time_slices import TimeSlices

ON = {"execution.checkpointing.unaligned.enabled": "true", "holdfast.epoch.max-channel-state": "1kb"}


def plan(shape: Any = lambda stream: stream.key_by(lambda v: v).reduce(max), **config: str) -> JobPlan:
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(3)
    for key, value in config.items():
        env._configuration.set_string(key, value)
    shape(env.from_collection([1]).map(lambda v: v)).print()
    return env._plan("job")


def last(job: JobPlan) -> Vertex:
    return max(job.vertices, key=lambda vertex: vertex.level)


def reports(job: JobPlan, *seconds: float, waits: int = 0) -> list[TaskReport]:
    """Of the keyed subtasks; the last one has so many bytes of channel state."""
    made = [TaskReport((last(job).id, n), "a", input_seconds=spent) for n, spent in enumerate(seconds)]
    made[-1].input_waits, made[-1].channel_state = bool(waits), waits
    return made


def deadline(job: JobPlan, decided: UnalignedCheckpoints) -> float:
    return decided.deadlines(job, aligned=False)[last(job).id].seconds


def the_deadline_is_that_of_the_other_subtasks_and_a_third_of_the_rest():
    job, decided = plan(**ON), UnalignedCheckpoints()
    assert deadline(job, decided) == 2.0, "nothing is known: the target duration"
    for _ in range(50):
        decided.completed(reports(job, 0.10, 0.12, 0.50), 0.8)
    assert deadline(job, decided) == pytest.approx(0.12 + 0.3 / 3, rel=1e-3)


def a_subtask_that_is_behind_makes_each_epoch_a_tenth_longer_at_most():
    job, decided = plan(**ON), UnalignedCheckpoints()
    decided.completed(reports(job, 0.10, 0.12, 0.15, waits=100), 0.45)
    behind = decided.deadlines(job, aligned=False)[last(job).id].behind
    assert behind == pytest.approx(0.12 + 0.3 / 10)


def the_channel_state_waits_a_moment_for_new_input_and_not_for_ever():
    job, decided = plan(**ON), UnalignedCheckpoints()
    decided.completed(reports(job, 0.1, 0.1, 0.1), 1)
    assert decided.next_epoch(7.0) is None
    decided.completed(reports(job, 0.1, 0.1, 0.1, waits=100), 1)
    at = decided.next_epoch(7.0)
    assert at == pytest.approx(7.05)
    alarm = Alarm()
    alarm.set([None], at)
    assert not alarm.due(0, Instant(0, 7.0))
    assert alarm.sleep([], 0, Instant(0, 7.0), beside_a_commit=False) == pytest.approx(0.05)
    assert alarm.due(-3_600_000, Instant(0, 7.06)), "even if the wall clock has been set back"


def a_slow_first_epoch_is_soon_forgotten():
    job, decided = plan(**ON), UnalignedCheckpoints()
    decided.completed(reports(job, 0.5, 0.5, 0.5), 6)
    for _ in range(4):
        decided.completed(reports(job, 0.01, 0.01, 0.01), 0.16)
    assert deadline(job, decided) < 0.1


def the_deadline_doubles_while_it_cuts_most_subtasks_as_that_is_no_skew():
    job, decided = plan(**ON), UnalignedCheckpoints()
    decided.completed(reports(job, 0.01, 0.01, 0.01), 0.16)
    before = deadline(job, decided)
    for _ in range(6):
        spent = deadline(job, decided)
        cut = reports(job, spent, spent, spent, waits=100)
        for report in cut:
            report.input_waits = True
        decided.completed(cut, spent + 0.15)
    assert before < 0.1
    assert deadline(job, decided) == 2.0
    decided.completed(reports(job, 0.01, 0.01, 0.5, waits=100), 0.65)
    assert deadline(job, decided) < 2.0


def the_aligned_checkpoint_timeout_is_the_least_deadline_and_the_target_the_largest_without_it():
    job = plan(**ON, **{"execution.checkpointing.aligned-checkpoint-timeout": "5 s"})
    assert deadline(job, UnalignedCheckpoints()) == 5.0
    job, decided = plan(**ON), UnalignedCheckpoints()
    decided.completed(reports(job, 9, 9, 9), 30)
    assert deadline(job, decided) == 2.0


@pytest.mark.parametrize(
    ("config", "aligned"),
    [({}, False), (ON, True), ({**ON, "execution.runtime-mode": "BATCH"}, False)],
    ids=["off", "savepoint", "batch"],
)
def an_epoch_may_have_no_deadline(config, aligned):
    assert UnalignedCheckpoints().deadlines(plan(**config), aligned=aligned) == {}


@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        (lambda stream: stream.key_by(lambda v: v).reduce(max), True),
        (lambda stream: stream.rebalance().map(abs), True),
        (lambda stream: stream.shuffle().map(abs), True),
        (lambda stream: stream.rescale().map(abs), False),
        (lambda stream: stream.broadcast().map(abs), False),
        (lambda stream: stream.partition_custom(lambda key, n: 0, lambda v: v).map(abs), False),
    ],
    ids=["hash", "rebalance", "shuffle", "rescale", "broadcast", "custom"],
)
def test_input_that_can_go_to_any_parallelism_can_be_cut(shape, cut):
    job = plan(shape, **ON)
    assert can_be_cut(job, last(job)) is cut
    assert (last(job).id in UnalignedCheckpoints().deadlines(job, aligned=False)) is cut


def the_sources_read_the_less_the_more_input_waits_beyond_half_of_the_bound():
    job, decided = plan(**ON), UnalignedCheckpoints()
    budgets = []
    for waits in (0, 256, 512, 768, 1023, 1024, 5000):
        decided.completed(reports(job, 0.1, 0.1, 0.1, waits=waits), 1)
        assert decided.waiting is bool(waits)
        budgets.append(decided.budget(job, 1000))
    assert budgets == [1000, 1000, 1000, 500, 1, 0, 0]


def a_checkpoint_that_should_have_no_channel_state_gives_the_subtasks_the_longest_time():
    job = plan(**ON)
    found = UnalignedCheckpoints().deadlines(job, aligned=False, longest=True)
    assert found.keys() == UnalignedCheckpoints().deadlines(job, aligned=False).keys() >= {last(job).id}
    assert set(found.values()) == {Deadline(ALIGNMENT_SECONDS, ALIGNMENT_SECONDS)}


def a_job_that_continues_a_checkpoint_with_channel_state_has_some():
    job, decided = plan(**ON), UnalignedCheckpoints()
    waits = SubtaskState(lists={CHANNEL_STATE: [ListPart([b"cursor"]), ListPart([b"frame"])]})
    for states, expected in (([SubtaskState(), waits], True), ([SubtaskState()], False)):
        decided.completed(reports(job, 0.1, 0.1, 0.1, waits=5000), 1)
        operators = {"a": OperatorCheckpoint("a", subtasks=states), "b": OperatorCheckpoint("b")}
        decided.restored(CheckpointMetadata(1, 1, "id", "job", 0, operators=operators))
        assert (decided.waiting, decided.budget(job, 1000)) == (expected, 1000)
    decided.restored(None)
    assert not decided.waiting


def the_time_of_an_epoch_without_its_processing_is_averaged_like_that_of_the_subtasks():
    job, decided = plan(**ON), UnalignedCheckpoints()
    decided.completed(reports(job, 0.1, 0.1, 0.2), 0.5)
    decided.completed(reports(job, 0.2, 0.2, 0.1), 0.3)  # the rest: 0.3, then 0.1
    assert deadline(job, decided) == pytest.approx(0.12 + (0.3 - 0.7 * 0.2) / 3)
    decided.completed(reports(job, 0.12, 0.12, 0.5), 0.1)  # less than the slowest subtask: the clocks differ
    assert deadline(job, decided) == pytest.approx(0.12 + 0.3 * 0.16 / 3)


def a_part_of_a_frame_keeps_its_late_records():
    frame = Frame(9, list("abcdef"), [1, 2, 3, 4, 5, 6], list("kkklll"), None, [(1, 3, 70), (4, 6, 80)])
    assert frame.part(2, 5) == Frame(9, list("cde"), [3, 4, 5], list("kll"), None, [(0, 1, 70), (2, 3, 80)])
    assert frame.chosen([0, 2, 5]) == Frame(9, list("acf"), [1, 3, 6], list("kkl"), None, [(1, 2, 70), (2, 3, 80)])


def a_long_call_is_waited_for_and_every_epoch_processes_something():
    now = [0.0]
    slices = TimeSlices(0.0, lambda: now[0])
    assert slices.take(10) == 1
    now[0] = 60.0
    assert slices.take(10) == 0


def the_slices_that_begin_small_do_not_rely_on_the_quick_records_before():
    now = [0.0]
    slices = TimeSlices(10.0, lambda: now[0])
    assert [slices.take(100) for _ in range(5)] == [1, 2, 4, 8, 16]
    slices.begin_small()
    assert slices.take(100) == 1
    now[0] += 0.1
    assert slices.take(100) == 1


def the_first_records_open_connections_which_does_not_count_but_a_long_call_does():
    now = [0.0]
    slices = TimeSlices(0.1, lambda: now[0])
    slices.take(10)
    now[0] = 0.3
    assert slices.take(10) == 1
    now[0] = 0.39
    assert slices.take(10) > 0
    assert slices.spent == pytest.approx(0.09)
    now[0] = 0.41
    assert slices.take(10) == 0
    slices = TimeSlices(0.1, lambda: now[0])
    slices.take(10)
    now[0] += 1.0
    assert slices.take(10) == 0
    assert slices.spent == pytest.approx(0.5)
