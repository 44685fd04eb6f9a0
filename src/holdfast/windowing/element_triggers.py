"""Triggers that depend on the elements (their number or their differences), and triggers that wrap other triggers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from holdfast.common.typeinfo import Types
from holdfast.common.values.type_variables import V
from holdfast.common.windows import Window
from holdfast.errors import ConfigurationError
from holdfast.state.api.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from holdfast.windowing.triggers import Trigger, TriggerResult

__all__ = ["CountTrigger", "DeltaTrigger", "NeverTrigger", "PurgingTrigger"]


class _TimelessTrigger(Trigger[V, Any]):
    """A trigger that ignores time."""

    def on_processing_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue."""
        return TriggerResult.CONTINUE


class CountTrigger(_TimelessTrigger[V]):
    """Fires when a window has received a number of elements since its last firing.

    Raises:
        ConfigurationError: the number is not positive.
    """

    def __init__(self, window_size: int) -> None:
        if isinstance(window_size, bool) or not isinstance(window_size, int) or window_size <= 0:
            raise ConfigurationError(f"CountTrigger fires after a positive number of elements, got {window_size!r}")
        self._window_size = window_size
        self._count = ReducingStateDescriptor("count", operator.add, Types.LONG())

    @staticmethod
    def of(window_size: int) -> CountTrigger[Any]:
        """Create a trigger."""
        return CountTrigger(window_size)

    def on_element(self, element: V, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Count, and fire at the number."""
        count: Any = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self._window_size:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        """Always True."""
        return True

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        """Add up the counts."""
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        """Delete the count."""
        ctx.get_partitioned_state(self._count).clear()

    def __repr__(self) -> str:
        return f"CountTrigger({self._window_size})"


class DeltaTrigger(_TimelessTrigger[V]):
    """Fires when an element differs by more than a threshold from the last firing element (initially the first element).

    ``delta_function(old, new)`` returns the difference of two elements.
    """

    def __init__(self, threshold: float, delta_function: Callable[[V, V], float]) -> None:
        delta = getattr(delta_function, "get_delta", delta_function)
        if isinstance(delta_function, type) or not callable(delta):
            raise TypeError(f"DeltaTrigger needs a function of two elements, got {delta_function!r}")
        self._threshold = threshold
        self._delta: Callable[[V, V], float] = delta
        self._last = ValueStateDescriptor("last-element")

    @staticmethod
    def of(threshold: float, delta_function: Callable[[Any, Any], float]) -> DeltaTrigger[Any]:
        """Create a trigger."""
        return DeltaTrigger(threshold, delta_function)

    def on_element(self, element: V, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire if the element differs enough."""
        last: Any = ctx.get_partitioned_state(self._last)
        before = last.value()
        if before is None:
            last.update((element,))
            return TriggerResult.CONTINUE
        if self._delta(before[0], element) > self._threshold:
            last.update((element,))
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        """Never called: the trigger does not merge."""
        raise NotImplementedError("DeltaTrigger does not support merging windows")

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        """Delete the last firing element."""
        ctx.get_partitioned_state(self._last).clear()

    def __repr__(self) -> str:
        return f"DeltaTrigger({self._threshold}, {self._delta!r})"


class PurgingTrigger(Trigger[V, Any]):
    """Fires when another trigger fires, and then removes the window's elements."""

    def __init__(self, nested_trigger: Trigger[V, Any]) -> None:
        if not isinstance(nested_trigger, Trigger):
            raise TypeError(f"PurgingTrigger.of() takes a trigger, not {nested_trigger!r}")
        self._nested = nested_trigger

    @property
    def nested(self) -> Trigger[V, Any]:
        """The nested trigger."""
        return self._nested

    @staticmethod
    def of(nested_trigger: Trigger[V, Any]) -> PurgingTrigger[Any]:
        """Create a trigger that wraps another one."""
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: V, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Delegate to the nested trigger."""
        return _purging(self._nested.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Delegate to the nested trigger."""
        return _purging(self._nested.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Delegate to the nested trigger."""
        return _purging(self._nested.on_processing_time(time, window, ctx))

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        """Clear the nested trigger."""
        self._nested.clear(window, ctx)

    def can_merge(self) -> bool:
        """Whether the nested trigger supports merging windows."""
        return self._nested.can_merge()

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        """Merge the nested trigger."""
        self._nested.on_merge(window, ctx)

    def __repr__(self) -> str:
        return f"PurgingTrigger({self._nested!r})"


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result is TriggerResult.FIRE else result


class NeverTrigger(_TimelessTrigger[V]):
    """Never fires."""

    def on_element(self, element: V, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        """Do nothing: there is no state."""

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        """Do nothing: there is no state."""

    def __repr__(self) -> str:
        return "NeverTrigger()"
