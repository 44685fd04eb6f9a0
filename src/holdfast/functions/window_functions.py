"""Functions that compute the results of windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic

from holdfast.common.output_tag import Tagged
from holdfast.common.values.type_variables import IN, KEY, OUT, WINDOW, W
from holdfast.functions.function import Function
from holdfast.state.api.interfaces import KeyedStateStore

__all__ = ["AllWindowFunction", "ProcessAllWindowFunction", "ProcessWindowFunction", "WindowFunction"]


class WindowFunction(Function, Generic[IN, OUT, KEY, WINDOW]):
    """Computes results from a key's elements in a window."""

    @abstractmethod
    def apply(self, key: KEY, window: WINDOW, inputs: Iterable[IN]) -> Iterable[OUT | Tagged]:
        """Return the results of a window; may be a generator.

        Args:
            key: the key.
            window: the window.
            inputs: the window's elements; after ``reduce`` or ``aggregate`` only the reduced or aggregated value.
        """


class AllWindowFunction(Function, Generic[IN, OUT, WINDOW]):
    """Computes results from all elements in a window."""

    @abstractmethod
    def apply(self, window: WINDOW, inputs: Iterable[IN]) -> Iterable[OUT | Tagged]:
        """Return the results of a window; may be a generator."""


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, WINDOW]):
    """Computes results from a key's elements in a window, with the clocks and with state per window and per key."""

    class Context(ABC, Generic[W]):
        """The context of a window."""

        @abstractmethod
        def window(self) -> W:
            """The window."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The watermark, in ms; ``-2**63`` before the first."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """State per key and window; `ProcessWindowFunction.clear` must clear it."""

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """State per key, shared by all its windows."""

    @abstractmethod
    def process(
        self, key: KEY, context: ProcessWindowFunction.Context[Any], elements: Iterable[IN]
    ) -> Iterable[OUT | Tagged]:
        """Return the results of a window; may be a generator.

        Args:
            key: the key.
            context: the window's context.
            elements: the window's elements; after ``reduce`` or ``aggregate`` only the reduced or aggregated value.
        """

    def clear(self, context: ProcessWindowFunction.Context[Any]) -> None:
        """Clear ``context.window_state()``; called when the window is deleted."""


class ProcessAllWindowFunction(Function, Generic[IN, OUT, WINDOW]):
    """Computes results from all elements in a window, with state per window."""

    class Context(ABC, Generic[W]):
        """The context of a window."""

        @abstractmethod
        def window(self) -> W:
            """The window."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """State per window; `ProcessAllWindowFunction.clear` must clear it."""

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """State shared by all windows."""

    @abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context[Any], elements: Iterable[IN]) -> Iterable[OUT | Tagged]:
        """Return the results of a window; may be a generator."""

    def clear(self, context: ProcessAllWindowFunction.Context[Any]) -> None:
        """Clear ``context.window_state()``; called when the window is deleted."""
