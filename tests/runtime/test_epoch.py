"""An epoch in flight: what its tasks are given in each run, and the checkpoint that its reports make."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.metadata import CheckpointMetadata, KeyedHandle, SubtaskState
from holdfast.checkpoint.references import StateFiles
from holdfast.common import WatermarkStrategy
from holdfast.connectors.base import Committable, EpochInput, JobInfo, SplitRange
from holdfast.connectors.collection import CollectionSource
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import HoldfastError, UserCodeError
from holdfast.runtime.plan.event_time import SplitTime
from holdfast.runtime.plan.lifecycle import IllegalTransition
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.redistribution import OperatorSnapshot
from holdfast.runtime.plan.task_messages import Deadline, EpochAssignment, OperatorReport, TaskReport
from holdfast.runtime.protocol.epoch import EpochInFlight
from holdfast.runtime.protocol.events import PlannedInput
from holdfast.runtime.protocol.sources import SourceProgress, source_progress

JOB = JobInfo("job id", "job", 3, None)
PLANNED_MS = 1_700_000_000_000


def plan() -> JobPlan:
    """Two sources, a keyed operator with two subtasks, and a sink."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(2)
    both = [
        env.from_source(CollectionSource([1]), WatermarkStrategy.for_monotonous_timestamps(), uid).uid(uid) for uid in "ab"
    ]
    both[0].union(both[1]).key_by(lambda v: v).reduce(max).uid("keyed").print().uid("sink")
    return env._plan("job")


class Run:
    """An epoch with input from split x of source a; source b has none, and may have ended."""

    def __init__(self, ended: str = "", base: CheckpointMetadata | None = None) -> None:
        self.plan, self.base = plan(), base
        self.sources: list[SourceProgress] = source_progress(self.plan, base)
        self.inputs = {
            "a": PlannedInput(EpochInput((SplitRange("x", 3, 8),), finished="a" in ended), {"next": 8}),
            "b": PlannedInput(EpochInput(finished="b" in ended), {"next": 0}),
        }
        self.epoch = EpochInFlight(6, self.inputs, PLANNED_MS, 10.0, 10.5, False, lambda: ". The story")  # type: ignore[arg-type]

    def begin(self, at: int = PLANNED_MS, now: float = 11.0) -> EpochAssignment:
        deadlines = {1: Deadline(0.5, 0.1)}
        return self.epoch.run(self.plan, JOB, self.base, 5, 2, self.sources, (at, 0.5), now, deadlines, 77)  # type: ignore[arg-type]

    def reports(self) -> list[TaskReport]:
        return [TaskReport((v.id, n), f"attempt {v.id}-{n}") for v in self.plan.vertices for n in range(v.parallelism)]

    def fail(self, failure: BaseException) -> None:
        self.epoch.failed(failure, "the task")
        self.epoch.confirm()
        self.epoch.back_off()


def state(number: int, *sizes: int) -> OperatorReport:
    files = [ContainedFile(f"{number}-{n}", size, b"c" * 16) for n, size in enumerate(sizes)]
    handle = KeyedHandle(64 * number, 64 * number + 63, schema="s", deltas=files)
    return OperatorReport.whole(OperatorSnapshot(SubtaskState([handle]), {"s": {"version": 1}}))


def the_tasks_of_an_epoch_get_its_input_and_what_it_continues():
    base = CheckpointMetadata(5, 2, "job id", "job", 0)
    run = Run(base=base)
    given = run.begin(PLANNED_MS + 9)
    assert (given.epoch, given.run, given.base, given.committed, given.generation, given.restarts) == (6, 0, 5, 5, 3, 2)
    assert (given.processing_time, given.speed, given.asked, given.trace) == (PLANNED_MS + 9, 0.5, 77, False)
    assert given.deadlines == {1: Deadline(0.5, 0.1)}
    assert given.tokens == {}
    of_source = {each.uid: each.vertex.id for each in run.sources}
    assert given.sources.keys() == {(vertex, n) for vertex in of_source.values() for n in range(2)}
    ranges = {task: each.ranges for task, each in given.sources.items() if each.ranges}
    assert ranges == {(of_source["a"], 0): (SplitRange("x", 3, 8),)}
    assert Run().begin().base == 0, "the first one continues none"


@pytest.mark.parametrize(("failure", "traced"), [(HoldfastError("a slot is gone"), False), (UserCodeError("a bug"), True)])
def an_epoch_that_failed_is_run_again_with_its_input_and_record_by_record_if_a_function_failed(failure: Any, traced: bool):
    run = Run()
    first = run.begin()
    run.fail(failure)
    assert (run.epoch.failure, run.epoch.task) == (failure, "the task")
    again = run.begin(PLANNED_MS + 50)
    assert (first.run, again.run) == (0, 1)
    assert again.sources == first.sources
    assert again.processing_time == run.epoch.processing_ms == PLANNED_MS + 50
    assert run.epoch.planned_ms == PLANNED_MS
    assert (again.trace, run.epoch.traced) == (traced, traced)
    assert again.deadlines == ({} if traced else first.deadlines), "a trace reads all of the input"


def the_epoch_that_ends_the_input_leaves_nothing_to_a_later_one():
    assert Run(ended="a").begin().deadlines
    assert Run(ended="ab").begin().deadlines == {}


