"""Turns an epoch's task reports into a checkpoint, or into the reason why the epoch failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorCheckpoint, SubtaskState
from holdfast.connectors.base import Committable
from holdfast.errors import HoldfastError, UserCodeError
from holdfast.runtime.channels.channels import ChannelIncomplete, seen_attempts, senders
from holdfast.runtime.plan.definitions import continued
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import OperatorReport, TaskId, TaskReport, task_name
from holdfast.runtime.time.clock import EventTime

__all__ = [
    "committables_of",
    "failure_of",
    "operator_states",
    "tokens_of",
]


def failure_of(plan: JobPlan, reports: Sequence[TaskReport]) -> tuple[BaseException, str] | None:
    """Why the epoch failed, and in which task; None if it succeeded.

    Of several failures, the cause takes precedence over its consequences: user errors first, lost channels last.
    """
    by_task: dict[TaskId, TaskReport] = {report.task: report for report in reports}

    def name(task: TaskId) -> str:
        vertex = next(each for each in plan.vertices if each.id == task[0])
        return task_name(vertex.name, task[1], vertex.parallelism)

    def rank(report: TaskReport) -> int:
        if isinstance(report.error, UserCodeError):
            return 0
        return 2 if isinstance(report.error, ChannelIncomplete) else 1

    failed = sorted((r for r in reports if r.error is not None), key=rank)
    if failed:
        assert failed[0].error is not None
        return failed[0].error, name(failed[0].task)
    missing = [name((v.id, n)) for v in plan.vertices for n in range(v.parallelism) if (v.id, n) not in by_task]
    if missing:
        return HoldfastError(f"no report from {', '.join(missing)}"), missing[0]
    return _mixed_attempts(plan, by_task)


def _mixed_attempts(plan: JobPlan, reports: Mapping[TaskId, TaskReport]) -> tuple[BaseException, str] | None:
    """The failure if Spark reran a sender within the epoch, and a receiver read another attempt than the reported one."""
    vertices = {vertex.id: vertex for vertex in plan.vertices}
    for sender in plan.vertices:
        attempts = [reports[(sender.id, n)].attempt for n in range(sender.parallelism)]
        expected: dict[range, bytes] = {}
        for channel in (c for chained in sender.chain for c in chained.channels):
            receiver = vertices[channel.target]
            for n in range(receiver.parallelism):
                report = reports[(receiver.id, n)]
                part = senders(channel.partitioning, n, sender.parallelism, receiver.parallelism)
                if part not in expected:
                    expected[part] = seen_attempts(attempts[part.start : part.stop])
                if report.seen.get(channel.id, expected[part]) != expected[part]:
                    name = task_name(receiver.name, n, receiver.parallelism)
                    return (
                        ChannelIncomplete(f"{name} read another attempt of a subtask of {sender.name} than was reported"),
                        name,
                    )
    return None


def operator_states(
    plan: JobPlan, reports: Sequence[TaskReport], base: CheckpointMetadata | None = None
) -> dict[str, OperatorCheckpoint]:
    """The state of all operators in the checkpoint after ``base``, by uid. An unchanged state stays the same object."""
    by_task = {report.task: report for report in reports}
    states = {}
    for vertex in plan.vertices:
        tasks = [by_task[(vertex.id, n)] for n in range(vertex.parallelism)]
        for chained in vertex.chain:
            is_head = chained is vertex.chain[0]
            told = [task.state.get(chained.uid, _STATELESS) for task in tasks]
            before = _STARTED if base is None else base.operators.get(chained.uid, _STARTED)
            subtasks = _subtasks(before, told)
            generates = any(report.generator is not None for report in told)
            timed = is_head or bool(subtasks) or generates or chained.factory.state is not StateKind.NONE
            if not timed:
                continue
            times = [task.event_times.get(chained.uid, EventTime()) for task in tasks]
            schemas = before.schemas | {name: schema for report in told for name, schema in report.schemas.items()}
            used = {state.keyed[-1].schema for state in subtasks if state.keyed}
            states[chained.uid] = OperatorCheckpoint(
                name=chained.name,
                uid_given=chained.uid_given,
                max_parallelism=vertex.max_parallelism,
                parallelism=vertex.parallelism,
                schemas={name: schema for name, schema in schemas.items() if name in used},
                listed={name: listed for report in told for name, listed in report.listed.items()},
                subtasks=subtasks,
                definition=continued(chained.factory, before).definition() if subtasks else None,
                watermarks=[time.watermark for time in times],
                ahead=[ahead for time in times for ahead in time.ahead],
                generators=[report.generator for report in told] if generates else [],
                attempts=[task.attempt for task in tasks] if is_head else [],
            )
    return states


_EMPTY = SubtaskState()
_STATELESS = OperatorReport()
_STARTED = OperatorCheckpoint("")
"""The state of an operator before its first checkpoint."""


def _subtasks(before: OperatorCheckpoint, told: Sequence[OperatorReport]) -> list[SubtaskState]:
    """The states of all subtasks; empty for an operator without keyed and listed state."""
    old = before.subtasks if len(before.subtasks) == len(told) else [_EMPTY] * len(told)
    states = [
        state if report.change is None else report.change.applied_to(state) for report, state in zip(told, old, strict=True)
    ]
    return states if any(state != _EMPTY for state in states) else []


def tokens_of(plan: JobPlan, checkpoint: CheckpointMetadata | None) -> dict[TaskId, str]:
    """The token of the state that each subtask continues: the attempt that produced it, or the stored checkpoint."""
    if checkpoint is None:
        return {}
    tokens = {}
    for vertex in plan.vertices:
        head = checkpoint.operators.get(vertex.chain[0].uid)
        attempts = [] if head is None else head.attempts
        if len(attempts) != vertex.parallelism:
            attempts = [f"checkpoint {checkpoint.checkpoint_id}"] * vertex.parallelism
        if any(chained.uid in checkpoint.operators for chained in vertex.chain):
            tokens.update({(vertex.id, n): attempt for n, attempt in enumerate(attempts)})
    return tokens


def committables_of(checkpoint: CheckpointMetadata | None) -> list[Committable]:
    """The output that becomes visible with a checkpoint."""
    return [] if checkpoint is None else [Committable(*entry) for entry in checkpoint.committables]
