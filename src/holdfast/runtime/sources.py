"""A source in the driver: its enumerator, which subtask reads which split, and the event time of every split."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.metadata import SourceState
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.connectors.base import EpochInput, JobInfo, SplitRange
from holdfast.runtime.order import SourceOrder, SplitTime, TaskId
from holdfast.runtime.plan import Vertex

__all__ = ["SourceDriver"]


class SourceDriver:
    """One source vertex as the coordinator sees it. A split stays with its subtask, so its records keep their order."""

    def __init__(self, vertex: Vertex, job: JobInfo) -> None:
        assert vertex.source is not None
        self.vertex = vertex
        self.uid = vertex.source.uid
        self._strategy = vertex.source.watermark_strategy
        self.enumerator = vertex.source.source.create_enumerator(job, self.uid)
        self._splits: dict[str, SplitTime] = {}
        self._owners: dict[str, int] = {}
        self._next_owner = 0
        self._watermarks = [MIN_TIMESTAMP] * vertex.parallelism
        self.finished = False
        self._planned = EpochInput()
        self._snapshot: Any = None
        self._started = False

    def start(self, stored: SourceState | None, now: int) -> None:
        """Begin, from the restored checkpoint or afresh."""
        if stored is not None:
            times = dict(stored.watermarks)
            self.finished = bool(times.pop(_FINISHED, {}).get("finished"))
            for name, time in times.items():
                # A split that was quiet while the job was down has not been idle: nobody could know.
                self._splits[name] = SplitTime(time["max_timestamp"], now)
                # Its records go on under the watermark that its subtask has had: another's may be far ahead.
                self._owners[name] = time["owner"] % self.vertex.parallelism
            self._next_owner = len(self._owners)
        if not self.finished:
            self._started = True
            self.enumerator.start(None if stored is None else stored.enumerator)

    def _own(self, split: str) -> int:
        owner = self._owners.get(split)
        if owner is None:
            owner = self._owners[split] = self._next_owner % self.vertex.parallelism
            self._next_owner += 1
        return owner

    def plan(self, max_records: int, now: int) -> EpochInput:
        """Fix the source's part of the next epoch."""
        if self.finished:
            self._planned = EpochInput(finished=True)
            return self._planned
        self._planned = self.enumerator.plan(max_records)
        self._snapshot = self.enumerator.snapshot()
        for part in self._planned.ranges:
            self._own(part.split)
            self._splits.setdefault(part.split, SplitTime(last_active=now))
        return self._planned

    def orders(self) -> dict[TaskId, SourceOrder]:
        """What each subtask is told."""
        ranges: list[list[SplitRange]] = [[] for _ in range(self.vertex.parallelism)]
        for part in self._planned.ranges:
            ranges[self._own(part.split)].append(part)
        splits: list[dict[str, SplitTime]] = [{} for _ in range(self.vertex.parallelism)]
        for name, time in self._splits.items():
            splits[self._own(name)][name] = time
        return {
            (self.vertex.id, n): SourceOrder(tuple(ranges[n]), splits[n], self._watermarks[n], self._planned.finished)
            for n in range(self.vertex.parallelism)
        }

    def read(self, subtask: int, splits: dict[str, SplitTime], watermark: int) -> None:
        """A subtask's report has come in (of an epoch that will be completed)."""
        for name in [name for name, owner in self._owners.items() if owner == subtask and name not in splits]:
            self._splits.pop(name, None)
            del self._owners[name]  # it has ended
        self._splits.update(splits)
        self._watermarks[subtask] = watermark

    def state(self) -> SourceState:
        """For the checkpoint of the epoch that was planned last."""
        times: dict[str, dict[str, Any]] = {
            name: {"max_timestamp": time.max_timestamp, "owner": self._own(name)} for name, time in self._splits.items()
        }
        if self._planned.finished:
            times[_FINISHED] = {"finished": True}
        return SourceState(self._snapshot, times)

    def epoch_completed(self) -> None:
        """The epoch that was planned last is complete."""
        self.finished = self._planned.finished

    def committed(self, checkpoint_id: int, state: SourceState) -> None:
        """The checkpoint with this state is complete, and its output committed."""
        if self._started:
            self.enumerator.checkpoint_completed(checkpoint_id, state.enumerator)

    def next_idle(self, now: int) -> int | None:
        """When the next split will have been quiet for so long that it counts as idle (processing time in ms)."""
        timeout = self._strategy.idle_timeout_ms
        if timeout is None:
            return None
        return min((s.last_active + timeout for s in self._splits.values() if s.last_active + timeout > now), default=None)

    @property
    def watermark(self) -> int:
        """The lowest watermark of its subtasks that have splits."""
        reading = [w for n, w in enumerate(self._watermarks) if n in self._owners.values()]
        return min(reading, default=MAX_TIMESTAMP if self.finished else MIN_TIMESTAMP)

    def close(self) -> None:
        """Free what the enumerator holds."""
        self.enumerator.close()


_FINISHED = "\x00finished"
"""Where a split's name would stand: the source has come to its end."""
