"""Functions that make results of a window's elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from holdfast.common.windows import Window
from holdfast.functions.function import Function
from holdfast.state.interfaces import KeyedStateStore

__all__ = ["AllWindowFunction", "ProcessAllWindowFunction", "ProcessWindowFunction", "WindowFunction"]

IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W", bound=Window)
W2 = TypeVar("W2", bound=Window)


class WindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """Makes results of a key's elements in a window."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window; may be a generator.

        Args:
            key: the key.
            window: the window.
            inputs: its elements; after ``reduce`` or ``aggregate`` exactly one, the reduced or aggregated value.
        """


class AllWindowFunction(Function, Generic[IN, OUT, W]):
    """Makes results of all elements in a window."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window; may be a generator."""


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """Makes results of a key's elements in a window, with the clocks and with state of the window and of the key."""

    class Context(ABC, Generic[W2]):
        """What the function may ask about the window."""

        @abstractmethod
        def window(self) -> W2:
            """The window."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The machine's time, in ms since 1970."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The watermark, in ms; ``-2**63`` before the first."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """State of the key and the window; `ProcessWindowFunction.clear` must clear it."""

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """State of the key, for all its windows."""

    @abstractmethod
    def process(self, key: KEY, context: ProcessWindowFunction.Context[Any], elements: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window; may be a generator.

        Args:
            key: the key.
            context: what may be asked about the window.
            elements: its elements; after ``reduce`` or ``aggregate`` exactly one, the reduced or aggregated value.
        """

    def clear(self, context: ProcessWindowFunction.Context[Any]) -> None:
        """The window is being deleted: clear what ``context.window_state()`` holds."""


class ProcessAllWindowFunction(Function, Generic[IN, OUT, W]):
    """Makes results of all elements in a window, with state of the window."""

    class Context(ABC, Generic[W2]):
        """What the function may ask about the window."""

        @abstractmethod
        def window(self) -> W2:
            """The window."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """State of the window; `ProcessAllWindowFunction.clear` must clear it."""

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """State for all windows."""

    @abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context[Any], elements: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window; may be a generator."""

    def clear(self, context: ProcessAllWindowFunction.Context[Any]) -> None:
        """The window is being deleted: clear what ``context.window_state()`` holds."""
