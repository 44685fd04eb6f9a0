"""Operator state from a DataFrame: the elements of list states, the entries of broadcast states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checkpoint.files import write_file
from holdfast.checkpoint.metadata import BROADCAST, ListedState, ListPart, OperatorCheckpoint, SubtaskState
from holdfast.common.typeinfo import TypeInformation
from holdfast.errors import ConfigurationError
from holdfast.runtime.host.shipping import portable, ship_package
from holdfast.state.stored.elements import ElementForm
from holdfast.state_api.bootstrap_task import Target
from holdfast.state_api.spark_jobs import on_spark
from holdfast.state_api.spark_types import from_spark, misfit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ListedTransformation", "check_column", "quoted"]

_pack = msgspec.msgpack.Encoder().encode
_IN_FILE = 100_000
"""The most elements in one file."""


def check_column(data: DataFrame, name: str, declared: TypeInformation[Any], where: str) -> None:
    """Check that a DataFrame has a column for values of a type.

    Raises:
        ConfigurationError: it has none or several; names the column and both types.
    """
    if name not in data.columns:
        raise ConfigurationError(f"{where}: the DataFrame has no column {name!r}; it has {', '.join(data.columns)}")
    exact = data.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    same = [each for each in data.columns if each == name or (not exact and each.lower() == name.lower())]
    if len(same) > 1:
        raise ConfigurationError(
            f"{where}: the DataFrame has {len(same)} columns {name!r}: {', '.join(same)}. Keep one of them, or rename them"
        )
    said = misfit(data.schema[name].dataType, declared)
    if said:
        raise ConfigurationError(f"{where}: the column {name!r} does not fit {declared!r}: {said}")


def quoted(name: str) -> str:
    """A column's name as Spark's expressions take it, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class ListedTransformation:
    """The rows of a DataFrame as the elements or entries of an operator state; replaces the state."""

    data: DataFrame
    descriptor: Any
    mode: str

    @property
    def _types(self) -> list[TypeInformation[Any]]:
        found = self.descriptor
        types = [found.key_type_info, found.value_type_info] if self.mode == BROADCAST else [found.element_type_info]
        if any(each is None or each.is_pickled for each in types):
            raise ConfigurationError(f"state {found.name!r} needs a declared type to be written from a DataFrame")
        return types

    @property
    def _columns(self) -> list[str]:
        if self.mode == BROADCAST:
            return ["key", "value"]
        return [self.data.columns[0] if len(self.data.columns) == 1 else "value"]

    def check(self, uid: str, operator: OperatorCheckpoint, target: Target) -> None:
        """Check the DataFrame's columns and the stored state, before anything is read.

        Raises:
            ConfigurationError: a column is missing or of another type, or the state has another kind.
            IncompatibleState: the stored elements have a type that cannot become the declared one.
        """
        where = f"state {self.descriptor.name!r} of operator {operator.name!r} (uid {uid!r})"
        for name, declared in zip(self._columns, self._types, strict=True):
            check_column(self.data, name, declared, where)
        known = operator.listed.get(self.descriptor.name)
        if known is not None and known.mode != self.mode:
            raise ConfigurationError(f"{where} is a {known.mode} state in the savepoint, not a {self.mode} state")

    def write(self, uid: str, operator: OperatorCheckpoint, target: Target) -> OperatorCheckpoint:
        """Write the state; returns the operator with it."""
        entries = self.mode == BROADCAST
        where = f"state {self.descriptor.name!r} of operator {operator.name!r} (uid {uid!r})"
        task = _WriteElements(uid, where, target, self._columns, self._types)
        data = self.data.select(*map(quoted, self._columns))
        context = data.sparkSession.sparkContext
        ship_package(context)
        rows = (data.coalesce(1) if entries else data).rdd
        parts = on_spark(context, lambda: rows.mapPartitionsWithIndex(portable(task)).collect())
        name = self.descriptor.name
        subtasks = [
            msgspec.structs.replace(state, lists={**state.lists, name: parts if entries or n == 0 else []})
            for n, state in enumerate(operator.subtasks or [SubtaskState()])
        ]
        listed = {**operator.listed, name: ListedState(self.mode, task.form.snapshot)}
        return msgspec.structs.replace(operator, subtasks=subtasks, listed=listed)


@dataclass(frozen=True)
class _WriteElements:
    """Writes the elements of some rows, in any process."""

    uid: str
    where: str
    """The state and its operator, for error messages."""
    target: Target
    columns: list[str]
    types: list[TypeInformation[Any]]

    @property
    def entries(self) -> bool:
        """Whether the rows are entries of a map."""
        return len(self.types) > 1

    @property
    def form(self) -> ElementForm:
        """The stored form of the elements."""
        return ElementForm.of_entries(*self.types) if self.entries else ElementForm(self.types[0])

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[ListPart]:
        """Write the elements.

        Raises:
            ConfigurationError: a value is null or does not fit, or a key occurs twice; names the state and the column.
        """
        form, waiting = self.form, iter(rows)
        converts = [self._fitting(*each) for each in zip(self.columns, self.types, strict=True)]
        known: set[bytes] = set()
        while batch := list(islice(waiting, _IN_FILE)):
            fitting = [[convert(each) for convert, each in zip(converts, row, strict=True)] for row in batch]
            if self.entries:
                self._add_keys(known, [row[0] for row in fitting])
            elements = [form.encode({row[0]: row[1]} if self.entries else row[0]) for row in fitting]
            file = write_file(self.target.storage(), self.target.path(self.uid, "list"), _pack(elements))
            yield ListPart(file=file, count=len(elements))

    def _fitting(self, column: str, declared: TypeInformation[Any]) -> Callable[[Any], Any]:
        read, nullable = from_spark(declared), self.entries and column == self.columns[1]

        def fitting(value: Any) -> Any:
            if value is None and nullable:
                return None
            if value is None:
                raise ConfigurationError(f"{self.where}: the column {column!r} has a null: filter such rows out")
            try:
                return declared.conform(read(value))
            except Exception as error:
                raise ConfigurationError(
                    f"{self.where}: the column {column!r} has {value!r:.200}, which does not fit {declared!r}: {error}"
                ) from error

        return fitting

    def _add_keys(self, known: set[bytes], keys: list[Any]) -> None:
        """Add the stored forms of keys to the known ones. All entries of a broadcast state are in one task."""
        for key in keys:
            stored = _pack(self.types[0].encode(key))
            if stored in known:
                raise ConfigurationError(
                    f"{self.where}: the column {self.columns[0]!r} has {key!r:.200} twice: group the rows by key first"
                )
            known.add(stored)
