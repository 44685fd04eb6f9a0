"""UnalignedCheckpoints: the deadlines of an epoch's subtasks, and how much input a job with channel state reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.runtime.plan.plan import JobPlan, Partitioning, Vertex
from holdfast.runtime.plan.task_messages import Deadline, TaskReport

__all__ = ["ALIGNMENT_SECONDS", "UnalignedCheckpoints", "can_be_cut"]

ALIGNMENT_SECONDS = 60.0
"""How long a subtask may process waiting input before the job is rescaled."""

_REDISTRIBUTED = frozenset({Partitioning.HASH, Partitioning.REBALANCE, Partitioning.SHUFFLE})
"""Channels whose frames can be redistributed to any parallelism: every sender has a channel to every receiver, and a
record's receiver depends on its key alone, or does not matter.
"""
_SHARE = 1 / 3
"""How much longer than the typical subtask a subtask may take, as a share of the rest of the epoch. This is the most by
which a single subtask lengthens an epoch.
"""
_SHARE_BEHIND = 1 / 10
"""The same for a subtask with channel state: it is behind in every epoch, and would lengthen each of them."""
_FULL_SPEED = 1 / 2
"""Channel state up to this share of its limit does not slow the sources."""
_PATIENCE = 0.05
"""Seconds that channel state waits for new input, to be processed together with it."""
_SHORTEST = 0.02
"""The shortest deadline, in seconds: subtasks check the clock about that often."""
_LESS, _MORE = 0.7, 0.2
"""The weight of the latest epoch in the averages: if it took less time, and if it took more."""


def can_be_cut(plan: JobPlan, vertex: Vertex) -> bool:
    """Whether the vertex's input may become channel state; as in Flink, not that of pointwise or broadcast channels."""
    channels = [c for sender in plan.vertices for chained in sender.chain for c in chained.channels if c.target == vertex.id]
    return bool(channels) and all(channel.partitioning in _REDISTRIBUTED for channel in channels)


class UnalignedCheckpoints:
    """Decides how long the subtasks of each vertex process an epoch's input before the barrier overtakes the rest.

    The deadline follows the other subtasks of the vertex: their typical time, plus a share of the time that the rest of the
    epoch takes anyway, which is smaller for a subtask with channel state. It doubles if it cuts even the typical subtask. It
    is at least the aligned-checkpoint timeout, and otherwise at most the target duration of epochs.
    """

    def __init__(self) -> None:
        self._typical: dict[int, float] = {}
        """The average time of a vertex's typical subtask, in seconds."""
        self._rest: dict[int, float] = {}
        """The average time of an epoch without a vertex's processing, in seconds."""
        self._largest = 0
        """The largest channel state of a subtask, in bytes."""
        self.waiting = False
        """Whether the latest checkpoint has channel state."""

    def deadlines(self, plan: JobPlan, *, aligned: bool, longest: bool = False) -> dict[int, Deadline]:
        """How long the subtasks of each vertex may process the next epoch's input.

        Args:
            plan: The job. Vertices without a deadline in the answer process all of it.
            aligned: Whether the checkpoint must have no channel state.
            longest: Whether it should have none, if possible, so that subtasks may take `ALIGNMENT_SECONDS`.
        """
        settings = plan.settings
        if aligned or settings.aligned_timeout_ms is None or settings.batch:
            return {}
        if longest:
            return {v.id: Deadline(ALIGNMENT_SECONDS, ALIGNMENT_SECONDS) for v in plan.vertices if can_be_cut(plan, v)}
        least, target = max(_SHORTEST, settings.aligned_timeout_ms / 1000), settings.epoch_target_ms / 1000

        def after(vertex: int, share: float) -> float:
            known = vertex in self._typical
            seconds = self._typical[vertex] + share * self._rest[vertex] if known else target
            return max(least, min(target, seconds))

        return {
            v.id: Deadline(after(v.id, _SHARE), after(v.id, _SHARE_BEHIND)) for v in plan.vertices if can_be_cut(plan, v)
        }

    def budget(self, plan: JobPlan, records: int) -> int:
        """The number of records for the next epoch, at most ``records``: fewer if much channel state waits; 0: none."""
        room = (1 - self._largest / plan.settings.most_channel_state) / (1 - _FULL_SPEED)
        return max(1, int(records * min(1.0, room))) if room > 0 else 0

    def next_epoch(self, now: float) -> float | None:
        """When channel state needs an epoch even without new input, by the clock of ``now``; None without channel state."""
        return now + _PATIENCE if self.waiting else None

    def restored(self, checkpoint: CheckpointMetadata | None) -> None:
        """The job continues this checkpoint."""
        operators = {} if checkpoint is None else checkpoint.operators
        self.waiting = any(state.has_channel_state for operator in operators.values() for state in operator.subtasks)
        self._largest = 0

    def completed(self, reports: Sequence[TaskReport], seconds: float) -> None:
        """An epoch has completed after ``seconds``."""
        self._largest = max((report.channel_state for report in reports), default=0)
        self.waiting = any(report.input_waits for report in reports)
        tasks: dict[int, list[tuple[float, bool]]] = {}
        for report in reports:
            if report.input_seconds is not None:
                tasks.setdefault(report.task[0], []).append((report.input_seconds, report.input_waits))
        for vertex, spent in tasks.items():
            spent.sort()
            typical, cut = spent[(len(spent) - 1) // 2]
            if cut:  # the load of most subtasks has grown: that is not skew
                self._typical[vertex] = 2 * typical
            else:
                _average(self._typical, vertex, typical)
            _average(self._rest, vertex, max(0.0, seconds - spent[-1][0]))


def _average(averages: dict[int, float], vertex: int, value: float) -> None:
    """Update an average such that a slow epoch, for example the first one, is soon forgotten."""
    known = averages.get(vertex, value)
    averages[vertex] = known + (_LESS if value < known else _MORE) * (value - known)
