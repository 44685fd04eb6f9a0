"""The coordinator machine from the log to a running job: what it restores, sweeps, waits for and tells."""

from __future__ import annotations

from typing import Any

import pytest
from machine_driver import POSITION, SOURCE, Driver, kinds

from holdfast.checkpoint.metadata import CheckpointMetadata, SourceState
from holdfast.connectors.base import Committable, EpochInput, JobInfo
from holdfast.errors import IncompatibleState
from holdfast.runtime.protocol import events, instructions, machine
from holdfast.runtime.protocol.events import Instant, PlannedInput
from holdfast.runtime.protocol.job_state import JobState
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest

JOB = JobInfo("id", "job", 1, None)
OUTPUT = Committable("rows:changelog", 0, {"rows": 3})


def restored(number: int = 7, **rest: Any) -> CheckpointMetadata:
    rest.setdefault("sources", {SOURCE: SourceState(POSITION)})
    return CheckpointMetadata(number, 1, "id", "job", 0, **rest)


def took_over(driver: Driver, checkpoint: CheckpointMetadata | None = None, **event: Any) -> Any:
    """The job has been taken over; returns what follows."""
    driver.tell(events.Start())
    next_id = event.pop("next_id", 2 if checkpoint is None else checkpoint.checkpoint_id + 2)
    (recover,) = driver.tell(events.TookOver(JOB, checkpoint, next_id, **event))
    return recover


def the_output_of_the_checkpoint_becomes_visible_before_the_sources_start_where_it_stopped():
    driver = Driver()
    stored = restored(committables=[("rows:changelog", 0, {"rows": 3})])
    passed_over = [Committable("sink", 0, {"file": "b"})]
    recover = took_over(driver, stored, savepoint="", passed_over=passed_over)
    assert (recover.committables, recover.passed_over, recover.plan) == ([OUTPUT], passed_over, driver.plan)
    assert driver.notices == [instructions.Restored(7, "")]
    assert driver.machine.completed is stored
    assert driver.machine.uncommitted
    assert driver.tell(events.Recovered()) == [instructions.Open({SOURCE: POSITION})]
    assert not driver.machine.uncommitted
    (first,) = driver.tell(events.Opened())
    assert driver.notices[0] == instructions.Running()
    assert (first.assignment.base, first.assignment.committed, first.epoch) == (7, 7, 9)


def a_program_that_cannot_go_on_from_the_checkpoint_ends_before_anything_is_committed():
    driver = Driver()
    driver.tell(events.Start())
    stored = restored(sources={"another": SourceState(POSITION)})
    (end,) = driver.tell(events.TookOver(JOB, stored, 9, savepoint="file:///savepoint"))
    assert isinstance(end.failure, IncompatibleState)
    assert "savepoint file:///savepoint of job 'job' has state of source 'another'" in str(end.failure)


def a_restored_job_whose_sources_had_ended_is_finished_when_its_output_is_visible():
    driver = Driver()
    ended = SourceState(POSITION, {"\x00finished": {"finished": True}})
    took_over(driver, restored(sources={SOURCE: ended}))
    assert driver.tell(events.Recovered()) == [instructions.Open({})], "none is started again"
    assert driver.tell(events.Opened()) == [instructions.End(None)]
    assert driver.notices[-1] == instructions.InputEnded()
    assert driver.machine.state is JobState.FINISHED


def the_sources_are_told_of_each_checkpoint_whose_output_is_visible():
    driver = Driver()
    driver.open()
    commit = driver.epoch()
    assert driver.tell(events.Committed(commit.epoch)) == [instructions.Acknowledge(commit.epoch, {SOURCE: POSITION})]


def swept_from(driver: Driver, uploading: int | None = None) -> int | None:
    """Where the sweep for orphans begins that follows the next epoch."""
    (run,) = driver.planned()
    reports = driver.reports(run.assignment)
    reports[0].uploading = uploading  # type: ignore[assignment]
    (complete,) = driver.tell(events.Ran(run.epoch, reports))
    commit = driver.tell(events.Completed(complete.epoch))[0]
    driver.commit(commit)
    return commit.sweep_from


def test_orphans_are_swept_now_and_then_and_behind_the_first_checkpoint_of_a_start_on_trial(monkeypatch: pytest.MonkeyPatch):
    """But for the files of uploads that are under way."""
    monkeypatch.setattr(machine, "_SWEEP_EVERY", 4)
    for trial, expected in ((False, [None, None, 4, None, None, None, 8]), (True, [2, None, 4, None, None, None, 8])):
        driver = Driver()
        took_over(driver, trial=trial)
        driver.tell(events.Recovered())
        driver.tell(events.Opened())
        assert [swept_from(driver) for _ in range(7)] == expected
    assert [swept_from(driver, 5) for _ in range(4)] == [None, None, None, 5]


def an_epoch_without_input_runs_when_a_timer_is_due():
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    (report,) = driver.reports(run.assignment)
    report.next_timer = 1_700_000_000_000 + 200
    (complete,) = driver.tell(events.Ran(run.epoch, [report]))
    driver.commit(driver.tell(events.Completed(complete.epoch))[0])
    (sleep,) = driver.planned(ranges=0)
    assert 0.1 < sleep.seconds < 0.2
    driver.seconds = 0.25
    assert kinds(driver.tell(events.Woke())) == ["Plan"]
    (run,) = driver.planned(ranges=0)
    assert isinstance(run, instructions.Run)
    assert run.assignment.processing_time >= report.next_timer


def a_wall_clock_that_is_set_is_told_once():
    driver = Driver()
    driver.tell(events.Start())
    later = Instant(1_700_000_500_000, 0.5)
    (told, *_) = driver.machine.handle(events.TookOver(JOB, None, 2), later)
    assert isinstance(told, instructions.ClockStepped)
    assert 499_000 < told.milliseconds <= 500_000
    driver.seconds = 0.6
    assert not any(isinstance(each, instructions.ClockStepped) for each in driver.machine.handle(events.Recovered(), later))


def a_job_with_too_much_channel_state_reads_nothing_until_it_is_processed_and_writes_no_savepoint():
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    (report,) = driver.reports(run.assignment)
    report.channel_state, report.input_waits = 1 << 60, True
    (complete,) = driver.tell(events.Ran(run.epoch, [report]))
    commit, again = driver.tell(events.Completed(complete.epoch))
    assert isinstance(again, instructions.Run)
    (given,) = again.assignment.sources.values()
    assert (given.ranges, given.finished) == ((), False)
    driver.tell(events.SavepointRequested(SavepointRequest(1, "file:///savepoint")))
    assert kinds(driver.tell(events.Committed(commit.epoch))) == ["Acknowledge"]
    driver.tell(events.Acknowledged(commit.epoch))
    (complete,) = driver.ran(again)
    commit = driver.tell(events.Completed(complete.epoch))[0]
    assert kinds(driver.tell(events.Committed(commit.epoch))) == ["Acknowledge", "WriteSavepoint"]


def the_checkpoint_of_a_drained_job_has_the_position_and_no_event_time():
    driver = Driver()
    driver.open()
    driver.commit(driver.epoch())
    driver.tell(events.SavepointRequested(SavepointRequest(1, "file:///savepoint", stop=True, drain=True)))
    (last,) = driver.tell(events.Planned({SOURCE: PlannedInput(EpochInput(), POSITION)}))
    (complete,) = driver.ran(last)
    assert complete.checkpoint.sources[SOURCE].enumerator == POSITION
    assert not complete.checkpoint.sources[SOURCE].watermarks, "a job that goes on would read nothing more"
