"""FormerWindows: a checkpoint's windows that are stored as namespaces, read by an operator with a row per key and window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from holdfast.common.windows import Bounds
from holdfast.runtime.operators.windows.pane_namespaces import PaneNamespaces
from holdfast.runtime.operators.windows.window_content import CONTENTS, WindowContent
from holdfast.runtime.records.copies import copied
from holdfast.state.cells.column import Column
from holdfast.state.cells.entries import LARGE
from holdfast.state.cells.row import Row
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.space import StateSpace
from holdfast.windowing.assigners import PeriodicWindows, TumblingWindows

__all__ = ["FormerWindows"]


class FormerWindows:
    """The namespaces of windows, as `AlignedWindows` and `PanedWindows` store them.

    Args:
        state: The operator's state.
        assigner: The assigner of the stored windows.
        content: The windows' content.
        rows: The space that receives the windows' rows, with the states of the window function.
    """

    def __init__(self, state: KeyedState, assigner: PeriodicWindows[Any], content: WindowContent, rows: StateSpace) -> None:
        self._assigner = assigner
        self._aligned = isinstance(assigner, TumblingWindows)
        self._numbers = PaneNamespaces(assigner)
        self._space = state.space("window")
        self._cell = 1 + self._space.register(content.column(), grows=content.keeps_elements)
        self._others: list[tuple[int, int]] = []
        """The cells of the window function's states in the stored rows and in the new ones."""
        for column in state.schema.states["window"].columns if self._aligned else ():
            if column.name != CONTENTS:
                stored = Column.stored(column, column.types)
                self._others.append((1 + self._space.register(stored), 1 + rows.register(stored)))

    def windows(self) -> Iterator[tuple[int, list[Bounds]]]:
        """The namespaces, earlier ones first, with the windows that read each."""
        for number in sorted(number for number in self._space.tables if number is not None):
            if self._aligned:
                yield number, self._assigner.windows(number)
            else:
                pane, after = self._numbers.pane(number)
                yield number, self._assigner.windows(pane)[after:]

    def rows(self, number: int) -> Iterator[tuple[Any, Row]]:
        """The keys of a namespace with their rows."""
        table = self._space.table(number)
        held = list(table.rows.items())
        stored = table.stored_rows() if table.in_store else ()
        fresh = ((key, row) for key, row in stored if key not in table.rows)
        return ((key, row) for key, row in chain(held, fresh) if row[self._cell] is not None)

    def content(self, row: Row) -> Any:
        """A copy of a row's content."""
        content = row[self._cell]
        return copied(list(content) if type(content) in LARGE else content)

    def move_states(self, row: Row, to: Row) -> None:
        """Copy the window function's states from a stored row to the row of a window."""
        for here, there in self._others:
            if here < len(row):
                to[there] = row[here]

    def drop(self, number: int) -> None:
        """Drop a namespace."""
        self._space.drop(number)
