"""OperatorTransformation: from the rows of a DataFrame to the state of an operator (Flink's bootstrap transformations)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.checkpoint.metadata import BROADCAST, SPLIT, UNION, OperatorCheckpoint, SubtaskState
from holdfast.common.typeinfo import TypeInformation
from holdfast.errors import ConfigurationError, IncompatibleState
from holdfast.runtime.host.shipping import ship_package
from holdfast.runtime.jvm.pyspark_internals import query_execution
from holdfast.runtime.operators.keyed import KeyedProcess
from holdfast.runtime.plan.operator import Operator
from holdfast.runtime.records.user_code import OperatorName
from holdfast.state.api.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from holdfast.state.backends.canonical import parts_of
from holdfast.state_api.bootstrap_functions import (
    BroadcastStateBootstrapFunction,
    ColumnsToState,
    KeyedStateBootstrapFunction,
    StateBootstrapFunction,
    content_type,
)
from holdfast.state_api.bootstrap_task import BootstrapTask, Target
from holdfast.state_api.keyed_rows import KeyedRows
from holdfast.state_api.listed import ListedTransformation, check_column
from holdfast.state_api.operator_bootstrap import FunctionTransformation
from holdfast.state_api.spark_jobs import on_spark
from holdfast.state_api.window_bootstrap import WindowedTransformation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["OperatorTransformation", "StateTransformation"]


_PART = 256 << 20
"""Approximate bytes of the rows of a task."""
_MOST_BYTES = 1 << 50
"""Larger estimates of a DataFrame's size are Spark's way to say that it is not known."""


class StateTransformation(Protocol):
    """State of an operator, to be written by `SavepointWriter.with_operator`."""

    def check(self, uid: str, operator: OperatorCheckpoint, target: Target) -> None:
        """Refuse what cannot be written, before anything is read."""

    def write(self, uid: str, operator: OperatorCheckpoint, target: Target) -> OperatorCheckpoint:
        """Write the state; returns the operator with it."""


class OperatorTransformation:
    """Begins a transformation of a DataFrame to the state of an operator.

    Examples:
        The state ``count`` of each key, from a DataFrame with the columns ``user`` and ``count``::

            OperatorTransformation.bootstrap_with(df).key_by("user", Types.STRING()).transform(
                ValueStateDescriptor("count", Types.LONG())
            )
    """

    @staticmethod
    def bootstrap_with(data: DataFrame) -> OneInputTransformation:
        """Begin with the rows of a DataFrame.

        Raises:
            TypeError: it is no DataFrame.
        """
        from pyspark.sql import DataFrame

        if not isinstance(data, DataFrame):
            raise TypeError(
                f"bootstrap_with() takes a Spark DataFrame, not {data!r:.200}: spark.createDataFrame() makes one"
            )
        return OneInputTransformation(data)


@dataclass(frozen=True)
class OneInputTransformation:
    """A DataFrame on its way to operator state, or to keyed state. Elements are its rows, unless `map` changes them."""

    data: DataFrame
    to_element: Callable[[Any], Any] | None = None
    element_type: TypeInformation[Any] | None = None
    stamp: str | Callable[[Any], int] | None = None

    def map(self, function: Callable[[Any], Any], output_type: TypeInformation[Any] | None = None) -> OneInputTransformation:
        """Turn rows into the elements of the job, which windows keep.

        Args:
            function: Row -> element.
            output_type: The declared type of the elements, as in the job.
        """
        return replace(self, to_element=function, element_type=output_type)

    def assign_timestamps(self, timestamps: str | Callable[[Any], int]) -> OneInputTransformation:
        """Give the elements timestamps. The elements of a key are then processed in their order.

        Args:
            timestamps: A column of timestamps or of ms since 1970, or a function from an element to ms.
        """
        return replace(self, stamp=timestamps)

    def key_by(self, key: str | Callable[[Any], Any], key_type: TypeInformation[Any]) -> KeyedTransformation:
        """Make keyed state.

        Args:
            key: The column with the key, or a function from an element to its key.
            key_type: The type of the keys.
        """
        return KeyedTransformation(self, key, key_type)

    def transform(self, function: StateBootstrapFunction[Any] | BroadcastStateBootstrapFunction[Any]) -> StateTransformation:
        """Make operator state, or broadcast state, with a function.

        Raises:
            TypeError: the function is of another class.
        """
        if not isinstance(function, (StateBootstrapFunction, BroadcastStateBootstrapFunction)):
            raise TypeError(
                "transform() takes a StateBootstrapFunction or a BroadcastStateBootstrapFunction here, not "
                f"{function!r:.200}; for keyed state, call key_by() first"
            )
        return FunctionTransformation(self.data, self.to_element, self.element_type, function)

    def list_state(self, descriptor: ListStateDescriptor[Any]) -> StateTransformation:
        """The rows as elements of a list state: the column ``value``, or the only column."""
        return ListedTransformation(self.data, descriptor, SPLIT)

    def union_state(self, descriptor: ListStateDescriptor[Any]) -> StateTransformation:
        """The rows as elements of a union list state: the column ``value``, or the only column."""
        return ListedTransformation(self.data, descriptor, UNION)

    def broadcast_state(self, descriptor: MapStateDescriptor[Any, Any]) -> StateTransformation:
        """The rows as entries of a broadcast state: the columns ``key`` and ``value``."""
        return ListedTransformation(self.data, descriptor, BROADCAST)


@dataclass(frozen=True)
class KeyedTransformation:
    """Elements by key."""

    elements: OneInputTransformation
    key: str | Callable[[Any], Any]
    key_type: TypeInformation[Any]

    def transform(
        self, first: KeyedStateBootstrapFunction[Any, Any] | StateDescriptor, *descriptors: StateDescriptor
    ) -> StateTransformation:
        """Make the state with a function; or write columns of a DataFrame with one row for each key, by the states' names.

        The column of a list state is an array, that of a map state a map, that of a reducing state its value, and that of
        an aggregating state its accumulator. None clears the state. Expiring content counts as written now.

        Args:
            first: The function, or the first state.
            descriptors: Further states.

        Raises:
            ConfigurationError: a state has no declared type, or the elements are no rows.
        """
        if not isinstance(first, StateDescriptor):
            if not callable(getattr(first, "process_element", None)):
                raise TypeError(f"transform() takes a KeyedStateBootstrapFunction or state descriptors, not {first!r:.200}")
            return _Keyed(self, partial(KeyedProcess, first))
        states = (first, *descriptors)
        names = [each.name for each in states]
        for each in states:
            if names.count(each.name) > 1:
                raise ConfigurationError(f"state {each.name!r} is given twice; each column is written to one state")
            if content_type(each) is None:
                raise ConfigurationError(f"state {each.name!r} needs a declared type to be written from a column")
        if self.elements.to_element is not None:
            raise ConfigurationError("states are written from the columns of rows: leave out map(), or use a function")
        return _Keyed(self, partial(KeyedProcess, ColumnsToState(states)), states)

    def window(self, window_assigner: Any) -> WindowedTransformation:
        """Put the elements into windows, as the job does; the next calls are those of the job's program, too."""
        elements = self.elements
        timed = elements.stamp is not None
        return WindowedTransformation(
            partial(_Keyed, self), window_assigner, _identity, self.key_type, elements.element_type, timed
        )


