"""Evictors, which remove elements from a window when it fires."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

from holdfast.common.time import MIN_TIMESTAMP, Span
from holdfast.common.values.type_variables import WINDOWS, V
from holdfast.errors import ConfigurationError
from holdfast.metrics.user import MetricGroup
from holdfast.windowing.assigners import span

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "TimeEvictor", "TimestampedValue"]


class TimestampedValue(NamedTuple):
    """An element of a window."""

    value: Any
    timestamp: int
    """In ms; ``-2**63`` if the element has no timestamp."""

    def has_timestamp(self) -> bool:
        """Whether the element has a timestamp."""
        return self.timestamp != MIN_TIMESTAMP


class Evictor(ABC, Generic[V, WINDOWS]):
    """Removes elements from a window when it fires, before or after the window function sees them.

    A window with an evictor keeps all its elements, also with `reduce` and `aggregate`.
    """

    class EvictorContext(ABC):
        """The clocks."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """The watermark, in ms; ``-2**63`` before the first."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """The metric group of the evictor."""

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: WINDOWS, evictor_context: Evictor.EvictorContext
    ) -> None:
        """Remove elements from the list before the window function is called.

        Args:
            elements: the window's elements, in order of arrival.
            size: the number of elements.
            window: the window.
            evictor_context: the clocks.
        """

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: WINDOWS, evictor_context: Evictor.EvictorContext
    ) -> None:
        """Remove elements from the list after the window function was called."""


class _OnceEvictor(Evictor[V, WINDOWS]):
    """Evicts either before or after the window function."""

    def __init__(self, do_evict_after: bool) -> None:
        self._after = do_evict_after

    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: WINDOWS, evictor_context: Evictor.EvictorContext
    ) -> None:
        """Evict, unless configured to evict after the function."""
        if not self._after:
            self._evict(elements)

    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: WINDOWS, evictor_context: Evictor.EvictorContext
    ) -> None:
        """Evict, if configured to evict after the function."""
        if self._after:
            self._evict(elements)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        raise NotImplementedError


class CountEvictor(_OnceEvictor[V, WINDOWS]):
    """Keeps the last ``max_count`` elements."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if isinstance(max_count, bool) or not isinstance(max_count, int) or max_count < 0:
            raise ConfigurationError(f"CountEvictor needs a number of elements from 0, got {max_count!r}")
        self._max_count = max_count

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor[Any, Any]:
        """Create an evictor."""
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        del elements[: max(len(elements) - self._max_count, 0)]

    def __repr__(self) -> str:
        return f"CountEvictor({self._max_count}, {self._after})"


class TimeEvictor(_OnceEvictor[V, WINDOWS]):
    """Keeps the elements with timestamps within a span of time before the latest one.

    Keeps all elements without timestamps.
    """

    def __init__(self, window_size: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._window_size = window_size

    @staticmethod
    def of(window_size: Span, do_evict_after: bool = False) -> TimeEvictor[Any, Any]:
        """Create an evictor."""
        return TimeEvictor(span(window_size), do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        if not elements or not elements[0].has_timestamp():
            return
        cutoff = max(element.timestamp for element in elements) - self._window_size
        elements[:] = [element for element in elements if element.timestamp > cutoff]

    def __repr__(self) -> str:
        return f"TimeEvictor({self._window_size}, {self._after})"


class DeltaEvictor(_OnceEvictor[V, WINDOWS]):
    """Keeps the elements that differ from the last one by less than a threshold.

    ``delta_function(element, last)`` returns the difference of two elements.
    """

    def __init__(self, threshold: float, delta_function: Callable[[V, V], float], do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        delta = getattr(delta_function, "get_delta", delta_function)
        if isinstance(delta_function, type) or not callable(delta):
            raise TypeError(f"DeltaEvictor needs a function of two elements, got {delta_function!r}")
        self._threshold = threshold
        self._delta: Callable[[V, V], float] = delta

    @staticmethod
    def of(
        threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool = False
    ) -> DeltaEvictor[Any, Any]:
        """Create an evictor."""
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            last = elements[-1].value
            elements[:] = [element for element in elements if self._delta(element.value, last) < self._threshold]

    def __repr__(self) -> str:
        return f"DeltaEvictor({self._threshold}, {self._delta!r}, {self._after})"
