"""WindowReader: the contents of windows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, TypeVar

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.typeinfo import ListTypeInfo, TypeInformation, Types
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.windows.pane_namespaces import PaneNamespaces
from holdfast.runtime.operators.windows.window_content import CONTENTS, Accumulator, Elements, Reduced, WindowContent
from holdfast.runtime.operators.windows.window_definition import ALIGNED, PANES, TIMED, named
from holdfast.runtime.records.copies import copied
from holdfast.state.backends.contents import declare_stored
from holdfast.state.keys.declared_keys import key_restorer
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state_api.function_reading import Results, WindowReading, copy_of, function_context
from holdfast.state_api.reader_functions import WindowReaderFunction
from holdfast.state_api.state_rows import Field, StateRows
from holdfast.state_api.stored_operator import StoredOperator
from holdfast.windowing.assigners import (
    GlobalWindows,
    MergingWindowAssigner,
    PeriodicWindows,
    TumblingWindows,
)
from holdfast.windowing.counts import CountSlidingWindowAssigner, CountTumblingWindowAssigner

__all__ = ["WindowReader"]

R = TypeVar("R")
_ALIGNED, _EACH, _MERGING = "window", "windows", "merging"
"""The families of windows that fire for all keys at once, of windows with a trigger for each key, and of sets of windows."""
Found = tuple[Any, Any, Any]
"""Key, stored form of the window, content."""


@dataclass(frozen=True)
class WindowReader(Generic[R]):
    """Reads the windows of an operator: a row for each key and window.

    Columns: ``key``; ``window_start`` and ``window_end`` in ms for windows of time, ``window`` for windows of a count, none
    for the global window; then the content. Windows that overlap and have fired already are left out.
    """

    open: Callable[[str], StoredOperator]
    made: Callable[[StateRows], R]
    assigner: Any
    now_ms: int = 0
    """The processing time of reader functions."""
    evicts: bool = False

    def evictor(self, evictor: Any = None) -> WindowReader[R]:
        """The job's windows have an evictor: they keep all their elements."""
        return replace(self, evicts=True)

    def reduce(
        self,
        uid: str,
        reduce_function: Any,
        reader_function: WindowReaderFunction[Any, Any, Any] | None = None,
        key_type: TypeInformation[Any] | None = None,
        reduce_type: TypeInformation[Any] | None = None,
        output_type: TypeInformation[Any] | None = None,
    ) -> R:
        """The reduced values, in a column ``value``; or the results of a reader function.

        Args:
            uid: The operator's uid.
            reduce_function: The job's function.
            reader_function: Gets each window with its value.
            key_type: The type of the keys; None: as declared in the job.
            reduce_type: The type of the values; None: pickles.
            output_type: The type of the reader function's results; None: pickles.

        Raises:
            ConfigurationError: the operator has no such windows.
        """
        content = Reduced(reduce_function, reduce_type)
        return self._read(uid, content, key_type, ("value", reduce_type), reader_function, output_type)

    def aggregate(
        self,
        uid: str,
        aggregate_function: Any,
        reader_function: WindowReaderFunction[Any, Any, Any] | None = None,
        key_type: TypeInformation[Any] | None = None,
        acc_type: TypeInformation[Any] | None = None,
        output_type: TypeInformation[Any] | None = None,
    ) -> R:
        """The results of an AggregateFunction, in a column ``value``; or the results of a reader function.

        Args:
            uid: The operator's uid.
            aggregate_function: The job's function.
            reader_function: Gets each window with its result.
            key_type: The type of the keys; None: as declared in the job.
            acc_type: The declared type of the accumulators in the job, if any.
            output_type: The type of the results; None: pickles.

        Raises:
            ConfigurationError: the operator has no such windows.
        """
        content = Accumulator(aggregate_function, acc_type)
        return self._read(uid, content, key_type, ("value", output_type), reader_function, output_type)

    def process(
        self,
        uid: str,
        reader_function: WindowReaderFunction[Any, Any, Any] | None = None,
        key_type: TypeInformation[Any] | None = None,
        element_type: TypeInformation[Any] | None = None,
        output_type: TypeInformation[Any] | None = None,
    ) -> R:
        """The elements of windows of ``process`` and ``apply``, in a column ``elements``; without a type, one pickle.

        Args:
            uid: The operator's uid.
            reader_function: Gets each window with its elements; its results are the rows.
            key_type: The type of the keys; None: as declared in the job.
            element_type: The type of the elements.
            output_type: The type of the reader function's results; None: pickles.

        Raises:
            ConfigurationError: the operator has no such windows.
        """
        kind = None if element_type is None else ListTypeInfo(element_type)
        return self._read(uid, Elements(element_type), key_type, ("elements", kind), reader_function, output_type)

    def _read(
        self,
        uid: str,
        content: WindowContent,
        key_type: TypeInformation[Any] | None,
        field: Field,
        function: WindowReaderFunction[Any, Any, Any] | None,
        output_type: TypeInformation[Any] | None,
    ) -> R:
        operator = self.open(uid)
        key, family = operator.key_type(key_type), self._family(operator)
        held = self._held(content)
        evicts = self.evicts  # what runs on Spark must not refer to this reader, which has the session
        result = content.of if evicts else content.result() or _same
        fired = min(operator.operator.watermarks, default=MIN_TIMESTAMP)
        find = self._finder(family, content, fired)

        def declare(state: KeyedState) -> None:
            if family in state.schema.states:
                state.space(family).register(held.column())
            if family == _EACH and _MERGING in state.schema.states:
                declare_stored(state, _MERGING, {})

        def extract(state: KeyedState) -> Iterator[tuple[Any, Any, Any]]:
            if family not in state.schema.states:
                return
            restore = key_restorer(key) or _same
            position = state.schema.column(family, CONTENTS)
            assert position is not None
            for owner, window, stored in find(state, position + 1):
                value = list(stored) if held.keeps_elements else stored
                shown = result([each for each, _ in value] if evicts else value)
                yield restore(owner), window, shown

        if function is None:
            rows = lambda state: ((key, *_columns(window), shown) for key, window, shown in extract(state))  # noqa: E731
            return self.made(operator.rows([("key", key), *self._window_fields(), field], rows, declare))
        results, context = Results(output_type), function_context(uid, operator.operator, self.now_ms)
        copy_of(function, operator.where)  # what cannot be pickled is told before anything is read

        def extract_by(state: KeyedState) -> Iterator[Sequence[Any]]:
            reading = WindowReading(function, context)
            for owner, window, shown in extract(state):
                yield from reading.read(results, owner, window, shown if content.keeps_elements else [shown])
            reading.close()

        return self.made(operator.rows(results.fields, extract_by, declare))

    def _family(self, operator: StoredOperator) -> str:
        families = [name for name in self._families(operator) if name in operator.schema.states]
        if not families:
            raise ConfigurationError(f"{operator.where} has no windows")
        if families[0] == _ALIGNED and not isinstance(self.assigner, PeriodicWindows):
            raise ConfigurationError(
                f"{operator.where} has windows of fixed times; {type(self.assigner).__name__} is not its window assigner"
            )
        merges = _MERGING in operator.schema.states
        if merges != isinstance(self.assigner, MergingWindowAssigner):
            raise ConfigurationError(
                f"{operator.where} has windows that {'merge' if merges else 'do not merge'}; "
                f"{type(self.assigner).__name__} is not its window assigner"
            )
        return families[0]

    def _families(self, operator: StoredOperator) -> Sequence[str]:
        """The states that may have the windows: the one of their form, if the checkpoint has their definition.

        Raises:
            ConfigurationError: the windows are others.
        """
        definition = operator.operator.definition
        if definition is None or definition["of"] != "windows":
            return _ALIGNED, _EACH
        if self.evicts != (definition["content"] == TIMED):
            has = "have no evictor: leave out evictor()" if self.evicts else "were stored for an evictor: call evictor()"
            raise ConfigurationError(f"the windows of {operator.where} {has}")
        if definition["form"] not in (ALIGNED, PANES):
            return (_EACH,)
        stored = definition["assigner"], definition["arguments"]
        if isinstance(self.assigner, PeriodicWindows) and named(self.assigner) != stored:
            raise ConfigurationError(f"{operator.where} has {stored[0]}{tuple(stored[1])}, not {self.assigner!r}")
        return (_ALIGNED,)

    def _held(self, content: WindowContent) -> WindowContent:
        """The content as it is stored."""
        if not self.evicts:
            return content
        declared = content.declared if content.keeps_elements else None
        return Elements(None if declared is None else Types.TUPLE([declared, Types.LONG()]))

    def _window_fields(self) -> list[Field]:
        if isinstance(self.assigner, GlobalWindows):
            return []
        if isinstance(self.assigner, (CountTumblingWindowAssigner, CountSlidingWindowAssigner)):
            return [("window", Types.LONG())]
        return [("window_start", Types.LONG()), ("window_end", Types.LONG())]

    def _finder(self, family: str, content: WindowContent, fired: int) -> Callable[[KeyedState, int], Iterable[Found]]:
        assigner = self.assigner
        if family == _EACH:
            return _merging if isinstance(assigner, MergingWindowAssigner) else _each
        if isinstance(assigner, TumblingWindows):
            size = assigner.size
            return lambda state, cell: _aligned(state, cell, size)
        return lambda state, cell: _paned(state, cell, assigner, content, fired)


