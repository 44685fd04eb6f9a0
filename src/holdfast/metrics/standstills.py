"""Tells what of a job does not go on, and why, from what its driver has observed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.metrics.job import RUNNING_EPOCH, JobSnapshot
from holdfast.metrics.stats import SparkTasks, StandingTask

__all__ = ["LASTS_S", "SILENT_S", "STANDS_S", "Finding", "silent_sources", "standstills"]

LASTS_S = 8.0
"""What the driver does for so many seconds lasts."""
STANDS_S = 6.0
"""A call that has not returned for so many seconds stands still."""
COMPUTES_S = 60.0
"""A call that uses the processor stands still after so many seconds; before, it is told as slow."""
SILENT_S = 12.0
"""An epoch of which no task tells anything for so many seconds stands still."""
STARTS_S = 45.0
"""The same for the first epoch of a start: executors, Spark's workers and the task slots start, and state is restored."""
UNANSWERED_S = 4.0
"""A system that has not answered for so many seconds does not answer."""

_MOST = 3
_NEEDS = {
    "committing": "Look at the system that the sink writes to.",
    "planning": "Look at the system that the source reads from.",
    "opening": "Look at the system that the source reads from.",
    "telling": "Look at the system that the source reads from.",
}
"""What an activity of the driver needs, by its first word."""
_NEEDS_STORAGE = "Look at the checkpoint storage."
_FORCE = "If it will not return, `holdfast cancel --force` ends the job; its next start computes the epoch again."


@dataclass(frozen=True)
class Finding:
    """One answer."""

    kind: str
    """``good``, ``slow`` or ``bad``."""
    title: str
    detail: str
    remedy: str = ""
    share: float = 0.0
    """The share of the time that it takes, from 0 to 1; 0: it is no matter of time."""
    vertex: str = ""
    """The id of the vertex concerned."""


def silent_sources(job: JobSnapshot) -> Iterator[Finding]:
    """The sources whose systems do not answer."""
    for seconds, why in job.silent.values():
        detail = f"{why}, for {seconds:.0f} s."
        yield Finding("bad", "A source does not answer", detail, "Look at the brokers and the network.")


def standstills(job: JobSnapshot) -> Iterator[Finding]:
    """What does not go on in the driver, in Spark or in a task. The titles have no figures that change."""
    unanswered = {what: seconds for what, seconds in job.observed.unanswered.items() if seconds >= UNANSWERED_S}
    for what, seconds in unanswered.items():
        yield Finding(
            "bad",
            f"{what} does not answer",
            f"The driver has asked it and waits for {seconds:.0f} s. The job waits for it, too.",
            "Look at that system and at the network; the job goes on when it answers.",
        )
    for what, seconds in job.activities.items():
        if seconds < LASTS_S:
            continue
        if what.startswith(RUNNING_EPOCH):
            yield from _epoch(job, seconds, bool(unanswered))
        else:
            line = job.observed.lines.get(what)
            yield Finding(
                "bad",
                f"The driver does not get on with {what}",
                f"It has lasted for {seconds:.0f} s{f', and is at {line}' if line else ''}. The job waits for it.",
                _NEEDS.get(what.split()[0], _NEEDS_STORAGE),
            )


def _epoch(job: JobSnapshot, seconds: float, explained: bool) -> Iterator[Finding]:
    """What is told of an epoch that lasts.

    Args:
        job: The job.
        seconds: The age of the epoch.
        explained: Whether a system is named already that keeps it.
    """
    seen = job.observed
    standing = [task for task in seen.tasks if task.fault or task.same_call_seconds >= STANDS_S]
    yield from map(_task, standing[:_MOST])
    if standing or explained:
        return
    starts = not _has_run(job) and seconds < STARTS_S
    if seen.spark is not None and seen.spark.waiting and not seen.spark.running and seconds >= SILENT_S and not starts:
        yield Finding(
            "bad",
            "Spark starts no task of the epoch",
            f"All {seen.spark.waiting} that are due have waited for {seconds:.0f} s: no executor has a free core.",
            "Look whether Spark has executors, and what else runs on their cores.",
        )
    elif seen.tasks:
        task = seen.tasks[0]
        doing = f"{task.operator}, subtask {task.subtask + 1} on host {task.host}, is at {task.where}"
        yield Finding("slow", "A long epoch", f"It runs for {seconds:.0f} s. Its tasks go on: {doing}.")
    elif seconds >= SILENT_S:
        yield Finding(
            "slow" if starts else "bad",
            "The first epoch starts" if starts else "No task of the epoch tells what it does",
            f"It runs for {seconds:.0f} s. {_tasks_in_spark(seen.spark)}",
            "" if starts else "Look at the hosts of the job, and at the logs of its task slots.",
        )


def _has_run(job: JobSnapshot) -> bool:
    """Whether an epoch was completed since the job started or restarted."""
    began = job.status_ms.get("RUNNING", job.started_ms)
    return any(not epoch.failure and epoch.started_ms >= began for epoch in job.profile.epochs)


def _tasks_in_spark(tasks: SparkTasks | None) -> str:
    if tasks is None:
        return (
            "Its tasks wait for free cores, or the processes of task slots are stopped or cannot be reached, or they cannot "
            "write to the checkpoint storage."
        )
    if not tasks.running and not tasks.waiting:
        return "Spark has no task of it left, and the driver has no results of them."
    if not tasks.running:
        return f"In Spark none of its {tasks.waiting} tasks that are due has a free core of an executor yet."
    return (
        f"In Spark {tasks.running} of its tasks run and {tasks.waiting} wait. The processes of their task slots start, are "
        "stopped, or cannot write to the checkpoint storage."
    )


def _task(task: StandingTask) -> Finding:
    """A task that stands still, or whose call computes for long."""
    where = f"in subtask {task.subtask + 1} on host {task.host} (process {task.process})"
    if task.fault:
        at = f" It was at {task.where}." if task.where else ""
        detail = f"The task slot {where} has told nothing for {task.same_call_seconds:.0f} s: {task.fault}.{at}"
        return Finding("bad", f"The operator {task.operator} stands still", detail, _FORCE)
    if task.waits_for:
        detail = f"It has waited for {task.same_call_seconds:.0f} s, {where}, at {task.where}."
        return Finding("bad", f"A task of {task.operator} waits for {task.waits_for}", detail, "Look at that system.")
    detail = f"A call has not returned for {task.same_call_seconds:.0f} s, {where}: it is at {task.where}."
    if task.computes and task.same_call_seconds < COMPUTES_S:
        return Finding("slow", f"A call of the operator {task.operator} computes", detail, _FORCE)
    return Finding("bad", f"The operator {task.operator} stands still", detail, _FORCE)
