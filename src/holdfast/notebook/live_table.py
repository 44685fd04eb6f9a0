"""LiveTable: a sink that shows its stream in a notebook as a table that updates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Any

from holdfast.common.values.tabular import to_arrow, to_pandas, to_polars
from holdfast.connectors.base import WriterContext
from holdfast.connectors.collect import CollectSink, CollectWriter, Mailbox
from holdfast.notebook.widgets import show_table

__all__ = ["LiveTable"]

_ROWS = 100
"""The most elements that a page shows, and that are kept without a key, unless the program says otherwise."""


class LiveTable(CollectSink):
    """The latest elements of a stream. As the last expression of a cell, it is a table that updates while the job runs.

    It may be the sink of several streams, and of several jobs of the program.

    Args:
        rows: The number of elements to keep; None: 100, and with a ``key`` one for each key.
        key: A function of the element: of elements with equal keys, the table has the latest only. It runs in the job.

    Examples:
        >>> totals = LiveTable(key=lambda row: row["account"])
        >>> stream.sink_to(totals)  # doctest: +SKIP
        >>> job = env.execute_async("totals")  # doctest: +SKIP
        >>> totals  # doctest: +SKIP
    """

    def __init__(self, rows: int | None = None, key: Callable[[Any], Hashable] | None = None) -> None:
        if rows is not None and rows < 1:
            raise ValueError(f"rows of a LiveTable must be at least 1, got {rows}")
        self._latest = _Latest(_ROWS if rows is None and key is None else rows, key is not None)
        super().__init__(self._latest)
        self._key = key

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_key": self._key}

    def create_writer(self, context: WriterContext) -> CollectWriter:
        """Create a writer, which computes the keys."""
        return CollectWriter() if self._key is None else _KeyedWriter(self._key)

    def elements(self) -> list[Any]:
        """The elements in the table, the latest last."""
        return self._latest.kept()

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


class _KeyedWriter(CollectWriter):
    """Collects pairs of key and record."""

    def __init__(self, key: Callable[[Any], Hashable]) -> None:
        super().__init__()
        self._key = key

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Add the records with their keys."""
        pairs = []
        for value in values:
            try:
                key = self._key(value)
                hash(key)
            except Exception as error:
                raise ValueError(f"the key function of the LiveTable fails: {type(error).__name__}: {error}") from error
            pairs.append((key, value))
        super().write(pairs, timestamps)


class _Latest(Mailbox):
    """Keeps the latest elements, or the latest of each key."""

    def __init__(self, rows: int | None, keyed: bool) -> None:
        super().__init__()
        self._rows = rows
        self._keyed = keyed
        self._elements: dict[Hashable, Any] = {}

    def add(self, values: list[Any]) -> None:
        """Take the records of an epoch."""
        for value in values:
            self.total += 1
            key, element = value if self._keyed else (self.total, value)
            self._elements.pop(key, None)  # it moves to the end
            self._elements[key] = element
            if self._rows is not None and len(self._elements) > self._rows:
                del self._elements[next(iter(self._elements))]

    def kept(self) -> list[Any]:
        """The elements that are kept."""
        with self.arrived:
            return list(self._elements.values())

    def latest(self) -> tuple[list[Any], int]:
        """The latest elements, as many as a page shows, and the number of all."""
        with self.arrived:
            newest = islice(reversed(self._elements.values()), self._rows or _ROWS)
            return list(newest)[::-1], self.total
