"""SourceProgress: the position of a source, and the owner and event time of each split. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.checkpoint.metadata import CheckpointMetadata, SourceState
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.watermark_strategy import WatermarkAlignment
from holdfast.connectors.base import SplitRange
from holdfast.runtime.plan.event_time import SplitTime
from holdfast.runtime.plan.plan import JobPlan, SourceSpec, Vertex
from holdfast.runtime.plan.task_messages import SourceAssignment, TaskId, TaskReport
from holdfast.runtime.protocol.events import PlannedInput

__all__ = ["SourceProgress", "has_finished", "source_progress"]

_SILENT_S = 10.0
"""Seconds without records, while other splits had some, after which a split is reported to hold event time back."""


class SourceProgress:
    """The coordinator's view of one source vertex. A split stays with its subtask, so that its records keep their order."""

    def __init__(self, vertex: Vertex, spec: SourceSpec, restored: SourceState | None, dealt: int | None = None) -> None:
        """``dealt``: the number of subtasks that the splits of ``restored`` were assigned to, if they do not record it."""
        self.vertex = vertex
        self.uid = spec.uid
        self.enumerator: Any = None if restored is None else restored.enumerator
        """The enumerator's state in the last completed checkpoint."""
        self.finished = False
        """Whether the source had ended in the last completed checkpoint."""
        self.alignment: WatermarkAlignment | None = spec.watermark_strategy.alignment
        self._delay_ms: int | None = spec.watermark_strategy.max_out_of_orderness_ms
        self._idle_timeout_ms: int | None = spec.watermark_strategy.idle_timeout_ms
        self._asked: int | None = None
        """When the splits were last asked for input, by the clock of `asked`; None if not since the start."""
        self._heard: dict[str, int] = {}
        """When each split last had input; if not since the start, when it was first asked."""
        self._splits: dict[str, SplitTime] = {}
        self._owners: dict[str, int] = {}
        self._watermarks = [MIN_TIMESTAMP] * vertex.parallelism
        if restored is not None:
            times = dict(restored.watermarks)
            times.pop(_FINISHED, None)
            self.finished = has_finished(restored)
            for name, time in times.items():
                self._splits[name] = SplitTime.of(time)
                if time.get("dealt", dealt) in (None, vertex.parallelism):
                    # The split must stay behind its subtask's watermark; another subtask's watermark may be far ahead.
                    self._owners[name] = time["owner"] % vertex.parallelism
                else:  # all subtasks start with the lowest watermark
                    self._owners[name] = len(self._owners) % vertex.parallelism
        self._next_owner = len(self._owners)

    def _own(self, split: str) -> int:
        owner = self._owners.get(split)
        if owner is None:
            owner = self._owners[split] = self._next_owner % self.vertex.parallelism
            self._next_owner += 1
        return owner

    def asked(self, planned: PlannedInput | None, now: int) -> None:
        """The source was asked for input: splits without any count as silent since they last had some.

        Only this counts as silence; failures, restores and slow functions, during which nothing asks, do not.

        Args:
            planned: The source's answer; None: it has ended and was not asked.
            now: The time in ms, by the driver's monotonic clock.
        """
        if planned is None:
            return
        self._asked = now
        new = self._splits.keys() - self._heard.keys()
        new.update(part.split for part in planned.input.ranges if part.split not in self._heard)
        self._heard.update(dict.fromkeys(new, now))
        for name in planned.held & self._heard.keys():
            # It may have records. If it counted as idle, others could overtake it, which would make its records late.
            self._heard[name] = now

    def assignments(self, planned: PlannedInput) -> dict[TaskId, SourceAssignment]:
        """The subtasks' assignments for an epoch with this input, which follows the last completed epoch."""
        ranges: list[list[SplitRange]] = [[] for _ in range(self.vertex.parallelism)]
        for part in planned.input.ranges:  # there may be ten thousand parts
            ranges[self._own(part.split)].append(part)
            if part.split not in self._splits:
                self._splits[part.split] = SplitTime(part.since)
        silent: set[str] = set()
        if self._idle_timeout_ms is not None:
            silent.update(filter(self._is_silent, self._splits))
            silent.difference_update(part.split for part in planned.input.ranges if part.start != part.end)
        splits: list[dict[str, SplitTime]] = [{} for _ in range(self.vertex.parallelism)]
        owners = self._owners
        for name, time in self._splits.items():
            splits[owners[name]][name] = SplitTime(time.max_timestamp, name in silent, False, time.generated)
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
                self._heard.pop(name, None)
                del self._owners[name]
        for subtask, report in own.items():
            self._splits.update(report.splits)
            if self._asked is not None:
                self._heard.update(
                    dict.fromkeys([name for name, split in report.splits.items() if split.heard], self._asked)
                )
            self._watermarks[subtask] = report.watermark

    def state(self, planned: PlannedInput) -> SourceState:
        """The source's state for the checkpoint, after the reports of the epoch."""
        owners, dealt = self._owners, self.vertex.parallelism
        times: dict[str, dict[str, Any]] = {}
        for name, time in self._splits.items():
            times[name] = plain = time.plain()
            plain["owner"], plain["dealt"] = owners[name], dealt
        if planned.input.finished:
            times[_FINISHED] = {"finished": True}
        return SourceState(planned.snapshot, times)

    def completed(self, planned: PlannedInput) -> None:
        """The epoch's checkpoint is complete."""
        self.enumerator = planned.snapshot
        self.finished = planned.input.finished

    def active_watermarks(self) -> dict[str, int]:
        """The watermarks of the splits that are not idle."""
        return {name: split.watermark(self._delay_ms) for name, split in self._splits.items() if not self._is_idle(name)}

    def _is_idle(self, name: str) -> bool:
        generated = self._splits[name].generated
        return self._is_silent(name) or (generated is not None and generated.idle)

    def _is_silent(self, name: str) -> bool:
        """Whether the split had no input for the idle timeout when it was last asked."""
        timeout, asked = self._idle_timeout_ms, self._asked
        return timeout is not None and asked is not None and asked - self._heard.get(name, asked) >= timeout

    def holding(self) -> dict[str, float]:
        """The splits that hold event time back, and for how many seconds other splits have had records since.

        In a source with an idle timeout, splits hold it back only until the timeout; those are left out.
        """
        if self._idle_timeout_ms is not None:
            return {}
        latest = max(self._heard.values(), default=0)
        if latest - min(self._heard.values(), default=0) < 1000 * _SILENT_S:
            return {}
        silent = {name: (latest - heard) / 1000 for name, heard in self._heard.items() if name in self._splits}
        silent = {name: seconds for name, seconds in silent.items() if seconds >= _SILENT_S and not self._is_idle(name)}
        if not silent or (self._delay_ms is None and all(split.generated is None for split in self._splits.values())):
            return {}
        times = {name: split.watermark(self._delay_ms) for name, split in self._splits.items()}
        lowest = min(times.values())
        return {name: seconds for name, seconds in silent.items() if times[name] == lowest}

    def next_idle(self) -> int | None:
        """When the next split becomes idle, unless it has input when asked then; in ms, by the clock of `asked`."""
        timeout = self._idle_timeout_ms
        if timeout is None:
            return None
        return min((self._heard[name] + timeout for name in self._heard if not self._is_silent(name)), default=None)


def source_progress(plan: JobPlan, restored: CheckpointMetadata | None) -> list[SourceProgress]:
    """The progress of all sources of a job, from a checkpoint if there is one."""
    found = []
    for vertex in plan.vertices:
        if vertex.source is not None:
            before = None if restored is None else restored.sources.get(vertex.source.uid)
            head = None if restored is None else restored.operators.get(vertex.chain[0].uid)
            found.append(SourceProgress(vertex, vertex.source, before, None if head is None else head.parallelism))
    return found


def has_finished(stored: SourceState) -> bool:
    """Whether a source had ended in a checkpoint, so that it is not started again."""
    return bool(stored.watermarks.get(_FINISHED, {}).get("finished"))


_FINISHED = "\x00finished"
"""An entry in place of a split's name, which records that the source has ended."""
