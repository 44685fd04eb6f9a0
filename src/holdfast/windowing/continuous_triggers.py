"""Triggers that fire a window repeatedly before its end."""

from __future__ import annotations

from typing import Any

from holdfast.common.time import MAX_TIMESTAMP, Span
from holdfast.common.typeinfo import Types
from holdfast.common.values.type_variables import V
from holdfast.common.windows import Window
from holdfast.errors import ConfigurationError
from holdfast.state.api.descriptors import ReducingStateDescriptor
from holdfast.windowing.assigners import span
from holdfast.windowing.triggers import Trigger, TriggerResult

__all__ = ["ContinuousEventTimeTrigger", "ContinuousProcessingTimeTrigger"]


class _Continuous(Trigger[V, Any]):
    """Fires at each multiple of an interval, starting with a window's first element."""

    def __init__(self, interval: int) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int) or interval <= 0:
            raise ConfigurationError(f"{type(self).__name__} fires at a positive interval in ms, got {interval!r}")
        self.interval = interval
        self._next_fire = ReducingStateDescriptor("fire-time", min, Types.LONG())

    def _register(self, time: int, ctx: Trigger.TriggerContext) -> None:
        raise NotImplementedError

    def _delete(self, time: int, ctx: Trigger.TriggerContext) -> None:
        raise NotImplementedError

    def register_next_fire_timestamp(
        self, time: int, window: Window, ctx: Trigger.TriggerContext, fire_timestamp_state: Any
    ) -> None:
        """Fire an interval after ``time``, but not after the window's end."""
        time = min(time + self.interval, window.max_timestamp())
        fire_timestamp_state.add(time)
        self._register(time, ctx)

    def _begin(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> None:
        """Register the first firing, if there is none yet."""
        state: Any = ctx.get_partitioned_state(self._next_fire)
        if state.get() is None:
            self.register_next_fire_timestamp(time - time % self.interval, window, ctx, state)

    def _again(self, time: int, window: Window, ctx: Trigger.TriggerContext, ended: bool) -> TriggerResult:
        """Fire if this is the next firing time, and register the following one unless the input has ``ended``."""
        state: Any = ctx.get_partitioned_state(self._next_fire)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        last = window.max_timestamp()
        if time < last and not (ended and last == MAX_TIMESTAMP):  # a window without end would fire forever
            self.register_next_fire_timestamp(time, window, ctx, state)
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        """Always True."""
        return True

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        """Fire next at the earliest firing time of the merged windows."""
        ctx.merge_partitioned_state(self._next_fire)
        state: Any = ctx.get_partitioned_state(self._next_fire)
        if state.get() is not None:
            self._register(state.get(), ctx)

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer of the next firing."""
        state: Any = ctx.get_partitioned_state(self._next_fire)
        if state.get() is not None:
            self._delete(state.get(), ctx)
            state.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.interval})"


class ContinuousEventTimeTrigger(_Continuous[V]):
    """Fires at each interval of event time, starting with a window's first element, and at the window's end.

    Raises:
        ConfigurationError: the interval is not positive.
    """

    @staticmethod
    def of(interval: Span) -> ContinuousEventTimeTrigger[Any]:
        """Create a trigger."""
        return ContinuousEventTimeTrigger(span(interval))

    def on_element(self, element: V, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire at once if the window has ended; else register the timers."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        self._begin(timestamp, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire at the interval and at the window's end."""
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        return self._again(time, window, ctx, ctx.get_current_watermark() == MAX_TIMESTAMP)

    def on_processing_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        """Fire next at the earliest firing time of the merged windows, and at the new window's end."""
        super().on_merge(window, ctx)
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        """Delete the timers."""
        ctx.delete_event_time_timer(window.max_timestamp())
        super().clear(window, ctx)

    def _register(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.register_event_time_timer(time)

    def _delete(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_Continuous[V]):
    """Fires at each interval of processing time, starting with a window's first element.

    Raises:
        ConfigurationError: the interval is not positive.
    """

    @staticmethod
    def of(interval: Span) -> ContinuousProcessingTimeTrigger[Any]:
        """Create a trigger."""
        return ContinuousProcessingTimeTrigger(span(interval))

    def on_element(self, element: V, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Register the timer of the first firing."""
        self._begin(ctx.get_current_processing_time(), window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Continue."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire at the interval."""
        return self._again(time, window, ctx, ended=False)

    def _register(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.register_processing_time_timer(time)

    def _delete(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_processing_time_timer(time)
