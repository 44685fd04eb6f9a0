"""Runs users' functions outside of a job: their contexts, and the reading of keys and windows."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from holdfast.checkpoint.metadata import OperatorCheckpoint
from holdfast.common.typeinfo import RowTypeInfo, TypeInformation
from holdfast.common.values.pickling import dumps_program
from holdfast.common.windows import CountWindow, GlobalWindow, TimeWindow
from holdfast.connectors.base import JobInfo
from holdfast.errors import ConfigurationError
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.operators.keyed import KeyedOperator
from holdfast.runtime.plan.context import OperatorContext, UserRuntimeContext
from holdfast.runtime.records.user_code import close_function, not_iterable, open_function, user_error
from holdfast.runtime.time.clock import Clock
from holdfast.state.cells.row import Row, filled
from holdfast.state.keys.declared_keys import key_restorer
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state_api.reader_functions import KeyedStateReaderFunction, WindowReaderFunction
from holdfast.state_api.state_rows import Field
from holdfast.state_api.timers_by_key import TimersByKey, timers_by_key

__all__ = ["KeyReading", "Results", "WindowReading", "copy_of", "function_context"]

F = TypeVar("F")
Call = Callable[[], Any]


def function_context(
    uid: str, operator: OperatorCheckpoint, now_ms: int, subtask: int = 0, parallelism: int = 1
) -> OperatorContext:
    """The context of a stored operator's function, without state."""
    return OperatorContext(
        job=JobInfo("state-processor", "state-processor", 0, None),
        uid=uid,
        name=operator.name,
        subtask=subtask,
        parallelism=parallelism,
        max_parallelism=operator.max_parallelism,
        clock=Clock(processing_time=now_ms),
        state=None,
        metrics=MetricGroup(),
    )


def copy_of(function: F, where: str) -> F:
    """A copy, as each task gets one.

    Raises:
        ConfigurationError: it cannot be pickled.
    """
    try:
        copy: F = pickle.loads(dumps_program(function))
    except (TypeError, pickle.PicklingError) as error:
        raise ConfigurationError(
            f"the function of {where} cannot be pickled for Spark's tasks: {error}. Create such objects in open()"
        ) from error
    return copy


@dataclass(frozen=True)
class Results:
    """The results of a function as rows: the fields of rows, or a column ``value``."""

    type: TypeInformation[Any] | None
    """None: pickles."""

    @property
    def fields(self) -> list[Field]:
        """The columns."""
        if isinstance(self.type, RowTypeInfo):
            return list(zip(self.type.get_field_names(), self.type.get_field_types(), strict=True))
        return [("value", self.type)]

    def row(self, result: Any) -> Sequence[Any]:
        """A result as a row.

        Raises:
            TypeError: it is not of the type.
        """
        if self.type is None:
            return (result,)
        fitting = self.type.conform(result)
        return tuple(fitting._values) if isinstance(self.type, RowTypeInfo) else (fitting,)

    def rows(self, call: Call, context: OperatorContext, key: Any) -> Iterator[Sequence[Any]]:
        """The results of a call for a key.

        Raises:
            UserCodeError: the function failed, or a result is not of the type.
        """
        results = None
        try:
            results = call()
            for result in () if results is None else results:
                yield self.row(result)
        except (Exception, SystemExit) as error:
            raise user_error(not_iterable(error, results), context.name, context.uid, key=key) from error


class _Timers(KeyedStateReaderFunction.Context):
    def __init__(self) -> None:
        self.event: Sequence[int] = ()
        self.processing: Sequence[int] = ()

    def registered_event_time_timers(self) -> Sequence[int]:
        return self.event

    def registered_processing_time_timers(self) -> Sequence[int]:
        return self.processing


class KeyReading(KeyedOperator):
    """A KeyedStateReaderFunction on a part of an operator's keyed state.

    Args:
        function: The function.
        context: Its context.
        state: The opened state, whose states the function declares before they are restored.
        key_type: The type of the keys.
    """

    def __init__(
        self,
        function: KeyedStateReaderFunction[Any, Any],
        context: OperatorContext,
        state: KeyedState,
        key_type: TypeInformation[Any],
    ) -> None:
        super().__init__(copy_of(function, context.where))
        self.context = replace(context, state=state, key_type=key_type)
        self._state = state
        self.open()

    def read(self, results: Results) -> Iterator[Sequence[Any]]:
        """The results for all keys that have states or timers."""
        restore = key_restorer(self.context.key_type)
        timers, space, read_key = _Timers(), self.space, self.function.read_key
        with timers_by_key(self._state, ("event", "processing"), tempfile.gettempdir()) as waiting:
            for keys, rows in self._blocks(waiting):
                for key, space.row in zip(keys, rows):
                    timers.event, timers.processing = waiting.of(key)
                    shown = space.key = key if restore is None else restore(key)
                    yield from results.rows(lambda shown=shown: read_key(shown, timers), self.context, shown)  # type: ignore[misc]
                space.leave_key()
                self._state.discard()
        self.close()

    def _blocks(self, waiting: TimersByKey) -> Iterator[tuple[list[Any], list[Row]]]:
        """The keys with their rows, a block at a time: those with state, then those with timers only."""
        for keys, rows in self.table.blocks():
            held = [(key, row) for key, row in zip(keys, rows) if filled(row)]
            yield [key for key, _ in held], [row for _, row in held]
            waiting.drop([key for key, _ in held])
        for keys in waiting.blocks():
            yield keys, [self.table.empty_row() for _ in keys]


class _Window(WindowReaderFunction.Context):
    def __init__(self) -> None:
        self.current: Any = None

    def window(self) -> Any:
        return self.current


class WindowReading:
    """A WindowReaderFunction."""

    def __init__(self, function: WindowReaderFunction[Any, Any, Any], context: OperatorContext) -> None:
        self._function = copy_of(function, context.where)
        self._context = context
        self._window = _Window()
        open_function(self._function, UserRuntimeContext(context, None))

    def read(self, results: Results, key: Any, window: Any, elements: Iterable[Any]) -> Iterator[Sequence[Any]]:
        """The results for a window in its stored form."""
        self._window.current = _shown(window)
        return results.rows(lambda: self._function.read_window(key, self._window, elements), self._context, key)

    def close(self) -> None:
        """Close the function."""
        close_function(self._function)


def _shown(window: Any) -> Any:
    if window is None:
        return GlobalWindow()
    return TimeWindow(*window) if type(window) is tuple else CountWindow(window)
