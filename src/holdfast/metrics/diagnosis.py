"""Answers "what is slow, and why?" from a job's profile, the largest share of the time first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.metrics.job import RUNNING_EPOCH, TERMINAL, JobSnapshot, VertexSnapshot
from holdfast.metrics.profile import EpochRecord, VertexProfile
from holdfast.metrics.standstills import LASTS_S, Finding, silent_sources, standstills

__all__ = ["Finding", "findings", "stands_still"]

_WINDOW = 20
"""The number of latest epochs that count."""
_WORTH_TELLING = 0.05
_SKEWED = 1.5
_DOMINANT = 0.5
_MOST = 6
_RECENTLY_MS = 300_000
_SHORT_BACKLOG_S = 5.0
"""The time to read a backlog that is no cause for concern."""


def findings(job: JobSnapshot) -> list[Finding]:
    """What a user should know about the speed of a job: first whether it keeps up, then what takes its time."""
    epochs = [epoch for epoch in job.profile.epochs if not epoch.failure][-_WINDOW:]
    if not epochs:
        return list(_troubles(job))
    slow = sorted([*_phases(epochs, job), *_vertices(job)], key=lambda finding: -finding.share)
    return [*_troubles(job), _standing(job, epochs), *slow[:_MOST]]


def stands_still(job: JobSnapshot) -> list[str]:
    """The titles of what does not go on; empty: the job goes on, or has ended."""
    if job.status in TERMINAL:
        return []
    return [finding.title for finding in (*silent_sources(job), *standstills(job)) if finding.kind == "bad"]


def _troubles(job: JobSnapshot) -> Iterator[Finding]:
    if job.failures and (job.status == "FAILED" or job.now_ms - job.failures[0].timestamp_ms < _RECENTLY_MS):
        last = job.failures[0]
        where = f" in {last.task_name}" if last.task_name else ""
        what = "The job failed" if job.status == "FAILED" else "The job restarted within the last minutes"
        # An error of Holdfast's own is told by its message, which says what is wrong.
        name = last.text.strip().partition("\n")[0][:300] if last.exception_name == "Exception" else last.exception_name
        yield Finding("bad", what, f"{name}{where}.", "The page 'Failures and restarts' shows the traceback.")
    if job.status not in TERMINAL:
        yield from silent_sources(job)
        yield from standstills(job)
        yield from _held_back(job)


def _held_back(job: JobSnapshot) -> Iterator[Finding]:
    """The splits for which event time waits."""
    if job.holding:
        longest = max(job.holding, key=lambda each: each.seconds)
        others = f" {len(job.holding) - 1} other splits have none, either." if len(job.holding) > 1 else ""
        yield Finding(
            "slow",
            "Event time waits for a split without records",
            f"{longest.split} of the source {longest.source} has had none for {longest.seconds:.0f} s; others had some. "
            f"Windows and timers of event time do not fire.{others}",
            "If it may have none for long, WatermarkStrategy.with_idleness(...) lets the others go on without it.",
        )


def _standing(job: JobSnapshot, epochs: Sequence[EpochRecord]) -> Finding:
    backlog, idle = epochs[-1].backlog, job.profile.idle
    if job.status in TERMINAL:
        return Finding("good", "The job has ended", f"Its last epoch was {epochs[-1].number}.")
    if failed := [each for each in job.failures if each.timestamp_ms > epochs[-1].started_ms + epochs[-1].duration_ms]:
        return Finding(
            "bad",
            "The job has completed no epoch since it failed",
            f"Failures since epoch {epochs[-1].number}: {len(failed)}.",
            "The next epoch begins with the same input: what fails there is named above.",
        )
    rate = job.values["numRecordsInPerSecond"]
    if stands_still(job):
        return Finding(
            "bad", "The job stands still", f"Its last epoch was {epochs[-1].number}.", "What it waits for is listed above."
        )
    lasts = max((age for what, age in job.activities.items() if what.startswith(RUNNING_EPOCH)), default=0.0)
    if lasts >= LASTS_S:
        return Finding("slow", "An epoch lasts", f"Whether the job keeps up is known at its end; {backlog:,} records wait.")
    if backlog <= _SHORT_BACKLOG_S * rate:
        return Finding("good", "The job keeps up with its input", f"It waits for input {_percent(idle)} of the time.")
    seconds = max(1e-3, (epochs[-1].started_ms - epochs[0].started_ms) / 1000)
    shrinking = (epochs[0].backlog - backlog) / seconds
    detail = f"{backlog:,} records wait in the sources; it reads {rate:,.0f} a second."
    if shrinking > 0:
        return Finding(
            "slow", "The job catches up", f"{detail} At this speed it has caught up in {backlog / shrinking:,.0f} s."
        )
    return Finding("bad", "The job falls behind", detail, "What takes most of the time is listed below.")


def _phases(epochs: Sequence[EpochRecord], job: JobSnapshot) -> Iterator[Finding]:
    """What the driver waits for, beside the work of the tasks."""
    working = sum(epoch.duration_ms for epoch in epochs)
    running = 1 - job.profile.idle
    if working <= 0:
        return

    def share(milliseconds: float) -> float:
        return max(0.0, min(1.0, running * milliseconds / working))

    def of(phase: str) -> float:
        return 1000 * sum(epoch.phases.get(phase, 0.0) for epoch in epochs)

    around = sum(max(0.0, 1000 * epoch.phases.get("job", 0.0) - epoch.critical_ms) for epoch in epochs)
    for title, milliseconds, detail, remedy in (
        (
            "Waiting for commits",
            of("commit"),
            "An epoch waits until the output of the last one is committed.",
            "Look at the sink: Kafka's brokers, or the storage of files. Longer epochs commit less often.",
        ),
        (
            "Storing checkpoints",
            of("metadata"),
            "The metadata of a checkpoint is put into the storage.",
            "Use a storage nearer to the driver, or longer epochs (holdfast.epoch.target-duration).",
        ),
        (
            "Planning the input",
            of("plan"),
            "The sources are asked how much input there is.",
            "Look at the source's latency: Kafka's brokers, or directories with very many files.",
        ),
        (
            "Spark's own work",
            around,
            "Scheduling, shuffle, starting tasks, and waiting for free cores.",
            "Longer epochs share it among more records; a parallelism above the number of cores runs in waves.",
        ),
    ):
        if share(milliseconds) >= _WORTH_TELLING:
            each = milliseconds / len(epochs)
            yield Finding("slow", title, f"{detail} It takes {each:,.0f} ms of an epoch.", remedy, share(milliseconds))


def _vertices(job: JobSnapshot) -> Iterator[Finding]:
    for vertex in job.vertices:
        profile = job.profile.vertices.get(vertex.id)
        if profile is not None and profile.busy >= _WORTH_TELLING:
            if profile.skew >= _SKEWED:
                yield _skew(vertex, profile)
            yield _vertex(vertex, profile)


def _vertex(vertex: VertexSnapshot, profile: VertexProfile) -> Finding:
    """Why the vertex takes its time."""
    spent = sum(profile.phases.values())
    state = profile.phases.get("state", 0.0)
    if spent and state / spent >= _DOMINANT:
        return Finding(
            "slow",
            f"Writing the state of {vertex.name}",
            f"{_percent(state / spent)} of its time goes into the checkpoint.",
            "Longer epochs write a row that changes often only once; a time-to-live removes rows that nobody needs.",
            profile.busy,
            vertex.id,
        )
    read = profile.phases.get("read", 0.0)
    if profile.source_uid and spent and read / spent >= _DOMINANT:
        return Finding(
            "slow",
            f"Reading the source of {vertex.name}",
            f"{_percent(read / spent)} of its time is spent in the reader.",
            "Look at the network and the brokers; more partitions can be read by more subtasks.",
            profile.busy,
            vertex.id,
        )
    slowest = max(profile.operators, key=lambda operator: operator.share, default=None)
    if slowest is None or not slowest.share:
        return Finding("slow", vertex.name, "Its subtasks are busy.", share=profile.busy, vertex=vertex.id)
    each = (
        ""
        if slowest.us_per_record is None
        else f", {_micros(slowest.us_per_record)} µs for each record that the vertex reads"
    )
    sending = not slowest.uid
    return Finding(
        "slow",
        f"Sending the output of {vertex.name}" if sending else f"The operator {slowest.name}",
        f"It takes {_percent(slowest.share)} of the working time of {vertex.name}{each}.",
        "The time goes into key selectors, partitioning and pickling: send tuples or rows instead of large objects, and "
        "only the fields that are needed."
        if sending
        else "Make the function cheaper, or raise the parallelism if there are free cores.",
        profile.busy * slowest.share,
        vertex.id,
    )


def _skew(vertex: VertexSnapshot, profile: VertexProfile) -> Finding:
    busiest = max(range(len(profile.subtasks)), key=lambda i: profile.subtasks[i].busy)
    subtask, count = profile.subtasks[busiest], len(profile.subtasks)
    others = [other.busy for i, other in enumerate(profile.subtasks) if i != busiest]
    uneven = subtask.records * count >= _SKEWED
    records = f" It gets {_percent(subtask.records)} of the records." if uneven else " It gets no more records than others."
    few_keys = (
        "A few keys have most of the records; a sample of the edge in the dashboard names them. Aggregate before key_by, or "
        "make the key finer."
    )
    few_splits = "Few splits have most of the input: spread it over more partitions, or call rebalance()."
    return Finding(
        "slow",
        f"Subtask {busiest + 1} of {vertex.name} does most of the work",
        f"It is busy {_percent(subtask.busy)}, the others {_percent(sum(others) / len(others))} on average.{records}",
        (few_splits if profile.source_uid else few_keys) if uneven else "Its records cost more, or its host is slower.",
        profile.busy,
        vertex.id,
    )


def _micros(time: float) -> str:
    return f"{time:,.1f}" if time < 10 else f"{time:,.0f}"


def _percent(share: float) -> str:
    return f"{100 * max(0.0, min(1.0, share)):.0f} %"
