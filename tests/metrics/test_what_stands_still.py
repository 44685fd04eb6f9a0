"""What is told of a job that stands still: what stands, why, and at which line."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.metrics import EpochStats, JobMetrics
from holdfast.metrics.diagnosis import Finding, findings
from holdfast.metrics.standstills import STARTS_S
from holdfast.metrics.stats import HoldingSplit, Observed, SparkTasks, StandingTask

PHASES = {"plan": 0.0, "job": 1.0, "commit": 0.0, "metadata": 0.0}
TASK = StandingTask(8, "Source, worker", "worker", 1, "host-a", 42, 20.0, 0.0, "work (/srv/job.py:12): ask(n)")


def job(what: str, seconds: float, observed: Observed, *, epochs: int = 7) -> list[Finding]:
    """What is told of a job whose driver has done something for so many seconds."""
    now = [1_000.0]
    metrics = JobMetrics("a" * 32, "payments", lambda: now[0], lambda: now[0])
    metrics.status("RUNNING")
    for number in range(1, epochs + 1):
        now[0] += 1.0
        metrics.epoch_finished(EpochStats(number, int(now[0] * 1000) - 1000, 1000.0, 500, 5, PHASES))
    with metrics.doing(what):
        now[0] += seconds
        metrics.observe(observed)
        return findings(metrics.snapshot())


def epoch(seconds: float, *tasks: StandingTask, epochs: int = 7, **more: object) -> list[Finding]:
    return job("running epoch 8", seconds, Observed(tasks, **more), epochs=epochs)  # type: ignore[arg-type]


def titles(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.title) for finding in found[:2]]


def a_call_that_does_not_return_is_told_with_its_operator_subtask_process_and_line() -> None:
    found = epoch(12, TASK._replace(same_call_seconds=7.0))
    assert titles(found) == [("bad", "The operator worker stands still"), ("bad", "The job stands still")]
    assert found[0].detail == (
        "A call has not returned for 7 s, in subtask 2 on host host-a (process 42): it is at work (/srv/job.py:12): ask(n)."
    )


def a_call_that_computes_is_told_as_slow_at_first_and_as_standing_after_a_minute() -> None:
    computes = TASK._replace(computes=True, same_call_seconds=20.0)
    assert titles(epoch(25, computes)) == [("slow", "A call of the operator worker computes"), ("slow", "An epoch lasts")]
    assert titles(epoch(90, computes._replace(same_call_seconds=80.0)))[0] == ("bad", "The operator worker stands still")


def a_task_whose_calls_return_goes_on() -> None:
    found = epoch(30, TASK)
    assert [finding.kind for finding in found[:2]] == ["slow", "slow"]
    assert "Its tasks go on: worker, subtask 2 on host host-a, is at work" in found[0].detail


def a_task_slot_that_cannot_tell_itself_is_told_with_what_keeps_it() -> None:
    found = epoch(15, TASK._replace(same_call_seconds=9.0, fault="its process is stopped", where=""))
    assert titles(found)[0] == ("bad", "The operator worker stands still")
    assert "(process 42) has told nothing for 9 s: its process is stopped." in found[0].detail


def a_task_that_waits_for_the_storage_blames_no_function() -> None:
    found = epoch(15, TASK._replace(same_call_seconds=9.0, waits_for="the checkpoint storage", where="put (store.py:3)"))
    assert titles(found)[0] == ("bad", "A task of worker waits for the checkpoint storage")
    assert found[0].detail.endswith("(process 42), at put (store.py:3).")


def a_storage_that_does_not_answer_is_told_and_no_task_is_blamed_for_it() -> None:
    found = epoch(13, unanswered={"The checkpoint storage s3://bucket": 6.0}, spark=SparkTasks(2, 0))
    assert titles(found) == [("bad", "The checkpoint storage s3://bucket does not answer"), ("bad", "The job stands still")]


def a_storage_that_answers_late_is_no_standstill() -> None:
    assert "answer" not in epoch(9, unanswered={"The checkpoint storage s3://bucket": 2.0})[0].title


def a_task_that_spark_does_not_start_waits_for_a_core() -> None:
    found = epoch(13, spark=SparkTasks(0, 3))
    assert titles(found) == [("bad", "Spark starts no task of the epoch"), ("bad", "The job stands still")]
    assert found[0].detail == "All 3 that are due have waited for 13 s: no executor has a free core."


def the_first_epoch_of_a_start_waits_for_executors_that_start() -> None:
    waits = SparkTasks(0, 3)
    found = epoch(20, epochs=0, spark=waits)
    assert titles(found) == [("slow", "The first epoch starts")]
    assert (
        found[0].detail == "It runs for 20 s. In Spark none of its 3 tasks that are due has a free core of an executor yet."
    )
    assert titles(epoch(STARTS_S, epochs=0, spark=waits))[0] == ("bad", "Spark starts no task of the epoch")


def a_task_that_waits_for_a_core_while_another_goes_on_is_no_standstill() -> None:
    assert titles(epoch(30, TASK, spark=SparkTasks(1, 3)))[0] == ("slow", "A long epoch")


@pytest.mark.parametrize(
    ("spark", "said"),
    [
        (SparkTasks(1, 0), "In Spark 1 of its tasks run"),
        (SparkTasks(0, 0), "Spark has no task of it left"),
        (None, "wait for free cores"),
    ],
)
def an_epoch_of_which_nothing_is_heard_is_told_with_what_spark_knows(spark: SparkTasks | None, said: str) -> None:
    found = epoch(13, spark=spark)
    assert titles(found) == [("bad", "No task of the epoch tells what it does"), ("bad", "The job stands still")]
    assert said in found[0].detail


def the_first_epoch_of_a_start_has_time_to_start_processes() -> None:
    assert titles(epoch(20, epochs=0))[0] == ("slow", "The first epoch starts")
    assert titles(epoch(STARTS_S, epochs=0))[0] == ("bad", "No task of the epoch tells what it does")


@pytest.mark.parametrize(
    ("what", "needs"),
    [
        ("committing the output of shops", "the system that the sink writes to"),
        ("planning the input of payments", "the system that the source reads from"),
        ("storing the checkpoint's metadata", "the checkpoint storage"),
    ],
)
def a_wait_of_the_driver_is_told_with_its_line_and_the_system_that_it_needs(what: str, needs: str) -> None:
    lines: Mapping[str, str] = {what: "commit (/srv/sink.py:7): connection.commit()"}
    found = job(what, 9.0, Observed(lines=lines))
    assert titles(found) == [("bad", f"The driver does not get on with {what}"), ("bad", "The job stands still")]
    assert "is at commit (/srv/sink.py:7): connection.commit()." in found[0].detail
    assert needs in found[0].remedy


def the_lines_are_shown_without_their_text_where_data_of_records_is_hidden() -> None:
    seen = Observed((TASK,), lines={"planning": "plan (/srv/source.py:7): key = 'secret'"}).without_text()
    assert (seen.tasks[0].where, dict(seen.lines)) == ("work (/srv/job.py:12)", {"planning": "plan (/srv/source.py:7)"})


def a_split_without_records_for_which_event_time_waits_is_told_with_its_name() -> None:
    metrics = JobMetrics("a" * 32, "payments")
    metrics.status("RUNNING")
    silent = HoldingSplit("payments", "payments-3", 40.0), HoldingSplit("payments", "payments-1", 12.0)
    metrics.epoch_finished(EpochStats(1, 0, 1000.0, 500, 5, PHASES, holding=silent))
    found = findings(metrics.snapshot())
    assert titles(found)[0] == ("slow", "Event time waits for a split without records")
    assert "payments-3 of the source payments has had none for 40 s" in found[0].detail
    assert "1 other splits" in found[0].detail
    assert "with_idleness" in found[0].remedy
