"""The queries: each program with its model, and how its results are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from benchmarks.nexmark import aggregates, joins, models, stateless, windows
from benchmarks.nexmark.events import Event
from holdfast.common import RowKind
from holdfast.datastream import DataStream

_ADDED = (RowKind.INSERT, RowKind.UPDATE_AFTER)


class Kind(Enum):
    """What the elements of a result mean."""

    APPEND = "each element is a row of the result"
    UPSERT = "each element replaces the row of its key"
    CHANGELOG = "each element is a Row, whose kind says whether it comes or goes"


@dataclass(frozen=True)
class Query:
    """A query of the benchmark."""

    name: str
    program: Callable[[DataStream], DataStream]
    """From the stream of events to the results."""
    model: Callable[[Sequence[Event]], Iterable[Any]]
    kind: Kind = Kind.APPEND
    key: int = 0
    """For upserts: the number of fields, at the beginning of a row, that are its key."""

    def table(self, elements: Iterable[Any]) -> Counter[tuple[Any, ...]]:
        """The rows of the result, with their numbers, after all its elements."""
        if self.kind is Kind.UPSERT:
            return Counter({row[: self.key]: row for row in elements}.values())
        rows: Counter[tuple[Any, ...]] = Counter()
        for element in elements:
            if self.kind is Kind.APPEND:
                rows[element] += 1
            else:
                rows[tuple(element)] += 1 if element.get_row_kind() in _ADDED else -1
        return Counter({row: count for row, count in rows.items() if count})

    def expected(self, events: Sequence[Event]) -> Counter[tuple[Any, ...]]:
        """The same, by the model."""
        rows = self.model(events)
        return self.table(rows) if self.kind is Kind.UPSERT else Counter(rows)


def _query(name: str, programs: Any, kind: Kind = Kind.APPEND, key: int = 0) -> Query:
    return Query(name, getattr(programs, name), getattr(models, name), kind, key)


QUERIES = {
    query.name: query
    for query in (
        _query("q0", stateless),
        _query("q1", stateless),
        _query("q2", stateless),
        _query("q3", joins),
        _query("q4", joins, Kind.CHANGELOG),
        _query("q5", windows),
        _query("q6", joins),
        _query("q7", windows),
        _query("q8", windows),
        _query("q9", joins, Kind.CHANGELOG),
        _query("q10", stateless),
        _query("q11", windows),
        _query("q12", windows),
        _query("q13", stateless),
        _query("q14", stateless),
        _query("q15", aggregates, Kind.UPSERT, 1),
        _query("q16", aggregates, Kind.UPSERT, 2),
        _query("q17", aggregates, Kind.UPSERT, 2),
        _query("q18", aggregates, Kind.UPSERT, 2),
        _query("q19", aggregates, Kind.CHANGELOG),
        _query("q20", joins),
        _query("q21", stateless),
        _query("q22", stateless),
    )
}
"""All queries that a DataStream program can express, by name."""
