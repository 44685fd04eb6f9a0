"""The coordinator machine, event by event. tests/simulator drives the same machine through thousands of lives."""

from __future__ import annotations

from typing import Any

import pytest
from machine_driver import SOURCE, Driver, kinds

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.connectors.base import EpochInput, JobInfo
from holdfast.errors import Fenced, InputLost, StorageError
from holdfast.runtime.plan.lifecycle import IllegalTransition
from holdfast.runtime.protocol import events, instructions
from holdfast.runtime.protocol.events import Failed, Instant, PlannedInput
from holdfast.runtime.protocol.job_state import KNOWN_EVENTS, TRANSITIONS, JobState
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest


def an_answer_that_was_not_asked_for_tells_its_story():
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    with pytest.raises(IllegalTransition, match=r"Completed\(2\) came unasked") as caught:
        driver.tell(events.Completed(2))
    story = str(caught.value)
    assert "epoch 2 is running; awaited: Run 2" in story
    assert story.index("TookOver") < story.index("Opened") < story.index("gives Run(2)")
    with pytest.raises(IllegalTransition, match=r"Ran\(7\) came unasked"):
        driver.tell(events.Ran(7, driver.reports(run.assignment)))


def an_event_that_the_jobs_state_does_not_know_is_refused():
    driver = Driver()
    with pytest.raises(IllegalTransition, match="Woke came to a job that is created"):
        driver.tell(events.Woke())
    driver.open()
    with pytest.raises(IllegalTransition, match="Start came to a job that is running"):
        driver.tell(events.Start())


def test_every_state_has_its_transitions_and_events():
    assert set(TRANSITIONS) == set(KNOWN_EVENTS) == set(JobState)
    reached = {JobState.CREATED}
    while new := {n for s in reached for n in TRANSITIONS[s]} - reached:
        reached |= new
    assert reached == set(JobState)


class PausingDriver(Driver):
    """A driver of a job with ten seconds between a checkpoint and the next epoch."""

    def __init__(self) -> None:
        super().__init__(**{"execution.checkpointing.min-pause": "10 s"})

    def epoch(self, finished: bool = False) -> Any:
        """An epoch and its commit; the machine gives a sleep, which waits for no input: that would end the pause."""
        commit, self.sleep = super().epoch(finished), self.given[-1]
        self.commit(commit)
        assert self.sleep.sources == ()

    def planned_after(self) -> float:
        """Wake the machine up until it plans the next epoch; returns how long it took, in seconds."""
        since = self.seconds
        given = [self.sleep]
        while kinds(given) == ["Sleep"]:
            assert given[0].sources == ()
            self.seconds += given[0].seconds
            given = self.tell(events.Woke())
        assert kinds(given) == ["Plan"]
        return self.seconds - since


def an_epoch_begins_no_sooner_than_the_pause_after_the_last_checkpoint():
    driver = PausingDriver()
    driver.open()
    driver.epoch()
    assert 9.9 < driver.planned_after() < 10.1
    (sleep,) = driver.planned(ranges=0)
    assert sleep.sources == (SOURCE,), "from now on, input is waited for"
    assert kinds(driver.tell(events.Woke())) == ["Plan"]
    driver.epoch()
    assert 9.9 < driver.planned_after() < 10.1


def the_interval_of_a_running_job_can_be_changed():
    driver = PausingDriver()
    driver.open()
    driver.epoch()
    assert driver.tell(events.PaceChanged(20_000, 0)) == []
    assert 19.9 < driver.planned_after() < 20.1
    driver.epoch()
    driver.tell(events.PaceChanged(1, None))
    assert driver.planned_after() < 0.6, "of the interval before, the sleep that has begun is left"


def a_savepoint_and_the_end_of_a_job_wait_for_no_pause():
    driver = PausingDriver()
    driver.open()
    driver.epoch()
    assert kinds(driver.tell(savepoint(1))) == ["WriteSavepoint"]
    driver.tell(events.SavepointWritten(1))
    driver.tell(savepoint(2, stop=True))
    driver.tell(events.Woke())
    assert kinds(driver.tell(events.SavepointWritten(2))) == ["End"]