def _same(value: Any) -> Any:
    return value


def _columns(window: Any) -> tuple[Any, ...]:
    """The columns of a window's stored form."""
    if window is None:
        return ()
    return window if type(window) is tuple else (window,)


def _aligned(state: KeyedState, cell: int, size: int) -> Iterator[Found]:
    for start, table in state.space(_ALIGNED).tables.items():
        assert start is not None
        for keys, rows in table.blocks():
            for key, row in zip(keys, rows):
                if row[cell] is not None:
                    yield key, (start, start + size), row[cell]


def _paned(state: KeyedState, cell: int, assigner: Any, content: WindowContent, fired: int) -> Iterator[Found]:
    """The windows that have not fired, each merged from its panes."""
    tables, namespaces = state.space(_ALIGNED).tables, PaneNamespaces(assigner)
    panes: dict[tuple[int, int], list[int]] = {}
    for number in sorted(each for each in tables if each is not None):
        pane, after = namespaces.pane(number)
        for window in assigner.windows(pane)[after:]:
            if window[1] - 1 > fired:
                panes.setdefault(window, []).append(number)
    for window, numbers in sorted(panes.items()):
        sorted_rows = [tables[number].in_order() for number in numbers]
        for _, rows in groupby(heapq.merge(*sorted_rows, key=itemgetter(0)), itemgetter(0)):
            key = merged = None
            for _, owner, row in rows:
                if row[cell] is not None:
                    key = owner
                    stored = list(row[cell]) if content.keeps_elements else copied(row[cell])
                    merged = stored if merged is None else content.merged(merged, stored)
            if merged is not None:
                yield key, window, merged


def _each(state: KeyedState, cell: int) -> Iterator[Found]:
    for keys, rows in state.space(_EACH).table().blocks():
        for (key, window), row in zip(keys, rows):
            if row[cell] is not None:
                yield key, window, row[cell]


def _merging(state: KeyedState, cell: int) -> Iterator[Found]:
    """The windows of each key's set, with the contents of their state windows."""
    windows = state.space(_EACH).table()
    windows.flush()
    for keys, rows in state.space(_MERGING).table().blocks():
        found = [
            (key, actual, stored)
            for key, sets in zip(keys, rows)
            if sets[1] is not None
            for actual, stored in sets[1].items()
        ]
        owners = [(key, stored) for key, _, stored in found]
        for (key, actual, _), row in zip(found, windows.look_up(owners), strict=True):
            if row[cell] is not None:
                yield key, actual, row[cell]
