"""Base of windows with the same boundaries for all keys: cuts batches along the boundaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from holdfast.common.formats.positions import picker, positions_by
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.operators.windows.window_base import WindowsBase, WindowSpec
from holdfast.runtime.operators.windows.window_calls import cut_each
from holdfast.runtime.records.records import RecordBatch
from holdfast.windowing.assigners import PeriodicWindows

__all__ = ["PeriodicWindowsBase"]

_NEAR = 1 << 62
"""Limit of the distance of timestamps that a compiled loop cuts into windows as C integers."""


class PeriodicWindowsBase(WindowsBase):
    """Windows with the same boundaries for all keys."""

    def __init__(self, spec: WindowSpec, assigner: PeriodicWindows[Any]) -> None:
        super().__init__(spec)
        self._assigner = assigner

    def _over_before(self) -> int:
        """The time before which all elements belong to windows that are over."""
        if not self._event_time:
            return MIN_TIMESTAMP
        passed = self.context.clock.passed + 1
        every, phase = self._assigner.ends
        if self._assigner.size < every:  # an element between two windows belongs to none, and is late by its own time
            return passed
        return passed - (passed - phase) % every

    def _cut(
        self, batch: RecordBatch, times: Sequence[int]
    ) -> Iterator[tuple[int, Sequence[Any], Sequence[Any], Sequence[int]]]:
        """Cut a batch along panes: the start of each with its keys, values and times, earlier panes first.

        Elements of windows that are over come before them, in order of arrival: they are late, or fire their windows again.
        """
        assert batch.keys is not None
        keys: Sequence[Any] = batch.keys
        values: Sequence[Any] = batch.values
        size, offset = self._assigner.pane, self._assigner.offset
        low, over_before = min(times), self._over_before()
        if low < over_before:
            over = [at for at, time in enumerate(times) if time < over_before]
            for start, its_positions in groupby(over, lambda at: self._assigner.pane_of(times[at])):
                pick = picker(list(its_positions))
                yield start, pick(keys), pick(values), pick(times)
            if len(over) == len(times):
                return
            pick = picker([at for at, time in enumerate(times) if time >= over_before])
            keys, values, times = pick(keys), pick(values), pick(times)
            low = min(times)
        high = max(times)
        first = low - (low - offset) % size
        if high < first + size:
            yield first, keys, values, times
            return
        if high - first < _NEAR:
            yield from cut_each(keys, values, times, first, size)
            return
        for start, members in sorted(positions_by([self._assigner.pane_of(time) for time in times]).items()):
            pick = picker(members)
            yield start, pick(keys), pick(values), pick(times)
