"""Turns the plan and the tasks' reports into the figures for the job's metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.ids import Epoch
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.errors import ConfigurationError
from holdfast.metrics.requests import Requests
from holdfast.metrics.stats import EpochStats, OperatorStats, StandbyStats, Straggler, SubtaskStats, VertexStats
from holdfast.metrics.user import merge
from holdfast.runtime.plan.plan import Chained, JobPlan, Vertex
from holdfast.runtime.plan.task_messages import SENDING, StandbyStatus, TaskReport
from holdfast.runtime.protocol.epoch import EpochInFlight
from holdfast.runtime.protocol.instructions import EpochFinished
from holdfast.runtime.records.samples import Edge

__all__ = ["edge_between", "epoch_finished", "epoch_stats", "plan_shape", "takeovers"]


def shown_id(vertex: int) -> str:
    """A vertex's id in Flink's format."""
    return f"{vertex:032x}"


def edge_between(plan: JobPlan, sender: str, receiver: str) -> Edge:
    """The edge between two vertices with ids in Flink's format.

    Raises:
        ConfigurationError: there is none.
    """
    for vertex in plan.vertices:
        for target in {channel.target for chained in vertex.chain for channel in chained.channels}:
            if (shown_id(vertex.id), shown_id(target)) == (sender, receiver):
                return vertex.id, target
    raise ConfigurationError(f"the job has no edge from vertex {sender!r} to vertex {receiver!r}")


def plan_shape(plan: JobPlan) -> dict[str, Any]:
    """The job's vertices and the channels between them, in the shape of Flink's ``/jobs/<id>/plan``."""
    inputs: dict[int, list[dict[str, Any]]] = {vertex.id: [] for vertex in plan.vertices}
    for vertex in plan.vertices:
        for channel in (channel for chained in vertex.chain for channel in chained.channels):
            into = inputs[channel.target]
            into.append(
                {
                    "num": len(into),
                    "id": shown_id(vertex.id),
                    "ship_strategy": channel.partitioning.value,
                    "exchange": "pipelined_bounded",
                }
            )
    return {
        "nodes": [
            {
                "id": shown_id(vertex.id),
                "parallelism": vertex.parallelism,
                "operator": "",
                "operator_strategy": "",
                "description": vertex.name,
                "inputs": inputs[vertex.id],
                "optimizer_properties": {},
            }
            for vertex in plan.vertices
        ]
    }


def epoch_finished(
    plan: JobPlan, epoch: EpochInFlight, reports: Sequence[TaskReport], now: float, requests: Requests, interval: float
) -> tuple[EpochFinished, float]:
    """The notice of a completed epoch, and the seconds from its start to ``now``.

    Args:
        plan: The job.
        epoch: The epoch.
        reports: The reports of its tasks.
        now: The time, in seconds.
        requests: The driver's requests to the checkpoint storage since the previous epoch.
        interval: The target time between two checkpoints, in seconds.
    """
    seconds = now - epoch.started
    backlog = {uid: planned.input.backlog for uid, planned in epoch.inputs.items()}
    stats = epoch_stats(plan, epoch.number, epoch.planned_ms, seconds, reports, epoch.phases, backlog)
    sync_ms = 1000 * max((report.phases.get("state", 0.0) for report in reports), default=0.0)
    requests = Requests(*map(sum, zip(requests, *(report.requests for report in reports))))
    stats = replace(
        stats,
        requests=requests,
        requests_cost=plan.settings.prices.cost(requests),
        interval_ms=1000 * interval,
        holding=tuple(epoch.holding),
    )
    return EpochFinished(stats, epoch.checkpoint, sync_ms, len(reports)), seconds


def epoch_stats(
    plan: JobPlan,
    epoch: Epoch,
    started_ms: int,
    seconds: float,
    reports: Sequence[TaskReport],
    phases: Mapping[str, float],
    backlog: Mapping[str, int],
) -> EpochStats:
    """The figures of an epoch, for the metrics."""
    vertices = []
    of_vertex: dict[int, list[TaskReport]] = {vertex.id: [] for vertex in plan.vertices}
    for report in sorted(reports, key=lambda each: each.task):
        of_vertex[report.task[0]].append(report)
    for vertex in plan.vertices:
        tasks = of_vertex[vertex.id]
        vertices.append(
            VertexStats(
                id=shown_id(vertex.id),
                name=vertex.name,
                parallelism=vertex.parallelism,
                records_in=sum(r.records_in for r in tasks),
                records_out=sum(r.records_out for r in tasks),
                busy_ms=1000 * sum(r.busy_seconds for r in tasks),
                late_dropped=sum(r.late_dropped for r in tasks),
                level=vertex.level,
                source_uid="" if vertex.source is None else vertex.source.uid,
                phases=_longest(tasks),
                subtasks=tuple(
                    SubtaskStats(1000 * r.busy_seconds, r.records_in, r.watermark, r.channel_state) for r in tasks
                ),
                operators=(*(_operator(chained, tasks) for chained in vertex.chain), *_sending(vertex, tasks)),
            )
        )
    sources = {v.id for v in plan.vertices if v.source is not None}
    found = [r.found_state for r in reports if r.found_state is not None]
    longest = {f"task.{name}": spent for name, spent in _longest(reports).items()}
    return EpochStats(
        epoch=epoch,
        started_ms=started_ms,
        duration_ms=1000 * seconds,
        records_in=sum(r.records_in for r in reports if r.task[0] in sources),
        records_out=sum(r.records_written for r in reports),
        phases={**phases, **longest},
        watermark=min((r.watermark for r in reports), default=MIN_TIMESTAMP),
        backlog=backlog,
        vertices=tuple(vertices),
        states_needed=len(found),
        states_found=sum(found),
        user_metrics=merge(r.user_metrics for r in reports),
        straggler=_straggler(vertices),
        standbys=tuple(_standby(plan, status) for report in reports for status in report.standbys),
        late=tuple(late for report in reports for late in report.late),
    )


def takeovers(plan: JobPlan, reports: Sequence[TaskReport]) -> list[StandbyStats]:
    """The standby copies that subtasks have found on their new hosts."""
    return [_standby(plan, report.stood_by) for report in reports if report.stood_by is not None]


def _standby(plan: JobPlan, status: StandbyStatus) -> StandbyStats:
    vertex, number = status.task
    name = next(each.name for each in plan.vertices if each.id == vertex)
    lag_ms = None if status.lag_seconds is None else 1000 * status.lag_seconds
    return StandbyStats(name, number, status.host, status.lag, lag_ms)


def _longest(reports: Sequence[TaskReport]) -> dict[str, float]:
    """By phase: the longest time that a task spent in it, in seconds."""
    longest: dict[str, float] = {}
    for report in reports:
        for name, spent in report.phases.items():
            longest[name] = max(longest.get(name, 0.0), spent)
    return longest


def _operator(chained: Chained, tasks: Sequence[TaskReport]) -> OperatorStats:
    sizes = [task.state[chained.uid].size for task in tasks if chained.uid in task.state]
    seconds = sum(task.operator_seconds.get(chained.uid, 0.0) for task in tasks)
    return OperatorStats(chained.uid, chained.name, 1000 * seconds, sum(sizes), max(sizes, default=0))


def _sending(vertex: Vertex, tasks: Sequence[TaskReport]) -> list[OperatorStats]:
    """The time taken by the vertex's outputs: key selectors, partitioning and frames."""
    if not any(chained.channels for chained in vertex.chain):
        return []
    return [OperatorStats(SENDING, "Sending", 1000 * sum(task.operator_seconds.get(SENDING, 0.0) for task in tasks))]


def _straggler(vertices: Sequence[VertexStats]) -> Straggler | None:
    found = []
    for vertex in vertices:
        if (n := len(vertex.subtasks)) > 1:
            busy = [subtask.busy_ms for subtask in vertex.subtasks]
            most = max(busy)
            found.append(Straggler(vertex.id, busy.index(most), most, (vertex.busy_ms - most) / (n - 1)))
    return max(found, key=lambda straggler: straggler.busy_ms - straggler.typical_ms, default=None)