def the_checkpoint_after_waits_for_the_commit_before():
    driver = Driver()
    driver.open()
    first = driver.epoch()
    (run,) = driver.planned()
    assert driver.ran(run) == []  # reported, not completed: the commit of the one before is under way
    assert kinds(driver.commit(first)) == ["Complete"]


def a_failed_epoch_is_run_again_with_the_same_input_once_the_commit_before_it_is_known():
    driver = Driver()
    driver.open()
    first = driver.epoch()
    (run,) = driver.planned()
    assert driver.tell(Failed(run, StorageError("away"))) == []
    assert driver.commit(first) == [instructions.Confirm(run.epoch)]
    assert kinds(driver.tell(events.Confirmed(run.epoch))) == ["Delay"]
    (again,) = driver.tell(events.DelayOver())
    assert again.assignment.run == 1
    assert again.assignment.sources == run.assignment.sources
    assert (run.assignment.committed, again.assignment.committed) == (0, first.epoch)


def a_failed_epoch_is_not_run_again_by_a_driver_that_has_lost_the_job():
    driver = Driver(attempts=1000)
    driver.open()
    (run,) = driver.planned()
    (confirm,) = driver.tell(Failed(run, StorageError("no such object")))
    fenced = Fenced("another driver")
    assert driver.tell(Failed(confirm, fenced)) == [instructions.End(fenced)]


def a_commit_that_fails_takes_the_job_back_to_the_log():
    driver = Driver()
    driver.open()
    first = driver.epoch()
    (run,) = driver.planned()
    assert kinds(driver.tell(Failed(first, StorageError("away")))) == ["Delay"]
    assert driver.tell(events.DelayOver()) == []  # the epoch still runs
    assert kinds(driver.ran(run)) == ["TakeOver"]
    assert driver.machine.uncommitted


def a_job_does_not_go_back_to_the_log_beside_its_own_commit():
    driver = Driver()
    driver.open()
    first = driver.epoch()
    (plan,) = (i for i in driver.given if isinstance(i, instructions.Plan))
    assert kinds(driver.tell(Failed(plan, StorageError("away")))) == ["Delay"]
    assert driver.tell(events.DelayOver()) == []
    assert kinds(driver.tell(events.Committed(first.epoch))) == ["TakeOver"]
    assert not driver.machine.uncommitted


def a_hopeless_failure_ends_the_job_when_nothing_is_under_way_any_more():
    driver = Driver()
    driver.open()
    first = driver.epoch()
    (plan,) = (i for i in driver.given if isinstance(i, instructions.Plan))
    lost = InputLost("gone")
    assert driver.tell(Failed(plan, lost)) == []
    assert driver.tell(events.Committed(first.epoch)) == [instructions.End(lost)]
    assert driver.machine.state is JobState.FAILED


def a_driver_that_is_fenced_stops_without_asking_the_restart_strategy():
    driver = Driver(attempts=1000)
    driver.open()
    (run,) = driver.planned()
    (complete,) = driver.ran(run)
    fenced = Fenced("another driver")
    assert driver.tell(Failed(complete, fenced)) == [instructions.End(fenced)]


def a_cancelled_job_commits_the_epoch_that_runs_and_plans_no_other():
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    assert driver.tell(events.Cancel()) == []
    (complete,) = driver.ran(run)
    (commit,) = driver.tell(events.Completed(complete.epoch))
    assert driver.commit(commit) == [instructions.End(None)]
    assert driver.machine.state is JobState.CANCELED
    assert driver.tell(events.Cancel()) == []  # once more, by an impatient user


def a_job_that_is_cancelled_while_it_waits_for_its_restart_ends_at_once():
    driver = Driver()
    (take_over,) = driver.tell(events.Start())
    assert kinds(driver.tell(Failed(take_over, StorageError("away")))) == ["Delay"]
    assert driver.tell(events.Cancel()) == [instructions.End(None)]


def a_job_that_is_cancelled_while_it_recovers_makes_earlier_output_visible_first():
    driver = Driver()
    driver.tell(events.Start())
    assert driver.tell(events.Cancel()) == []
    driver.tell(events.TookOver(JobInfo("id", "job", 1, None), None, 2))
    assert driver.tell(events.Recovered()) == [instructions.End(None)]


