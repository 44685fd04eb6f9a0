"""LiveTable: a sink that shows its stream in a notebook as a table that updates."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from holdfast.common.tabular import to_arrow, to_pandas, to_polars
from holdfast.connectors.collect import CollectSink, Mailbox
from holdfast.notebook.widgets import show_table

__all__ = ["LiveTable"]


class LiveTable(CollectSink):
    """The latest elements of a stream. As the last expression of a cell, it is a table that updates while the job runs.

    Args:
        rows: The number of elements to keep.
        key: A function of the element: of elements with equal keys, the table has the latest only.

    Examples:
        >>> totals = LiveTable(key=lambda row: row["account"])
        >>> stream.sink_to(totals)  # doctest: +SKIP
        >>> job = env.execute_async("totals")  # doctest: +SKIP
        >>> totals  # doctest: +SKIP
    """

    def __init__(self, rows: int = 100, key: Callable[[Any], Hashable] | None = None) -> None:
        if rows < 1:
            raise ValueError(f"rows of a LiveTable must be at least 1, got {rows}")
        super().__init__(_Latest(rows, key))

    def elements(self) -> list[Any]:
        """The elements in the table, the latest last."""
        return self.mailbox.latest()[0]

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return to_pandas(self.elements())

    def to_polars(self) -> Any:
        """The table as a ``polars.DataFrame``.

        Raises:
            ConfigurationError: Polars is not installed.
        """
        return to_polars(self.elements())

    def to_arrow(self) -> Any:
        """The table as a ``pyarrow.Table``.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        return to_arrow(self.elements())

    def _ipython_display_(self) -> None:
        """Show the table; it updates as long as this object lives."""
        show_table(self.mailbox)


class _Latest(Mailbox):
    """Keeps the latest elements, or the latest of each key."""

    def __init__(self, rows: int, key: Callable[[Any], Hashable] | None) -> None:
        super().__init__()
        self._rows = rows
        self._key = key
        self._elements: dict[Hashable, Any] = {}

    def add(self, values: list[Any]) -> None:
        """Take the records of an epoch."""
        for value in values:
            self.total += 1
            key = self.total if self._key is None else self._key(value)
            self._elements.pop(key, None)  # it moves to the end
            self._elements[key] = value
            if len(self._elements) > self._rows:
                del self._elements[next(iter(self._elements))]

    def latest(self) -> tuple[list[Any], int]:
        """The elements that are kept, and the number of all."""
        with self.arrived:
            return list(self._elements.values()), self.total
