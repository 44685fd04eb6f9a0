"""The event times that a subtask's operators restore from a checkpoint, by key group. Pure.

A checkpoint holds the event time of every operator with state and of every head of a chain. The other operators have no
state that depends on event time: theirs is that of the preceding operator in the chain. The same holds for all operators in
checkpoints of older releases, which store event times of heads alone: there, one clock drove the whole chain, up to an
operator that generates or holds watermarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.metadata import OperatorCheckpoint
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.plan.plan import Chained, JobPlan, Vertex
from holdfast.runtime.time.clock import EventTime, GroupTime
from holdfast.state.keys.key_groups import KeyGroupRange, key_group_range

__all__ = ["event_times"]


def event_times(
    plan: JobPlan, operators: Mapping[str, OperatorCheckpoint], vertex: Vertex, subtask: int
) -> dict[str, EventTime]:
    """The event times of all operators in a subtask's chain, by uid.

    Args:
        plan: The program.
        operators: The checkpoint's state, by uid; its parallelism and its chains may differ.
        vertex: The subtask's vertex.
        subtask: The subtask's number.
    """
    before = _before(plan)
    found = {}
    for chained in vertex.chain:
        watermarks, ahead = _stored(operators, before, chained)
        if StateKind.KEYED in chained.factory.state and chained.uid in operators:
            found[chained.uid] = _by_key_group(watermarks, ahead, vertex, subtask)
        elif len(watermarks) == vertex.parallelism:
            found[chained.uid] = EventTime(watermarks[subtask])
        else:
            found[chained.uid] = EventTime(
                min(watermarks, default=MIN_TIMESTAMP)
            )  # records of any old subtask may arrive here
    return found


def _before(plan: JobPlan) -> dict[str, list[Chained]]:
    """The operators that directly precede each operator, by its uid."""
    heads = {vertex.id: vertex.chain[0] for vertex in plan.vertices}
    before: dict[str, list[Chained]] = {}
    for vertex in plan.vertices:
        for chained in vertex.chain:
            for edge in chained.edges:
                before.setdefault(vertex.chain[edge.target].uid, []).append(chained)
            for channel in chained.channels:
                before.setdefault(heads[channel.target].uid, []).append(chained)
    return before


def _stored(
    operators: Mapping[str, OperatorCheckpoint], before: Mapping[str, Sequence[Chained]], chained: Chained
) -> tuple[list[int], list[GroupTime]]:
    """An operator's event time in each old subtask, and the key groups that were ahead; empty if unknown."""
    operator = operators.get(chained.uid)
    if operator is not None and operator.watermarks:
        return operator.watermarks, operator.ahead
    senders = before.get(chained.uid, ())
    if len(senders) != 1:  # it is the head of a chain
        return [], []
    (sender,) = senders
    if not (sender.factory.makes_watermarks or sender.factory.holds_watermarks):
        return _stored(operators, before, sender)
    generators = operators[sender.uid].generators if sender.uid in operators else []
    return [MIN_TIMESTAMP if state is None else state["emitted"] for state in generators], []


def _by_key_group(watermarks: Sequence[int], ahead: Sequence[GroupTime], vertex: Vertex, subtask: int) -> EventTime:
    """The event time of a keyed operator: the minimum over its key groups, and the groups that are ahead of it."""
    own = key_group_range(vertex.max_parallelism, vertex.parallelism, subtask)
    times = []
    for number, watermark in enumerate(watermarks):
        groups = key_group_range(vertex.max_parallelism, len(watermarks), number)
        further = sorted(time for time in ahead if groups.first <= time[0] <= groups.last)
        at = groups.first
        for first, last, reached in further:
            times += [(at, first - 1, watermark), (first, last, reached)]
            at = last + 1
        times.append((at, groups.last, watermark))
    mine = _clipped(times, own)
    least = min((watermark for _, _, watermark in mine), default=MIN_TIMESTAMP)
    return EventTime(least, tuple(time for time in mine if time[2] > least))


def _clipped(times: Sequence[GroupTime], own: KeyGroupRange) -> list[GroupTime]:
    clipped = ((max(first, own.first), min(last, own.last), watermark) for first, last, watermark in times)
    return [time for time in clipped if time[0] <= time[1]]
