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
from holdfast.runtime.shipping import portable, ship_package
from holdfast.state.elements import ElementForm
from holdfast.state_api.bootstrap_task import Target
from holdfast.state_api.spark_jobs import on_spark
from holdfast.state_api.spark_types import from_spark, misfit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ListedTransformation", "check_column"]

_pack = msgspec.msgpack.Encoder().encode
_IN_FILE = 100_000
"""The most elements in one file."""


def check_column(data: DataFrame, name: str, declared: TypeInformation[Any], where: str) -> None:
    """Check that a DataFrame has a column for values of a type.

    Raises:
        ConfigurationError: it has not; names the column and both types.
    """
    if name not in data.columns:
        raise ConfigurationError(f"{where}: the DataFrame has no column {name!r}; it has {', '.join(data.columns)}")
    said = misfit(data.schema[name].dataType, declared)
    if said:
        raise ConfigurationError(f"{where}: the column {name!r} does not fit {declared!r}: {said}")


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
        task = _WriteElements(uid, target, self._types, entries)
        data = self.data.select(*self._columns)
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
    target: Target
    types: list[TypeInformation[Any]]
    entries: bool

    @property
    def form(self) -> ElementForm:
        """The stored form of the elements."""
        return ElementForm.of_entries(*self.types) if self.entries else ElementForm(self.types[0])

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[ListPart]:
        form, converts, waiting = self.form, list(map(_fitting, self.types)), iter(rows)
        while batch := list(islice(waiting, _IN_FILE)):
            fitting = [[convert(each) for convert, each in zip(converts, row, strict=True)] for row in batch]
            elements = [form.encode({row[0]: row[1]} if self.entries else row[0]) for row in fitting]
            file = write_file(self.target.storage(), self.target.path(self.uid, "list"), _pack(elements))
            yield ListPart(file=file, count=len(elements))


def _fitting(declared: TypeInformation[Any]) -> Callable[[Any], Any]:
    read = from_spark(declared)
    return lambda value: None if value is None else declared.conform(read(value))
