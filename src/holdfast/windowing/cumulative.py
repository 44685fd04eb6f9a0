"""Cumulative windows, which grow by steps up to a maximum size."""

from __future__ import annotations

from typing import Any

from holdfast.common.time import Span
from holdfast.common.values.type_variables import V
from holdfast.errors import ConfigurationError
from holdfast.windowing.assigners import PeriodicWindows, WindowsOfEventTime, WindowsOfProcessingTime, span

__all__ = ["CumulativeEventTimeWindows", "CumulativeProcessingTimeWindows"]


class _Cumulative(PeriodicWindows[V]):
    """Windows that begin together at each multiple of the maximum size, and end one step after another."""

    def __init__(self, max_size: int, step: int, offset: int) -> None:
        if max_size <= 0 or step <= 0 or max_size % step:
            raise ConfigurationError(
                f"the windows' greatest size must be a multiple of their step, got {max_size} ms and {step} ms"
            )
        if abs(offset) >= max_size:
            raise ConfigurationError(
                f"the offset must be smaller than the windows' greatest size of {max_size} ms, got {offset} ms"
            )
        super().__init__(max_size, step, offset)
        self.arguments = max_size, step, offset
        self.ends = step, offset

    def windows(self, pane: int) -> list[tuple[int, int]]:
        """The windows that contain the pane."""
        start = pane - (pane - self._offset) % self._size
        return [(start, end) for end in range(pane + self._pane, start + self._size + 1, self._pane)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.arguments}"


class CumulativeEventTimeWindows(_Cumulative[V], WindowsOfEventTime[V]):
    """Windows that grow by a step up to a maximum size, by the elements' timestamps; for example hourly totals of the day.

    Like Flink SQL's ``CUMULATE``.

    Examples:
        >>> from holdfast.common import Time
        >>> windows = CumulativeEventTimeWindows.of(Time.days(1), Time.hours(1))
        >>> windows.windows(22 * 3_600_000)
        [(0, 82800000), (0, 86400000)]

    Raises:
        ConfigurationError: the maximum size is not a multiple of the step, or the offset is not smaller than it.
    """

    @staticmethod
    def of(max_size: Span, step: Span, offset: Span | None = None) -> CumulativeEventTimeWindows[Any]:
        """Create an assigner; windows start at multiples of ``max_size`` (since 1970, UTC) plus ``offset``."""
        return CumulativeEventTimeWindows(span(max_size), span(step), span(offset))


class CumulativeProcessingTimeWindows(_Cumulative[V], WindowsOfProcessingTime[V]):
    """Windows that grow by a step up to a maximum size, in processing time.

    Raises:
        ConfigurationError: the maximum size is not a multiple of the step, or the offset is not smaller than it.
    """

    @staticmethod
    def of(max_size: Span, step: Span, offset: Span | None = None) -> CumulativeProcessingTimeWindows[Any]:
        """Create an assigner; windows start at multiples of ``max_size`` (since 1970, UTC) plus ``offset``."""
        return CumulativeProcessingTimeWindows(span(max_size), span(step), span(offset))
