"""The coordinator machine when something fails: what is tried again, what ends the job, and what is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from machine_driver import SOURCE, Driver, kinds

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.connectors.base import JobInfo
from holdfast.errors import CorruptFile, Fenced, HoldfastError, StaleRange, StorageError, UserCodeError
from holdfast.runtime.channels.channels import first_partition
from holdfast.runtime.protocol import events, instructions
from holdfast.runtime.protocol.events import Failed
from holdfast.runtime.protocol.job_state import JobState
from holdfast.runtime.protocol.rescale_request import RescaleRequest
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest

AWAY = StorageError("away")
TASK = "Source: numbers -> Map -> Sink: Print to Std. Out (1/1)"


def failed(driver: Driver, run: Any, failure: Exception) -> list[Any]:
    """The task of an epoch reports a failure, and the driver still owns the job."""
    (report,) = driver.reports(run.assignment)
    report.error = failure
    (confirm,) = driver.tell(events.Ran(run.epoch, [report]))
    assert confirm == instructions.Confirm(run.epoch)
    assert driver.notices == [instructions.EpochFailed(run.epoch, failure)]
    return driver.tell(events.Confirmed(run.epoch))


def a_failed_task_is_told_with_each_restart_and_its_delay():
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    assert run.assignment.restarts == 0
    for restarts in (1, 2):
        assert failed(driver, run, AWAY) == [instructions.Delay(0.05)]
        assert driver.notices == [instructions.JobFailure(AWAY, TASK), instructions.Restarting(AWAY, TASK, 50)]
        (run,) = driver.tell(events.DelayOver())
        assert driver.notices == [instructions.Running()]
        assert run.assignment.restarts == restarts


def a_job_without_attempts_left_ends_with_the_failure():
    driver = Driver(attempts=1)
    driver.open()
    (run,) = driver.planned()
    failed(driver, run, AWAY)
    (run,) = driver.tell(events.DelayOver())
    assert failed(driver, run, AWAY) == [instructions.End(AWAY)]
    assert driver.notices == [instructions.JobFailure(AWAY, TASK)]
    assert driver.machine.state is JobState.FAILED


def an_epoch_whose_function_failed_is_run_once_more_at_once_to_find_the_record():
    mistake = UserCodeError("a mistake", operator="map", uid="map")
    driver = Driver(attempts=0)
    driver.open()
    (run,) = driver.planned()
    assert failed(driver, run, mistake) == [instructions.Delay(0.0)]
    assert driver.notices == [instructions.JobFailure(mistake, TASK)]
    (traced,) = driver.tell(events.DelayOver())
    assert (run.assignment.trace, traced.assignment.trace) == (False, True)
    assert traced.assignment.restarts == 0, "it is no restart"
    assert failed(driver, traced, mistake) == [instructions.End(mistake)]


def a_damaged_file_that_a_task_has_found_takes_the_job_back_to_the_log_which_reads_all_files():
    damaged = CorruptFile("state/file", "altered")
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    assert kinds(failed(driver, run, damaged)) == ["Delay"]
    (take_over,) = driver.tell(events.DelayOver())
    assert take_over.deep
    assert kinds(driver.tell(Failed(take_over, AWAY))) == ["Delay"]
    (again,) = driver.tell(events.DelayOver())
    assert not again.deep, "only the first one: afterwards the files are known"


def a_range_that_must_be_planned_anew_takes_the_job_back_to_the_log():
    stale = StaleRange("the snapshot is gone")
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    assert kinds(failed(driver, run, stale)) == ["Delay"]
    (take_over,) = driver.tell(events.DelayOver())
    assert isinstance(take_over, instructions.TakeOver)


def a_damaged_file_for_which_the_log_has_found_no_other_checkpoint_ends_the_job():
    damaged = CorruptFile("log/1", "altered")
    driver = Driver()
    (take_over,) = driver.tell(events.Start())
    assert driver.tell(Failed(take_over, damaged)) == [instructions.End(damaged)]


def a_bug_in_the_driver_ends_the_job_at_once():
    driver = Driver()
    driver.open()
    commit = driver.epoch()
    (plan,) = (each for each in driver.given if isinstance(each, instructions.Plan))
    with pytest.raises(KeyError) as caught:
        first_partition(driver.plan, replace(driver.plan.vertices[0], id=99))
    assert driver.tell(Failed(plan, caught.value)) == []
    assert driver.tell(events.Committed(commit.epoch)) == [instructions.End(caught.value)]


def an_owner_that_cannot_be_confirmed_just_now_runs_the_epoch_again_all_the_same():
    """The next failure asks again, and no checkpoint can be completed by a driver that has lost the job."""
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    (confirm,) = driver.tell(Failed(run, HoldfastError("a slot is gone")))
    assert kinds(driver.tell(Failed(confirm, AWAY))) == ["Delay"]


def a_job_goes_back_to_the_log_beside_a_savepoint_that_is_being_written():
    driver = Driver()
    driver.open()
    driver.commit(driver.epoch())
    given = driver.tell(events.SavepointRequested(SavepointRequest(1, "file:///savepoint")))
    assert kinds(given) == ["WriteSavepoint"]
    plan = instructions.Plan((SOURCE,), 100)
    assert kinds(driver.tell(Failed(plan, AWAY))) == ["Delay"]
    assert kinds(driver.tell(events.DelayOver())) == ["TakeOver"]
    driver.take_over(CheckpointMetadata(2, 1, "id", "job", 0))
    assert driver.tell(events.SavepointWritten(1)) == []


def a_savepoint_that_fails_is_told():
    driver = Driver()
    driver.open()
    driver.commit(driver.epoch())
    (write,) = driver.tell(events.SavepointRequested(SavepointRequest(1, "file:///savepoint")))
    assert driver.tell(Failed(write, AWAY)) == []
    assert driver.notices == [instructions.SavepointFailed(write.request, AWAY)]
    assert kinds(driver.tell(events.SavepointRequested(SavepointRequest(2, "file:///savepoint")))) == ["WriteSavepoint"]


# cancelled jobs


def a_job_that_is_cancelled_runs_a_failed_epoch_no_more():
    for cancelled in ("while it runs", "when it has failed", "while it waits"):
        driver = Driver()
        driver.open()
        (run,) = driver.planned()
        if cancelled == "while it runs":
            assert driver.tell(events.Cancel()) == []
            assert driver.tell(Failed(run, AWAY)) == [instructions.End(None)]
        else:
            driver.tell(Failed(run, AWAY))
            if cancelled == "when it has failed":
                assert driver.tell(events.Cancel()) == []
                assert driver.tell(events.Confirmed(run.epoch)) == [instructions.End(None)]
            else:
                driver.tell(events.Confirmed(run.epoch))
                assert driver.tell(events.Cancel()) == [instructions.End(None)]
        assert driver.machine.state is JobState.CANCELED, cancelled


def a_job_that_is_cancelled_while_the_owner_of_a_failed_epoch_cannot_be_confirmed_ends():
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    (confirm,) = driver.tell(Failed(run, AWAY))
    driver.tell(events.Cancel())
    assert driver.tell(Failed(confirm, AWAY)) == [instructions.End(None)]


@pytest.mark.parametrize("fails", ["commit", "complete"])
def a_cancelled_job_whose_end_fails_tells_whether_output_is_left_for_the_next_start(fails: str):
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    driver.tell(events.Cancel())
    (complete,) = driver.ran(run)
    last = complete if fails == "complete" else driver.tell(events.Completed(complete.epoch))[0]
    assert driver.tell(Failed(last, AWAY)) == [instructions.End(None)]
    assert driver.notices[-1] == instructions.CancelledAfterFailure(AWAY, "", fails == "commit")
    assert driver.machine.state is JobState.CANCELED


def a_job_that_is_cancelled_while_it_opens_or_plans_begins_no_epoch():
    driver = Driver()
    driver.tell(events.Start())
    driver.tell(events.TookOver(JobInfo("id", "job", 1, None), None, 2))
    driver.tell(events.Recovered())
    assert driver.tell(events.Cancel()) == []
    assert driver.tell(events.Opened()) == [instructions.End(None)]
    driver = Driver()
    driver.open()
    assert driver.tell(events.Cancel()) == []
    assert driver.planned() == [instructions.End(None)]


def a_job_that_was_never_started_is_cancelled_at_once():
    driver = Driver()
    assert driver.machine.completed is None
    assert not driver.machine.uncommitted
    assert driver.tell(events.Cancel()) == [instructions.End(None)]
    assert driver.machine.state is JobState.CANCELED


# rescaling


def rescaling(driver: Driver) -> Any:
    """A job with a checkpoint that is asked to run at parallelism 2; returns the check of its files."""
    driver.open()
    driver.commit(driver.epoch())
    request = RescaleRequest(1, driver.replan(2))
    assert driver.tell(events.RescaleRequested(request)) == [], "the epoch that is being planned comes first"
    assert kinds(driver.planned(ranges=0)) == ["Sleep"]
    (verify,) = driver.tell(events.Woke())
    assert isinstance(verify, instructions.Verify)
    return request, verify


def a_rescaled_job_takes_itself_over_with_the_new_plan():
    driver = Driver()
    request, verify = rescaling(driver)
    assert verify.checkpoint.checkpoint_id == 2
    (take_over,) = driver.tell(events.Verified(2))
    assert (take_over.plan, take_over.deep) == (request.plan, False)
    driver.tell(events.TookOver(JobInfo("id", "job", 1, None), verify.checkpoint, 4))
    driver.tell(events.Recovered())
    (run,) = driver.tell(events.Opened())  # without input: a program that cannot run there reads none
    assert all(not each.ranges for each in run.assignment.sources.values())
    driver.plan = request.plan
    assert len(driver.reports(run.assignment)) == 2
    (complete,) = driver.ran(run)
    driver.tell(events.Completed(complete.epoch))
    assert instructions.Rescaled(request) in driver.notices


def a_rescaling_whose_checkpoint_lacks_a_file_is_refused_and_the_job_goes_on():
    driver = Driver()
    request, verify = rescaling(driver)
    assert kinds(driver.tell(Failed(verify, CorruptFile("state/file", "missing")))) == ["Plan"]
    assert driver.notices == [instructions.RescaleRefused(request, "state/file: missing")]


@pytest.mark.parametrize("fails", ["the first epoch", "the start"])
def a_rescaled_job_whose_tasks_fail_at_once_returns_to_the_plan_before(fails: str):
    driver = Driver()
    before = driver.plan
    request, verify = rescaling(driver)
    (take_over,) = driver.tell(events.Verified(2))
    mistake = UserCodeError("no room for two")
    if fails == "the start":
        given = driver.tell(Failed(take_over, mistake))
    else:
        driver.tell(events.TookOver(JobInfo("id", "job", 1, None), verify.checkpoint, 4))
        driver.tell(events.Recovered())
        (run,) = driver.tell(events.Opened())
        driver.plan = request.plan
        reports = driver.reports(run.assignment)
        reports[1].error = mistake
        driver.tell(events.Ran(run.epoch, reports))
        given = driver.tell(events.Confirmed(run.epoch))
    (back,) = given
    assert isinstance(back, instructions.TakeOver)
    assert back.plan == before
    refused = driver.notices[-1]
    assert refused.request == request
    assert "cannot run at parallelism 2, and it goes on as before: no room for two" in refused.why


def a_rescaled_job_that_would_end_before_its_first_epoch_is_complete_returns_to_the_plan_before():
    driver = Driver(attempts=0)
    before = driver.plan
    request, _ = rescaling(driver)
    (take_over,) = driver.tell(events.Verified(2))
    (back,) = driver.tell(Failed(take_over, AWAY))
    assert back.plan == before
    assert driver.notices[-1].request == request


def a_rescaling_that_ends_with_another_driver_is_no_reason_to_go_back():
    driver = Driver()
    _, _ = rescaling(driver)
    (take_over,) = driver.tell(events.Verified(2))
    fenced = Fenced("another driver")
    assert driver.tell(Failed(take_over, fenced)) == [instructions.End(fenced)]


def a_job_that_ends_refuses_to_be_rescaled():
    driver = Driver()
    driver.open()
    driver.planned()
    driver.tell(events.Cancel())
    request = RescaleRequest(1, driver.replan(2))
    driver.tell(events.RescaleRequested(request))
    assert driver.notices == [instructions.RescaleRefused(request, "the job is about to end")]


def a_savepoint_comes_before_a_rescaling():
    driver = Driver()
    driver.open()
    driver.commit(driver.epoch())
    driver.tell(events.SavepointRequested(SavepointRequest(1, "file:///savepoint")))
    driver.tell(events.RescaleRequested(RescaleRequest(1, driver.replan(2))))
    assert kinds(driver.planned(ranges=0)) == ["Sleep"]
    assert kinds(driver.tell(events.SavepointWritten(1))) == []
    assert kinds(driver.tell(events.Woke())) == ["Verify"]
