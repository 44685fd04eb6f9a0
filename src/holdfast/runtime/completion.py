"""Turns an epoch's task reports into a checkpoint, or into the reason why the epoch failed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorCheckpoint, SubtaskState, has_output
from holdfast.connectors.base import Committable
from holdfast.errors import HoldfastError, IncompatibleState, UserCodeError
from holdfast.runtime.channels import ChannelIncomplete, seen_attempts, senders
from holdfast.runtime.plan import JobPlan
from holdfast.runtime.task_messages import OperatorReport, TaskId, TaskReport, task_name

__all__ = [
    "check_resumable",
    "committables_of",
    "failure_of",
    "obstacles",
    "operator_states",
    "tokens_of",
    "unclaimed",
]


def failure_of(plan: JobPlan, reports: Sequence[TaskReport]) -> tuple[BaseException, str] | None:
    """Why the epoch failed, and in which task; None if it succeeded.

    Of several failures, the cause is preferred to its consequences: user errors first, lost channels last.
    """
    by_task: dict[TaskId, TaskReport] = {report.task: report for report in reports}
    names = {(v.id, n): task_name(v.name, n, v.parallelism) for v in plan.vertices for n in range(v.parallelism)}

    def rank(report: TaskReport) -> int:
        if isinstance(report.error, UserCodeError):
            return 0
        return 2 if isinstance(report.error, ChannelIncomplete) else 1

    failed = sorted((r for r in reports if r.error is not None), key=rank)
    if failed:
        assert failed[0].error is not None
        return failed[0].error, names[failed[0].task]
    missing = [names[task] for task in names if task not in by_task]
    if missing:
        return HoldfastError(f"no report from {', '.join(missing)}"), missing[0]
    return _mixed_attempts(plan, by_task)


def _mixed_attempts(plan: JobPlan, reports: Mapping[TaskId, TaskReport]) -> tuple[BaseException, str] | None:
    """The failure if Spark ran a sender again during the epoch, and a receiver has read another attempt than reported."""
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
    """The state of all operators in the checkpoint that follows ``base``, by uid. Unchanged states stay the same objects."""
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
            if not (is_head or subtasks or generates):
                continue
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
                watermarks=[task.event_time for task in tasks] if is_head else [],
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
    """The token of the state that each subtask continues: the attempt that made it, or the stored checkpoint."""
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


def check_resumable(plan: JobPlan, checkpoint: CheckpointMetadata, savepoint: str | None = None) -> None:
    """Check that the program can resume from the checkpoint.

    Args:
        plan: The program.
        checkpoint: The checkpoint.
        savepoint: The savepoint's directory, if the checkpoint is the copy of one.

    Raises:
        IncompatibleState: it cannot; the message names the difference and the remedy.
    """
    for reason in obstacles(plan, checkpoint, savepoint):
        raise IncompatibleState(reason)


def unclaimed(plan: JobPlan, checkpoint: CheckpointMetadata) -> list[str]:
    """The operators, sources and sinks with state in the checkpoint that the program does not have."""
    operators = {chained.uid for vertex in plan.vertices for chained in vertex.chain}
    sources = {vertex.source.uid for vertex in plan.vertices if vertex.source is not None}
    outputs = {uid for uid, _, _ in checkpoint.committables if has_output(uid)}
    return [
        *(
            f"{operator.name!r} (uid {uid!r})"
            for uid, operator in checkpoint.operators.items()
            if uid not in operators and not all(subtask.empty for subtask in operator.subtasks)
        ),
        *(f"source {uid!r}" for uid in checkpoint.sources if uid not in sources),
        *(f"sink {uid!r} (prepared output)" for uid in sorted(outputs - operators)),
    ]


def obstacles(plan: JobPlan, checkpoint: CheckpointMetadata, savepoint: str | None = None) -> Iterator[str]:
    """Why the program cannot resume from the checkpoint: each difference with its remedy.

    Whether the types of states fit is only known when the operators have declared them.
    """
    operators = {chained.uid: vertex for vertex in plan.vertices for chained in vertex.chain}
    where = f"checkpoint {checkpoint.checkpoint_id}" if savepoint is None else f"savepoint {savepoint}"
    where += f" of job {checkpoint.job_name!r}"
    missing = unclaimed(plan, checkpoint)
    if missing and not plan.settings.ignore_unclaimed_state:
        remedy = (
            "Uids that are not given come from the shape of the job and change with it: give the operators their uid(...) "
            "back, or set execution.state-recovery.ignore-unclaimed-state to true to go on without that state"
        )
        sources = {vertex.source.uid for vertex in plan.vertices if vertex.source is not None}
        if not {*checkpoint.operators, *checkpoint.sources} & {*operators, *sources}:
            remedy = f"Nothing in it belongs to this program: it may be the state of another one. {remedy}"
        yield f"{where} has state of {', '.join(missing)}, which the program does not have (any more). {remedy}"
    receiving = {vertex.chain[0].uid for vertex in plan.vertices if vertex.source is None}
    for uid, operator in checkpoint.operators.items():
        if uid not in receiving and uid in operators and any(state.has_channel_state for state in operator.subtasks):
            yield (
                f"{where} has channel state of operator {operator.name!r} (uid {uid!r}), which is not the first of its task "
                "any more: stop the old program with a savepoint, which holds no channel state, and start this one from it"
            )
    for uid, vertex in operators.items():
        stored = checkpoint.operators.get(uid)
        if stored is None or not any(subtask.keyed for subtask in stored.subtasks):
            continue
        if stored.max_parallelism != vertex.max_parallelism:
            yield (
                f"operator {stored.name!r} (uid {uid!r}) has max parallelism {stored.max_parallelism} in {where} and "
                f"{vertex.max_parallelism} in the program; it fixes the key groups: set it back, or write "
                "the state anew for another one (SavepointWriter.change_max_parallelism)"
            )


def committables_of(checkpoint: CheckpointMetadata | None) -> list[Committable]:
    """The output that becomes visible with a checkpoint."""
    return [] if checkpoint is None else [Committable(*entry) for entry in checkpoint.committables]
