"""SourceProgress: the position of a source, and the owner and event time of each of its splits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.metadata import SourceState
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.watermark_strategy import WatermarkAlignment
from holdfast.connectors.base import SplitRange
from holdfast.runtime.event_time import SplitTime
from holdfast.runtime.events import PlannedInput
from holdfast.runtime.plan import JobPlan, SourceSpec, Vertex
from holdfast.runtime.task_messages import SourceAssignment, TaskId, TaskReport

__all__ = ["SourceProgress", "has_finished", "source_progress"]


class SourceProgress:
    """The coordinator's view of one source vertex. A split stays with its subtask, so its records keep their order."""

    def __init__(self, vertex: Vertex, spec: SourceSpec, restored: SourceState | None, now: int) -> None:
        """``now`` is the processing time at which the source starts, in ms."""
        self.vertex = vertex
        self.uid = spec.uid
        self.enumerator: Any = None if restored is None else restored.enumerator
        """The enumerator's state in the last completed checkpoint."""
        self.finished = False
        """Whether the source had ended in the last completed checkpoint."""
        self.alignment: WatermarkAlignment | None = spec.watermark_strategy.alignment
        self._delay_ms: int | None = spec.watermark_strategy.max_out_of_orderness_ms
        self._idle_timeout_ms: int | None = spec.watermark_strategy.idle_timeout_ms
        self._splits: dict[str, SplitTime] = {}
        self._owners: dict[str, int] = {}
        self._watermarks = [MIN_TIMESTAMP] * vertex.parallelism
        if restored is not None:
            times = dict(restored.watermarks)
            times.pop(_FINISHED, None)
            self.finished = has_finished(restored)
            for name, time in times.items():
                self._splits[name] = SplitTime.of(time, now)
                # The split stays under its subtask's watermark; that of another subtask may be far ahead.
                self._owners[name] = time["owner"] % vertex.parallelism
        self._next_owner = len(self._owners)

    def _own(self, split: str) -> int:
        owner = self._owners.get(split)
        if owner is None:
            owner = self._owners[split] = self._next_owner % self.vertex.parallelism
            self._next_owner += 1
        return owner

    def assignments(self, planned: PlannedInput, planned_at: int, now: int) -> dict[TaskId, SourceAssignment]:
        """The assignments of the subtasks for an epoch that follows the last completed one.

        Args:
            planned: The epoch's input.
            planned_at: The processing time at which it was fixed, in ms.
            now: The processing time of this run, in ms.
        """
        ranges: list[list[SplitRange]] = [[] for _ in range(self.vertex.parallelism)]
        for part in planned.input.ranges:
            ranges[self._own(part.split)].append(part)
            self._splits.setdefault(part.split, SplitTime(last_active=planned_at))
        for name in planned.held & self._splits.keys():
            # It may have records. If it counted as idle, the others could overtake it, and its records would be late.
            self._splits[name] = replace(self._splits[name], last_active=now)
        splits: list[dict[str, SplitTime]] = [{} for _ in range(self.vertex.parallelism)]
        for name, time in self._splits.items():
            splits[self._own(name)][name] = time
        return {
            (self.vertex.id, n): SourceAssignment(tuple(ranges[n]), splits[n], self._watermarks[n], planned.input.finished)
            for n in range(self.vertex.parallelism)
        }

    def read(self, reports: Iterable[TaskReport]) -> None:
        """Apply the reports of an epoch that is about to be completed."""
        own = {report.task[1]: report for report in reports if report.task[0] == self.vertex.id}
        for name, owner in list(self._owners.items()):
            if owner in own and name not in own[owner].splits:  # the split has ended
                self._splits.pop(name, None)
                del self._owners[name]
        for subtask, report in own.items():
            self._splits.update(report.splits)
            self._watermarks[subtask] = report.watermark

    def state(self, planned: PlannedInput) -> SourceState:
        """The source's state for the checkpoint, after the reports of the epoch."""
        times: dict[str, dict[str, Any]] = {
            name: {**time.plain(), "owner": self._own(name)} for name, time in self._splits.items()
        }
        if planned.input.finished:
            times[_FINISHED] = {"finished": True}
        return SourceState(planned.snapshot, times)

    def completed(self, planned: PlannedInput) -> None:
        """The epoch's checkpoint is complete."""
        self.enumerator = planned.snapshot
        self.finished = planned.input.finished

    def active_watermarks(self, now: int) -> dict[str, int]:
        """The watermarks of the splits that are not idle."""
        active = {name: split for name, split in self._splits.items() if split.idle_from(self._idle_timeout_ms) > now}
        return {name: split.watermark(self._delay_ms) for name, split in active.items()}

    def next_idle(self, now: int) -> int | None:
        """When the next split becomes idle, if no record comes: processing time in ms."""
        timeout = self._idle_timeout_ms
        if timeout is None:
            return None
        return min((at for split in self._splits.values() if (at := split.idle_from(timeout)) > now), default=None)


def source_progress(plan: JobPlan, restored: Mapping[str, SourceState], now: int) -> list[SourceProgress]:
    """The progress of all sources of a job: those restored, by uid, and new ones."""
    return [SourceProgress(v, v.source, restored.get(v.source.uid), now) for v in plan.vertices if v.source is not None]


def has_finished(stored: SourceState) -> bool:
    """Whether a source had ended in a checkpoint: it is not started again."""
    return bool(stored.watermarks.get(_FINISHED, {}).get("finished"))


_FINISHED = "\x00finished"
"""An entry in place of a split's name: the source has ended."""
