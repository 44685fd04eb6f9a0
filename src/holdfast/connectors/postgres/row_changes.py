"""Rows of declared tables from messages of the log, with their kinds. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from holdfast.common.changelog_mode import ChangelogMode, MissingColumns
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.common.types import Row, RowKind
from holdfast.connectors.postgres.pgoutput import UNCHANGED, Delete, Insert, Relation, Tuple, Update
from holdfast.connectors.postgres.values import accepted_types, converter

__all__ = ["Change", "KeyedRow", "Misfit", "TableRows", "Truncated"]

_log = logging.getLogger(__name__)


class Change(NamedTuple):
    """A changed row of a table, as a deserializer of a `PostgresCdcSource` gets it."""

    table: str
    """Schema and name."""
    row: Row
    """The row; its kind tells what has happened to it."""
    lsn: int
    """The position of the transaction's commit in the log; for a row of the snapshot: where the log continues it."""
    timestamp: int
    """When the transaction was committed, or the snapshot taken: in ms since 1970."""
    snapshot: bool
    """Whether the row is of the snapshot."""


@dataclass(frozen=True)
class Truncated:
    """A table has lost all its rows by TRUNCATE; an element of the stream with ``on_truncate="emit"``."""

    table: str
    lsn: int
    timestamp: int


class Misfit(Exception):
    """A message does not fit the declared table; the text says why, and what to do."""


class KeyedRow(NamedTuple):
    """A row and the text of its primary key, None for a table without one."""

    row: Row
    key: tuple[str, ...] | None


class TableRows:
    """Makes the rows of one table.

    Args:
        table: The table's name.
        declared: The columns to read, with their types.
        mode: ``all``: updates as two rows, with the old one. ``upsert``: updates as the new row.
        missing: What becomes of a declared column that the table does not have: an error, or None.
        types: The columns' types, by OID, that were checked when the job started (those of domains among them).
        key: The columns of the primary key.
    """

    def __init__(
        self,
        table: str,
        declared: RowTypeInfo,
        mode: ChangelogMode,
        missing: MissingColumns,
        types: Mapping[str, int],
        key: Sequence[str],
    ) -> None:
        self.table = table
        self.names = declared.get_field_names()
        self._types = declared.get_field_types()
        self._converters = [converter(each) for each in self._types]
        self._accepted = [accepted_types(each) for each in self._types]
        self._all = mode == "all"
        self._missing = missing
        self._checked = types
        self._key = list(key)
        self._relation: Relation | None = None
        self._places: list[tuple[int, Callable[[bytes], Any]]] = []
        """For each declared column: its place in the relation, -1 if it is missing, and its converter."""
        self._key_places: list[int] = []

    def describe(self, relation: Relation) -> None:
        """Take the table's columns as of the changes that follow.

        Raises:
            Misfit: a declared column is missing or has another type.
        """
        if relation == self._relation:
            return
        at = {column.name: place for place, column in enumerate(relation.columns)}
        places = []
        for name, declared, accepted, convert in zip(self.names, self._types, self._accepted, self._converters):
            place = at.get(name, -1)
            if place < 0:
                if self._missing == "fail":
                    raise Misfit(
                        f"the table has no column {name!r} at this place of the log (it has {', '.join(at)}): it was added "
                        "later, dropped or renamed. Declare the columns under all names that the log has, with "
                        "missing_columns='null', and the job goes on; a missing one is None"
                    )
            elif accepted is not None and relation.columns[place].type_oid not in {*accepted, self._checked.get(name, 0)}:
                raise Misfit(
                    f"the column {name!r} has the type with OID {relation.columns[place].type_oid} at this place of the "
                    f"log, which {declared} does not take. Declare a type that takes both: Types.STRING() takes any"
                )
            places.append((place, convert))
        if self._relation is not None and (more := at.keys() - {c.name for c in self._relation.columns} - set(self.names)):
            _log.warning("%s has new columns, which are not declared and not read: %s", self.table, ", ".join(sorted(more)))
        self._relation, self._places = relation, places
        self._key_places = [at[name] for name in self._key] if at.keys() >= set(self._key) else []

    def inserted(self, message: Insert) -> list[KeyedRow]:
        """The row of an insert."""
        return [KeyedRow(self._row(message.new, RowKind.INSERT), self.key_of(message.new))]

    def updated(self, message: Update) -> list[KeyedRow]:
        """The rows of an update; of one that changes the primary key: a deletion and an insertion.

        Raises:
            Misfit: the log lacks the old row, or a value.
        """
        new, old, before = message.new, message.old, message.old or message.key
        if old is not None:
            new = [was if value is UNCHANGED else value for value, was in zip(new, old)]
        elif self._all:
            raise Misfit(f"the log has no old row of this update: {self._full()}")
        key = self.key_of(new)
        if before is not None and key is not None and (old_key := self.key_of(before)) != key:
            return [*self._deleted(before, old_key), KeyedRow(self._row(new, RowKind.INSERT), key)]
        after = KeyedRow(self._row(new, RowKind.UPDATE_AFTER), key)
        if not self._all:
            return [after]
        return [KeyedRow(self._row(cast("Tuple", old), RowKind.UPDATE_BEFORE), key), after]

    def deleted(self, message: Delete) -> list[KeyedRow]:
        """The row of a deletion: the old one, or only its key.

        Raises:
            Misfit: the log lacks the old row.
        """
        if message.old is None and self._all:
            raise Misfit(f"the log has no old row of this deletion: {self._full()}")
        before = message.old if message.old is not None else message.key
        assert before is not None
        return self._deleted(before, self.key_of(before))

    def selected(self, texts: Sequence[bytes | None]) -> Row:
        """The row of a snapshot, whose values are those of the declared columns."""
        values = []
        for i, (text, convert) in enumerate(zip(texts, self._converters)):
            try:
                values.append(None if text is None else convert(text))
            except (ValueError, ArithmeticError) as error:
                raise self._misfit(i, text, error) from error
        return Row.of_values(values, self.names)

    def key_of(self, values: Tuple) -> tuple[str, ...] | None:
        """The text of the primary key; None for a table without one."""
        if not self._key_places:
            return None
        return tuple([cast("bytes", values[place]).decode() for place in self._key_places])

    def _deleted(self, before: Tuple, key: tuple[str, ...] | None) -> list[KeyedRow]:
        return [KeyedRow(self._row(before, RowKind.DELETE), key)]

    def _row(self, values: Tuple, kind: RowKind) -> Row:
        made: list[Any] = []
        for place, convert in self._places:
            text = values[place] if place >= 0 else None
            if text is None:
                made.append(None)
                continue
            try:
                made.append(convert(cast("bytes", text)))
            except (ValueError, ArithmeticError, TypeError) as error:
                raise self._misfit(len(made), text, error) from error
        return Row.of_values(made, self.names, kind)

    def _misfit(self, column: int, text: Any, error: Exception) -> Misfit:
        name, declared = self.names[column], self._types[column]
        if text is UNCHANGED:
            return Misfit(
                f"the log lacks the value of the column {name!r}: it is large (TOAST), and the update did not change it. "
                f"{self._full()}, or leave the column out and start afresh: updates before that lack it for good"
            )
        return Misfit(
            f"the column {name!r} has the value {text[:200]!r}, which {declared} does not take ({error}). Declare another "
            "type; Types.STRING() takes the text of any"
        )

    def _full(self) -> str:
        return f"ALTER TABLE {self.table} REPLICA IDENTITY FULL"