def _identity(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class _Keyed:
    """Keyed state, made by an operator."""

    keyed: KeyedTransformation
    make_operator: Callable[[], Operator]
    columns: tuple[StateDescriptor, ...] = ()
    """The states that are written from columns."""
    definition: dict[str, Any] | None = None
    """What the operator stores its state by."""

    def check(self, uid: str, operator: OperatorCheckpoint, target: Target) -> None:
        """Check columns and declared states, before anything is read.

        Raises:
            ConfigurationError: a column is missing or of another type.
            IncompatibleState: the states do not fit those in the savepoint.
        """
        elements, where = self.keyed.elements, f"operator {operator.name!r} (uid {uid!r})"
        if isinstance(self.keyed.key, str):
            check_column(elements.data, self.keyed.key, self.keyed.key_type, f"the key of {where}")
        if isinstance(elements.stamp, str):
            _check_stamps(elements.data, elements.stamp, where)
        for each in self.columns:
            declared = content_type(each)
            assert declared is not None
            check_column(elements.data, each.name, declared, f"state {each.name!r} of {where}")
        if self.definition is not None and operator.definition not in (None, self.definition):
            raise IncompatibleState(
                f"{where} has other windows in the savepoint: {_differing(operator.definition, self.definition)}"
            )
        self._task(uid, operator, target, 1).check()

    def _task(self, uid: str, operator: OperatorCheckpoint, target: Target, parallelism: int) -> BootstrapTask:
        return BootstrapTask(uid, self.make_operator, self.keyed.key_type, operator, target, parallelism, bool(self.columns))

    def write(self, uid: str, operator: OperatorCheckpoint, target: Target) -> OperatorCheckpoint:
        """Run the operator over the elements, on Spark; returns the operator with its state."""
        elements, most = self.keyed.elements, operator.max_parallelism
        data, context = elements.data, elements.data.sparkSession.sparkContext
        ship_package(context)
        parts = max(sum(1 for _ in parts_of(uid, operator)), _estimated_bytes(data) // _PART)
        width = min(most, max(context.defaultParallelism, parts))
        task = self._task(uid, operator, target, width)
        rows = KeyedRows(
            self.keyed.key,
            self.keyed.key_type,
            elements.stamp,
            elements.to_element,
            elements.element_type,
            [each.name for each in self.columns],
            OperatorName(operator.name, uid),
            most,
            width,
        )
        written = on_spark(context, lambda: rows.run(data, task.run))
        subtasks = operator.subtasks or [SubtaskState()]
        handles = [handle for handle, _ in written]
        first = SubtaskState([*subtasks[0].keyed, *handles], subtasks[0].lists)
        # Of a DataFrame without rows, the declared states are known, so that they can be read as empty.
        made = {handle.schema: schema for handle, schema in written} or ({} if operator.schemas else task.declared())
        schemas = {**operator.schemas, **made}
        definition = self.definition or operator.definition
        return msgspec.structs.replace(operator, subtasks=[first, *subtasks[1:]], schemas=schemas, definition=definition)


def _differing(stored: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """What differs in two definitions, for messages."""
    names = [name for name in {**stored, **given} if stored.get(name) != given.get(name)]
    return ", ".join(f"{name} {stored.get(name)} in place of {given.get(name)}" for name in names)


def _estimated_bytes(data: DataFrame) -> int:
    """Spark's estimate of the size of the rows, without reading them; 0 if it has none."""
    size = int(str(query_execution(data).optimizedPlan().stats().sizeInBytes()))
    return 0 if size > _MOST_BYTES else size


def _check_stamps(data: DataFrame, column: str, where: str) -> None:
    from pyspark.sql import types as sql

    if column not in data.columns:
        raise ConfigurationError(f"{where}: the DataFrame has no column {column!r}; it has {', '.join(data.columns)}")
    found = data.schema[column].dataType
    if not isinstance(found, (sql.TimestampType, sql.LongType, sql.IntegerType)):
        raise ConfigurationError(
            f"{where}: the column {column!r} is {found.simpleString()}; timestamps are a timestamp or bigint column (in ms)"
        )