def an_epoch_takes_its_steps_in_order():
    """Between them the driver asks whether it is idle, so that it can be dropped, or complete."""
    run = Run()
    epoch, seen = run.epoch, []

    def look() -> None:
        seen.append((epoch.state.value, epoch.is_idle, epoch.is_complete))

    look()
    run.begin()
    look()
    for step in (lambda: epoch.failed(HoldfastError("x"), ""), epoch.confirm, epoch.back_off, run.begin):
        step()
        look()
    epoch.reported(run.reports(), 12.0)
    look()
    epoch.complete(run.sources, StateFiles(), 13.0)
    look()
    epoch.completed(13.5)
    look()
    epoch.committed()
    look()
    assert seen == [
        ("planned", True, False),
        ("running", False, False),
        ("failed", True, False),
        ("confirming", True, False),
        ("backing off", True, False),
        ("running", False, False),
        ("reported", False, False),
        ("completing", False, False),
        ("committing", False, True),
        ("acknowledging", False, True),
    ]


def test_a_step_out_of_order_tells_the_story():
    steps = {
        "run": lambda run: run.begin(),
        "failed": lambda run: run.epoch.failed(HoldfastError("x"), ""),
        "confirm": lambda run: run.epoch.confirm(),
        "back off": lambda run: run.epoch.back_off(),
        "reported": lambda run: run.epoch.reported([], 12.0),
        "completed": lambda run: run.epoch.completed(12.0),
        "committed": lambda run: run.epoch.committed(),
    }
    for name, step in steps.items():
        run = Run()
        if name == "run":
            run.begin()
        with pytest.raises(IllegalTransition, match=r"epoch 6.*The story"):
            step(run)


def the_checkpoint_of_an_epoch_holds_what_its_tasks_have_reported():
    run = Run()
    given = run.begin()
    reports = run.reports()
    keyed = next(vertex.id for vertex in run.plan.vertices if vertex.chain[0].uid == "keyed")
    source = next(each.vertex.id for each in run.sources if each.uid == "a")
    for report in reports:
        vertex, n = report.task
        report.processing_time = PLANNED_MS + 100 * n
        if vertex == keyed:
            report.state = {"keyed": state(n, 1000, 10 + n)}
            report.delta_bytes = 7 + n
            report.committables = [Committable("sink", n, {"file": n})]
        if report.task == (source, 0):
            splits = given.sources[report.task].splits
            report.splits = {"x": SplitTime(900, generated=splits["x"].generated, heard=True)}
            report.watermark = 899
    files = StateFiles()
    run.epoch.reported(reports, 12.25)
    assert run.epoch.processing_ms == PLANNED_MS + 100
    made = run.epoch.complete(run.sources, files, 12.75)
    assert made is run.epoch.checkpoint
    assert (made.checkpoint_id, made.generation, made.job_id, made.job_name) == (6, 3, "job id", "job")
    assert made.created_at == PLANNED_MS + 100, "a restored job's processing time does not go back behind its tasks'"
    assert made.duration_ms == 2750
    assert made.sources["a"].enumerator == {"next": 8}
    assert made.sources["a"].watermarks["x"]["max_timestamp"] == 900
    assert made.sources["b"].enumerator == {"next": 0}
    assert made.committables == [("sink", 0, {"file": 0}), ("sink", 1, {"file": 1})]
    assert (made.delta_size, made.full_size) == (15, 2021)
    assert [[file.path for file in subtask.files()] for subtask in made.operators["keyed"].subtasks] == [
        ["0-0", "0-1"],
        ["1-0", "1-1"],
    ]
    run.epoch.completed(13.0)
    assert run.epoch.phases == {"plan": 0.5, "job": 1.25, "commit": 0.5, "metadata": 0.25}


def a_checkpoint_keeps_the_state_of_subtasks_that_have_not_changed_it():
    first = Run()
    first.begin()
    reports = first.reports()
    keyed = next(vertex.id for vertex in first.plan.vertices if vertex.chain[0].uid == "keyed")
    for report in reports:
        if report.task[0] == keyed:
            report.state = {"keyed": state(report.task[1], 1000)}
    first.epoch.reported(reports, 12.0)
    files = StateFiles()
    base = first.epoch.complete(first.sources, files, 13.0)
    run = Run(base=base)
    assert set(run.begin().tokens.values()) == {report.attempt for report in reports}
    quiet = run.reports()
    run.epoch.reported(quiet, 12.0)
    made = run.epoch.complete(run.sources, files, 13.0)
    assert made.operators["keyed"].subtasks == base.operators["keyed"].subtasks
    assert (made.full_size, made.delta_size) == (2000, 0)


def a_failed_runs_time_does_not_count_as_that_of_its_tasks():
    run = Run()
    run.begin(now=11.0)
    run.fail(HoldfastError("a slot is gone"))
    run.begin(now=60.0)
    run.epoch.reported(run.reports(), 61.5)
    assert run.epoch.phases == {"plan": 0.5, "job": 1.5}
    assert run.epoch.complete(run.sources, StateFiles(), 62.0).duration_ms == 52_000


def a_silent_split_that_holds_event_time_back_is_told_with_its_source():
    run = Run()
    source = next(each for each in run.sources if each.uid == "a")
    both = PlannedInput(EpochInput((SplitRange("x", 0, 1), SplitRange("y", 0, 1))), None)
    source.asked(both, 0)
    given = source.assignments(both)
    for splits in (each.splits for each in given.values()):
        for split in splits.values():
            split.heard, split.max_timestamp = True, 5
    source.read([TaskReport(task, "a", splits=each.splits) for task, each in given.items()])
    source.asked(run.inputs["a"], 30_000)
    assignment = run.begin()
    reports = run.reports()
    for report in reports:
        report.splits = {} if report.task not in assignment.sources else assignment.sources[report.task].splits
        if "x" in report.splits:
            report.splits["x"].heard, report.splits["x"].max_timestamp = True, 90
    run.epoch.reported(reports, 12.0)
    run.epoch.complete(run.sources, StateFiles(), 13.0)
    assert [tuple(each) for each in run.epoch.holding] == [("a", "y", 30.0)]
