"""Windows with a fixed number of elements per key."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from holdfast.common.typeinfo import Types
from holdfast.common.values.type_variables import V
from holdfast.common.windows import CountWindow
from holdfast.errors import ConfigurationError
from holdfast.state.api.descriptors import ValueStateDescriptor
from holdfast.windowing.assigners import WindowAssigner
from holdfast.windowing.element_triggers import CountTrigger
from holdfast.windowing.triggers import Trigger

__all__ = ["CountSlidingWindowAssigner", "CountTumblingWindowAssigner"]


class _CountWindows(WindowAssigner[V, CountWindow]):
    """Counts the elements of each key; window ``n`` begins with element ``n * slide``."""

    def __init__(self, window_size: int, window_slide: int, counter: str) -> None:
        for what, number in (("size", window_size), ("slide", window_slide)):
            if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
                raise ConfigurationError(
                    f"the {what} of count windows must be a positive number of elements, got {number!r}"
                )
        self._window_size = window_size
        self._window_slide = window_slide
        self.arguments = window_size, window_slide
        self._counter = ValueStateDescriptor(counter, Types.LONG())

    def assign_windows(
        self, element: V, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        """Return the windows of the key's next element."""
        counter = context.get_runtime_context().get_state(self._counter)
        number = counter.value() or 0
        counter.update(number + 1)
        last = number // self._window_slide
        first = max(-((self._window_size - 1 - number) // self._window_slide), 0)
        return [CountWindow(id) for id in range(last, first - 1, -1)]

    def get_default_trigger(self, env: Any) -> Trigger[V, CountWindow]:
        """A `CountTrigger` that fires when a window is full."""
        return CountTrigger(self._window_size)

    def is_event_time(self) -> bool:
        """Always False."""
        return False


class CountTumblingWindowAssigner(_CountWindows[V]):
    """Consecutive windows of a fixed number of elements.

    Raises:
        ConfigurationError: the size is not a positive number.
    """

    def __init__(self, window_size: int) -> None:
        super().__init__(window_size, window_size, "tumble-count-assigner")

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner[Any]:
        """Create an assigner."""
        return CountTumblingWindowAssigner(window_size)

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self._window_size})"


class CountSlidingWindowAssigner(_CountWindows[V]):
    """Windows of a fixed number of elements; a new one begins every ``window_slide`` elements.

    Raises:
        ConfigurationError: the size or the slide is not a positive number.
    """

    def __init__(self, window_size: int, window_slide: int) -> None:
        super().__init__(window_size, window_slide, "slide-count-assigner")

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner[Any]:
        """Create an assigner."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def __repr__(self) -> str:
        return f"CountSlidingWindowAssigner({self._window_size}, {self._window_slide})"
