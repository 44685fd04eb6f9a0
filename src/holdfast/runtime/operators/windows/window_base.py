"""The common parts of window operators: the specification, the user's functions and contexts, and global state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from typing import Any

from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo.base import shown
from holdfast.common.typeinfo.batches import Misfit
from holdfast.common.windows import Window
from holdfast.functions.aggregates import Aggregates
from holdfast.functions.window_functions import ProcessWindowFunction
from holdfast.runtime.operators.windows.window_content import CONTENTS, Adder, WindowContent
from holdfast.runtime.plan.context import UserRuntimeContext
from holdfast.runtime.plan.operator import Operator
from holdfast.runtime.records.copies import Copy, same
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import close_function, open_function, user_callable, user_error
from holdfast.state.cells.row import Row
from holdfast.state.keys.declared_keys import key_restorer
from holdfast.state.rows.space import StateSpace
from holdfast.windowing.assigners import PeriodicWindows, WindowAssigner
from holdfast.windowing.evictors import Evictor
from holdfast.windowing.triggers import Trigger

__all__ = ["CHUNK", "WindowContext", "WindowSpec", "WindowsBase"]

CHUNK = 20_000
"""Approximate size of the batches in which a window is emitted for all keys."""


@dataclass(frozen=True)
class WindowSpec:
    """Windows of a keyed stream: their assigner, trigger and content."""

    assigner: WindowAssigner[Any, Any]
    trigger: Trigger[Any, Any]
    content: WindowContent
    window_function: tuple[str, Any] | None = None
    """``('process', f)`` or ``('apply', f)``."""
    allowed_lateness_ms: int = 0
    late_tag: OutputTag | None = None
    clears: bool = False
    """Whether the window function has a `clear` to call when a window is removed."""
    evictor: Evictor[Any, Any] | None = None
    two_inputs: bool = False
    """Whether the elements come from two streams, as pairs of the input's number and the element."""
    by_rows: bool = False
    """Whether each window of a key has its own row, whatever the assigner: the checkpoint has such rows, or is converted."""
    former: PeriodicWindows[Any] | None = None
    """The assigner of the checkpoint's windows, stored by namespace, which are converted to rows."""

    def functions(self) -> Sequence[Any]:
        """The user's functions."""
        called = None if self.window_function is None else self.window_function[1]
        return [function for function in (self.content.function, called) if function is not None]


class WindowContext(ProcessWindowFunction.Context[Any]):
    """The current key and window, set by the operator."""

    __slots__ = ("_operator", "at", "bring", "key")

    def __init__(self, operator: WindowsBase) -> None:
        self._operator = operator
        self.at: Any = None
        """The window."""
        self.key: Any = None
        self.bring: Callable[[Any], Any] | None = None
        """Makes a key's global state current; None until there is any."""

    def window(self) -> Window:
        """The window."""
        return self.at  # type: ignore[no-any-return]

    def current_processing_time(self) -> int:
        """The machine's time, in ms since 1970."""
        return self._operator.context.clock.processing_time

    def current_watermark(self) -> int:
        """The watermark."""
        return self._operator.context.clock.watermark

    def window_state(self) -> StateSpace:
        """The window function's state of the current key and window."""
        return self._operator.window_state()

    def global_state(self) -> StateSpace:
        """State of the key, across windows."""
        return self._operator.global_state_of(self.key)


class _AggregationRuntimeContext(UserRuntimeContext):
    def _keyed(self) -> StateSpace:
        raise RuntimeError(
            f"functions that reduce or aggregate windows have no state of their own, in {self._context.where}: what they "
            "return is the window's state; a window function beside them may have some"
        )


class _WindowRuntimeContext(UserRuntimeContext):
    """Provides the states of `ProcessWindowFunction.Context.global_state`."""

    def __init__(self, operator: WindowsBase) -> None:
        super().__init__(operator.context, None)
        self._operator = operator

    def _keyed(self) -> StateSpace:
        return self._operator.open_global_space()


