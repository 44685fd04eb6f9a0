"""Whether a program can resume from a checkpoint, as far as the checkpoint's metadata shows. Pure.

The driver refuses a program with any obstacle before it starts anything. Whether the types of states fit is known only when
the operators have declared them, in the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.checkpoint.metadata import CHANNEL_STATE, CheckpointMetadata, OperatorCheckpoint, has_output
from holdfast.checkpoint.paths import JobPaths
from holdfast.connectors.base import Committable, JudgingSink, JudgingSource, Sink
from holdfast.errors import IncompatibleState
from holdfast.runtime.channels.channel_state import other_inputs
from holdfast.runtime.plan.definitions import changed_definitions
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.plan.plan import JobPlan, SourceSpec, Vertex
from holdfast.runtime.protocol.sources import has_finished

__all__ = ["Obstacle", "Unclaimed", "check_resumable", "committable_now", "obstacles", "unclaimed", "with_key_groups"]

_WITHOUT_CHANNEL_STATE = "stop the old program with a savepoint, which holds no channel state, and start this one from it"


class Obstacle(NamedTuple):
    """A difference that prevents the program from resuming."""

    uid: str
    """The uid of the source, operator or sink; empty if there are several."""
    reason: str
    """The difference, with the remedy."""


def check_resumable(plan: JobPlan, checkpoint: CheckpointMetadata, savepoint: str | None = None) -> JobPlan:
    """Check that the program can resume from the checkpoint, and return its plan with the checkpoint's key groups.

    Args:
        plan: The program.
        checkpoint: The checkpoint.
        savepoint: The savepoint's directory, if the checkpoint is the copy of one; None or empty otherwise.

    Raises:
        IncompatibleState: it cannot; the message names the difference and the remedy.
    """
    plan = with_key_groups(plan, checkpoint)
    for obstacle in obstacles(plan, checkpoint, savepoint):
        raise IncompatibleState(obstacle.reason)
    return plan


def with_key_groups(plan: JobPlan, checkpoint: CheckpointMetadata) -> JobPlan:
    """The plan with the checkpoint's number of key groups for each vertex whose number the program does not set."""
    vertices = tuple(_with_key_groups(vertex, checkpoint) for vertex in plan.vertices)
    return plan if vertices == plan.vertices else replace(plan, vertices=vertices)


def _with_key_groups(vertex: Vertex, checkpoint: CheckpointMetadata) -> Vertex:
    stored = {checkpoint.operators[each.uid].max_parallelism for each in vertex.chain if each.uid in checkpoint.operators}
    if vertex.max_parallelism_given or not stored - {vertex.max_parallelism}:
        return vertex
    return replace(vertex, max_parallelism=min(stored))


@dataclass(frozen=True)
class Unclaimed:
    """Something with state in a checkpoint that the program does not have."""

    kind: str
    """``source``, ``operator`` or ``sink``."""
    name: str
    uid: str
    parallelism: int = 0
    """Parallelism in the checkpoint; 0 for sources and sinks."""
    states: str = ""
    """The states that an operator of the program no longer uses."""

    def __str__(self) -> str:
        if self.kind == "operator":
            return f"{self.name!r} (uid {self.uid!r}{f', its {self.states}' if self.states else ''})"
        return f"source {self.uid!r}" if self.kind == "source" else f"sink {self.uid!r} (prepared output)"


def unclaimed(plan: JobPlan, checkpoint: CheckpointMetadata) -> list[Unclaimed]:
    """The operators, sources and sinks with state in the checkpoint that the program does not have."""
    kinds = {chained.uid: chained.factory.state for vertex in plan.vertices for chained in vertex.chain}
    sources = {vertex.source.uid for vertex in plan.vertices if vertex.source is not None}
    outputs = {uid for uid, _, _ in checkpoint.committables if has_output(uid)}
    found = []
    for uid, operator in checkpoint.operators.items():
        unused = _unused(operator, kinds[uid]) if uid in kinds else ""
        if unused or (uid not in kinds and not all(subtask.empty for subtask in operator.subtasks)):
            found.append(Unclaimed("operator", operator.name, uid, operator.parallelism, unused))
    found += [Unclaimed("source", uid, uid) for uid in checkpoint.sources if uid not in sources]
    return [*found, *(Unclaimed("sink", uid, uid) for uid in sorted(outputs - _sinks(plan).keys()))]


def _unused(operator: OperatorCheckpoint, kinds: StateKind) -> str:
    """The operator's state, for messages, of kinds that the program's operator lacks: it would be lost."""
    keyed = any(next(each.handles(), None) for state in operator.subtasks for each in state.keyed)
    lists = (parts for state in operator.subtasks for name, parts in state.lists.items() if name != CHANNEL_STATE)
    listed = any(len(part) for parts in lists for part in parts)
    unused = [
        *(["keyed state"] if keyed and StateKind.KEYED not in kinds else []),
        *(["operator state"] if listed and StateKind.LISTED not in kinds else []),
    ]
    return " and ".join(unused)


def _sinks(plan: JobPlan) -> dict[str, Sink]:
    return {
        chained.uid: chained.factory.written_sink
        for vertex in plan.vertices
        for chained in vertex.chain
        if chained.factory.written_sink is not None
    }