def a_bounded_job_ends_after_its_last_commit():
    driver = Driver()
    driver.open()
    last = driver.epoch(finished=True)
    assert kinds(driver.given) == ["Commit"]
    assert driver.commit(last) == [instructions.End(None)]
    assert driver.machine.state is JobState.FINISHED


def test_without_input_the_job_sleeps_and_asks_again():
    driver = Driver()
    driver.open()
    (sleep,) = driver.planned(ranges=0)
    assert sleep.seconds == 0.5
    assert kinds(driver.tell(events.Woke())) == ["Plan"]


def the_end_of_a_commit_is_noticed_soon_by_a_job_without_input():
    driver = Driver()
    driver.open()
    driver.epoch()
    (sleep,) = driver.planned(ranges=0)
    assert sleep.seconds < 0.1


def a_restored_job_begins_with_an_epoch_at_the_processing_time_of_its_checkpoint_and_goes_on_from_that_of_its_tasks():
    restored = 1_700_000_100_000  # the wall clock is behind
    driver = Driver()
    driver.tell(events.Start())
    driver.tell(events.TookOver(JobInfo("id", "job", 1, None), CheckpointMetadata(7, 1, "id", "job", restored), 9))
    driver.tell(events.Recovered())
    (first,) = driver.tell(events.Opened())  # without input: timers may be due
    assert first.assignment.processing_time >= restored
    reports = driver.reports(first.assignment)
    reports[0].processing_time = reached = restored + 50_000
    (complete,) = driver.tell(events.Ran(first.epoch, reports))
    driver.commit(driver.tell(events.Completed(complete.epoch))[0])
    (second,) = driver.planned()
    assert second.assignment.processing_time >= reached


def a_job_that_was_back_at_the_log_runs_an_epoch_without_input_as_timers_may_be_due():
    driver = Driver()
    driver.open()
    first = driver.epoch()
    (run,) = driver.planned()
    driver.tell(Failed(first, StorageError("away")))
    driver.tell(events.DelayOver())
    driver.ran(run)
    driver.take_over(CheckpointMetadata(first.epoch, 1, "id", "job", 0))
    assert kinds(driver.planned(ranges=0)) == ["Run"]


# savepoints


def savepoint(number: int = 1, stop: bool = False, drain: bool = False) -> events.SavepointRequested:
    return events.SavepointRequested(SavepointRequest(number, "file:///savepoint", stop, drain))


def a_savepoint_is_of_the_epoch_that_runs_when_it_is_asked_for_and_waits_for_its_commit():
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    assert driver.tell(savepoint()) == []
    (complete,) = driver.ran(run)
    driver.tell(events.Completed(complete.epoch))
    commit = driver.given[0]
    given = driver.tell(events.Committed(commit.epoch))
    (write,) = (i for i in given if isinstance(i, instructions.WriteSavepoint))
    assert (write.checkpoint_id, write.drained) == (run.epoch, False)
    assert driver.tell(events.SavepointWritten(1)) == []
    assert driver.machine.state is JobState.RUNNING


def a_savepoint_does_not_begin_while_the_next_checkpoint_may_displace_its_own():
    driver = Driver()
    driver.open()
    commit = driver.epoch()
    for number in (1, 2):
        driver.tell(savepoint(number))
    (run,) = driver.planned()
    assert driver.ran(run) == []  # it completes after the commit
    assert kinds(driver.tell(events.Committed(commit.epoch))) == ["Acknowledge", "WriteSavepoint"]
    assert kinds(driver.tell(events.Acknowledged(commit.epoch))) == ["Complete"]
    assert driver.tell(events.SavepointWritten(1)) == []
    driver.tell(events.Completed(run.epoch))
    (write,) = (i for i in driver.tell(events.Committed(run.epoch)) if isinstance(i, instructions.WriteSavepoint))
    assert (write.checkpoint_id, write.request.number) == (run.epoch, 2)


