"""Functions that read the state of a key, or a window, and make results from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic

from holdfast.common.values.type_variables import IN, KEY, OUT
from holdfast.functions.function import Function

__all__ = ["KeyedStateReaderFunction", "WindowReaderFunction"]


class KeyedStateReaderFunction(Function, Generic[KEY, OUT]):
    """Reads the states and timers of keys. Declare the job's states in ``open``, as the job's function does.

    Changes of states are not stored. State that had expired when the savepoint was made is not seen.
    """

    class Context(ABC):
        """The timers of the current key."""

        @abstractmethod
        def registered_event_time_timers(self) -> Sequence[int]:
            """The times of the key's event-time timers, in ms, in order."""

        @abstractmethod
        def registered_processing_time_timers(self) -> Sequence[int]:
            """The times of the key's processing-time timers, in ms, in order."""

    @abstractmethod
    def read_key(self, key: KEY, ctx: Context) -> Iterable[OUT] | None:
        """Yield results from the states and timers of a key that has any."""


class WindowReaderFunction(Function, Generic[IN, OUT, KEY]):
    """Reads the contents of windows."""

    class Context(ABC):
        """The current window."""

        @abstractmethod
        def window(self) -> Any:
            """The window: a TimeWindow, CountWindow or GlobalWindow."""

    @abstractmethod
    def read_window(self, key: KEY, context: Context, elements: Iterable[IN]) -> Iterable[OUT] | None:
        """Yield results from a window: its elements, or the one reduced or aggregated value."""