class WindowsBase(Operator):
    """The user's window functions and their global state. From here, elements go to their windows, or to the late ones."""

    _add: Adder
    """Adds elements to contents; set when the operator opens."""

    def __init__(self, spec: WindowSpec) -> None:
        self._spec = spec
        self._content = spec.content
        self._event_time = spec.assigner.is_event_time()
        self._lateness = spec.allowed_lateness_ms
        self._tag = spec.late_tag

    def open(self) -> None:
        """Open the functions, after the state has been declared."""
        assert self.context.state is not None
        self._global: StateSpace | None = None
        self._window_context = WindowContext(self)
        function = self._window_function()
        if self._content.function is not None:
            open_function(self._content.function, _AggregationRuntimeContext(self.context, None))
        if function is not None:
            open_function(function, _WindowRuntimeContext(self))
        style = self._spec.window_function[0] if self._spec.window_function else None
        self._apply = user_callable(function, "apply") if style == "apply" else None
        self._process = user_callable(function, "process") if style == "process" else None
        self._clear = function.clear if self._spec.clears else None
        built_in = isinstance(self._content.function, Aggregates)
        self._own: Copy = same if built_in else self.context.copied
        """Copies content that stays in the state before functions get it, because they may change it."""
        self._restore_key = key_restorer(self.context.key_type)
        if "global" in self.context.state.spaces:  # the checkpoint has global state
            self.open_global_space()

    def _window_function(self) -> Any:
        return self._spec.window_function[1] if self._spec.window_function else None

    def close(self) -> None:
        """Close the functions."""
        for each in self._spec.functions():
            close_function(each)

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        """One input, or two."""
        return (partial(self._from, 0), partial(self._from, 1)) if self._spec.two_inputs else (self.process,)

    def _from(self, side: int, batch: RecordBatch) -> None:
        self.process(RecordBatch([(side, value) for value in batch.values], batch.timestamps, batch.keys))

    def _bare(self, value: Any) -> Any:
        """The element as users see it, without the number of its input."""
        return value[1] if self._spec.two_inputs else value

    def _emit_late(self, values: list[Any], stamps: list[int]) -> None:
        self.context.emit_late(self._tag, [self._bare(value) for value in values], stamps)

    def window_state(self) -> StateSpace:
        """The window function's state of the current key and window."""
        raise NotImplementedError

    def global_state_of(self, key: Any) -> StateSpace:
        """The function's global state of a key. After the first call, each firing key's global state is loaded."""
        if self._global is not None:
            return self._global
        self.open_global_space()
        return self._bring_global(key)

    def _bring_global(self, key: Any) -> StateSpace:
        space = self._global
        assert space is not None
        space.key = key
        (space.row,) = space.table().load((key,))
        return space

    def open_global_space(self) -> StateSpace:
        """The function's state across windows, for the key that fires."""
        if self._global is not None:
            return self._global
        assert self.context.state is not None
        self._global = self.context.state.space("global")
        self._global.expire_by(self.context.clock, self.context.state.timer_queue("ttl"))
        self._window_context.bring = self._bring_global
        return self._global

    def _timestamps(self, batch: RecordBatch, least: int) -> list[int]:
        """The elements' timestamps, for event-time windows.

        Raises:
            UserCodeError: an element has no timestamp, or one before ``least``.
        """
        values, timestamps = batch.values, batch.timestamps
        if timestamps is None or min(timestamps) < least:
            raise user_error(
                ValueError(
                    "the element has no timestamp (Java Long.MIN_VALUE stands for that), which a window of event time "
                    "needs: give from_source() or assign_timestamps_and_watermarks() a WatermarkStrategy with a "
                    "timestamp assigner, or take a window of processing time"
                ),
                self.context.name,
                self.context.uid,
                self._bare(values[0 if timestamps is None else timestamps.index(min(timestamps))]),
            )
        return timestamps

    def _add_rows(self, rows: list[Row], values: Sequence[Any], keys: Sequence[Any]) -> None:
        """Add elements to the contents in their rows."""
        rest = iter(values)
        try:
            self._add(rows, rest)
        except (Exception, SystemExit) as error:
            at = len(values) - length_hint(rest) - 1
            raise user_error(error, self.context.name, self.context.uid, self._bare(values[at]), keys[at]) from error

    def _misfit(self, error: Misfit, value: Any, window: Any, key: Any) -> Exception:
        """The error for a content that does not fit its declared type when its window fires."""
        refusal = TypeError(f"the value {shown(value)} does not fit state {CONTENTS!r} of {self._content.declared}: {error}")
        return user_error(refusal, self.context.name, self.context.uid, window, key)

    def advance_processing_time(self, now: int) -> None:
        """Fire the windows that are due in processing time."""
        if self._global is not None:
            self._global.sweep()