def a_job_that_stops_with_a_savepoint_reads_nothing_more_and_ends_with_it():
    driver = Driver()
    driver.open()
    (run,) = driver.planned()
    driver.tell(savepoint(stop=True))
    (complete,) = driver.ran(run)
    (commit,) = driver.tell(events.Completed(complete.epoch))
    driver.tell(events.Committed(commit.epoch))
    given = driver.tell(events.Acknowledged(commit.epoch))
    assert kinds(given) == ["WriteSavepoint"]
    assert kinds(driver.tell(events.SavepointWritten(1))) == ["End"]
    assert driver.machine.state is JobState.FINISHED


def a_job_that_drains_ends_event_time_in_an_epoch_of_its_own():
    driver = Driver()
    driver.open()
    commit = driver.epoch()
    driver.commit(commit)
    driver.tell(savepoint(stop=True, drain=True))
    (last,) = driver.tell(events.Planned({SOURCE: PlannedInput(EpochInput(), {"next": 1})}))
    assert all(assignment.finished for assignment in last.assignment.sources.values())
    (complete,) = driver.ran(last)
    (commit,) = driver.tell(events.Completed(complete.epoch))
    driver.tell(events.Committed(commit.epoch))
    (write,) = driver.tell(events.Acknowledged(commit.epoch))
    assert write.drained
    assert kinds(driver.tell(events.SavepointWritten(1))) == ["End"]


@pytest.mark.parametrize("stop", [True, False])
def a_job_drains_once_the_savepoint_before_is_written(stop):
    driver = Driver()
    driver.open()
    driver.commit(driver.epoch())
    nothing = events.Planned({SOURCE: PlannedInput(EpochInput(), {"next": 1})})
    asked = savepoint(1, stop=stop), savepoint(2, stop=True, drain=True), nothing
    (write,) = (given for event in asked for given in driver.tell(event))
    assert (write.request.number, write.drained) == (1, False)
    assert kinds(driver.tell(events.SavepointWritten(1))) == (["End"] if stop else ["Run"])


def a_drained_job_takes_itself_over_if_its_savepoint_fails():
    driver = Driver()
    driver.open()
    driver.commit(driver.epoch())
    driver.tell(savepoint(stop=True, drain=True))
    (last,) = driver.tell(events.Planned({SOURCE: PlannedInput(EpochInput(), {"next": 1})}))
    (complete,) = driver.ran(last)
    (commit,) = driver.tell(events.Completed(complete.epoch))
    driver.tell(events.Committed(commit.epoch))
    (write,) = driver.tell(events.Acknowledged(commit.epoch))
    assert kinds(driver.tell(Failed(write, StorageError("full")))) == ["TakeOver"]
    driver.take_over(complete.checkpoint)
    driver.commit(driver.epoch())
    driver.tell(savepoint(2, stop=True, drain=True))
    (last,) = driver.tell(events.Planned({SOURCE: PlannedInput(EpochInput(), {"next": 1})}))
    assert all(assignment.finished for assignment in last.assignment.sources.values()), "it drains again"


def a_savepoint_that_fails_lets_the_job_go_on():
    driver = Driver()
    driver.open()
    driver.commit(driver.epoch())
    driver.tell(savepoint(stop=True))
    (write,) = driver.tell(events.Planned({SOURCE: PlannedInput(EpochInput(), {"next": 1})}))
    assert kinds(driver.tell(Failed(write, StorageError("full")))) == ["Plan"]
    assert driver.machine.state is JobState.RUNNING


def a_job_without_a_checkpoint_runs_an_empty_epoch_for_its_savepoint():
    driver = Driver()
    driver.open()
    driver.tell(savepoint())
    (run,) = driver.tell(events.Planned({SOURCE: PlannedInput(EpochInput(), {"next": 0})}))
    assert isinstance(run, instructions.Run)


def a_job_that_is_cancelled_refuses_savepoints_and_does_not_wait_for_those_under_way():
    driver = Driver()
    driver.open()
    driver.commit(driver.epoch())
    driver.tell(savepoint())
    driver.tell(events.Cancel())
    refused = driver.machine.handle(savepoint(2), Instant(1_700_000_009_000, 9.0))
    assert [type(each) for each in refused] == [instructions.SavepointRefused]
    assert kinds(driver.tell(events.Planned({SOURCE: PlannedInput(EpochInput(), {"next": 1})}))) == ["End"]