def obstacles(plan: JobPlan, checkpoint: CheckpointMetadata, savepoint: str | None = None) -> Iterator[Obstacle]:
    """Why the program cannot resume from the checkpoint, whose key groups the plan has: each difference, with its remedy."""
    where = f"checkpoint {checkpoint.checkpoint_id}" if not savepoint else f"savepoint {savepoint}"
    where += f" of job {checkpoint.job_name!r}"
    if not savepoint and checkpoint.job_name != plan.name and JobPaths.of(checkpoint.job_name) == JobPaths.of(plan.name):
        yield Obstacle(
            "",
            f"the directory {JobPaths.of(plan.name).directory!r} of the job {plan.name!r} is that of another one: it has "
            f"{where}. The names of both give this directory: choose another name",
        )
    yield from _not_claimed(plan, checkpoint, where)
    for vertex in plan.vertices:
        if vertex.source is not None:
            yield from _position(vertex.source, checkpoint, where)
    yield from _prepared(plan, checkpoint, where)
    for each in (changed for vertex in plan.vertices for changed in changed_definitions(vertex, checkpoint.operators)):
        yield Obstacle(
            each.uid,
            f"operator {each.name!r} (uid {each.uid!r}) cannot go on with its state in {where}: {each.reason}. Set it "
            "back, or give the operator another uid to begin without that state",
        )
    vertices = {chained.uid: vertex for vertex in plan.vertices for chained in vertex.chain}
    for uid, operator in checkpoint.operators.items():
        if uid in vertices:
            yield from _channel_state(vertices[uid], uid, operator, where)
    for uid, vertex in vertices.items():
        stored = checkpoint.operators.get(uid)
        if stored is None or not any(subtask.keyed for subtask in stored.subtasks):
            continue
        if vertex.parallelism > stored.max_parallelism:
            yield Obstacle(
                uid,
                f"operator {stored.name!r} (uid {uid!r}) has parallelism {vertex.parallelism}, but only "
                f"{stored.max_parallelism} key groups to share out in {where}: lower its parallelism, or write the "
                "state anew for more of them (SavepointWriter.change_max_parallelism)",
            )
        elif stored.max_parallelism != vertex.max_parallelism:
            yield Obstacle(
                uid,
                f"operator {stored.name!r} (uid {uid!r}) has max parallelism {stored.max_parallelism} in {where} and "
                f"{vertex.max_parallelism} in the program; it fixes the key groups: set it back, or write "
                "the state anew for another one (SavepointWriter.change_max_parallelism)",
            )


def _not_claimed(plan: JobPlan, checkpoint: CheckpointMetadata, where: str) -> Iterator[Obstacle]:
    missing = unclaimed(plan, checkpoint)
    if not missing or plan.settings.ignore_unclaimed_state:
        return
    remedy = (
        "Uids that are not given come from the shape of the job and change with it: give the operators their uid(...) "
        "back, rename them in a savepoint (SavepointWriter.change_operator_identifier), or set "
        "execution.state-recovery.ignore-unclaimed-state to true to go on without that state"
    )
    known = {chained.uid for vertex in plan.vertices for chained in vertex.chain}
    known |= {vertex.source.uid for vertex in plan.vertices if vertex.source is not None}
    if not {*checkpoint.operators, *checkpoint.sources} & known:
        remedy = (
            "Nothing in it belongs to this program: it may be the state of another one, or of another job of this one, "
            f"which execution.state-recovery.job-name would name. {remedy}"
        )
    yield Obstacle(
        "", f"{where} has state of {', '.join(map(str, missing))}, which the program does not have (any more). {remedy}"
    )


def _position(spec: SourceSpec, checkpoint: CheckpointMetadata, where: str) -> Iterator[Obstacle]:
    """Why a source cannot continue from its stored position; a source that has ended is not started again."""
    stored = checkpoint.sources.get(spec.uid)
    if stored is None or stored.enumerator is None or has_finished(stored) or not isinstance(spec.source, JudgingSource):
        return
    try:
        spec.source.check_position(stored.enumerator)
    except IncompatibleState as error:
        yield Obstacle(
            spec.uid,
            f"source {spec.name!r} (uid {spec.uid!r}) cannot go on from its position in {where}: {error}; or give the "
            "source another uid to begin without its position",
        )


def _prepared(plan: JobPlan, checkpoint: CheckpointMetadata, where: str) -> Iterator[Obstacle]:
    """Why a sink cannot commit its prepared output."""
    refused = set()
    sinks = _sinks(plan)
    for uid, _, data in checkpoint.committables:
        sink = sinks.get(uid)
        if isinstance(sink, JudgingSink) and uid not in refused:
            try:
                sink.check_prepared(data)
            except IncompatibleState as error:
                refused.add(uid)
                yield Obstacle(
                    uid,
                    f"sink (uid {uid!r}) cannot commit its output in {where}: {error}; stop the old program with a "
                    "savepoint, whose output is committed, and start this one from it",
                )


def committable_now(plan: JobPlan, committables: Sequence[Committable]) -> list[Committable]:
    """The committables of a checkpoint that the program does not continue from, as far as its sinks can commit them."""
    sinks = _sinks(plan)
    found = []
    for each in committables:
        sink = sinks.get(each.uid)
        if isinstance(sink, JudgingSink):
            with suppress(IncompatibleState):
                sink.check_prepared(each.data)
                found.append(each)
        else:
            found.append(each)
    return found


def _channel_state(vertex: Vertex, uid: str, operator: OperatorCheckpoint, where: str) -> Iterator[Obstacle]:
    """Why an operator cannot process the frames that it had received."""
    named = f"operator {operator.name!r} (uid {uid!r})"
    waiting = [state.lists[CHANNEL_STATE] for state in operator.subtasks if state.has_channel_state]
    if waiting and (vertex.source is not None or vertex.chain[0].uid != uid):
        yield Obstacle(
            uid,
            f"{where} has channel state of {named}, which is not the first of its task any more: {_WITHOUT_CHANNEL_STATE}",
        )
        return
    for other in filter(None, (other_inputs(vertex, parts) for parts in waiting)):
        yield Obstacle(uid, f"{where} has channel state of {named} from {other}: {_WITHOUT_CHANNEL_STATE}")
        return
