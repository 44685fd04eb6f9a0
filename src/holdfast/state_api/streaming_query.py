"""State of a Structured Streaming query's ``transformWithState``, moved to the operator that goes on with its processor."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.errors import ConfigurationError
from holdfast.functions.function import RuntimeContext
from holdfast.functions.process_functions import KeyedProcessFunction
from holdfast.spark.processor_handle import EVENT_TIME, NONE, PROCESSING_TIME, DeclaredState, ProcessorHandle
from holdfast.spark.state_schemas import Schema, parse_schema
from holdfast.spark.transform_with_state import declared_states
from holdfast.state_api.bootstrap import OperatorTransformation, StateTransformation
from holdfast.state_api.bootstrap_functions import KeyedStateBootstrapFunction

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StatefulProcessor

__all__ = ["state_of_query"]

_OPERATOR = "transformWithState"
_MODES = (NONE, PROCESSING_TIME, EVENT_TIME)
_COLUMNS = {"Value": "value", "List": "list_value", "Map": "map_value"}
"""The column with the content in Spark's data source, by the kind of state."""
_EXPIRES = "ttlExpirationMs"
_CONTENT = "content"


def state_of_query(
    spark: SparkSession,
    checkpoint_location: str,
    processor: StatefulProcessor,
    *,
    operator_id: int | None = None,
    batch_id: int | None = None,
) -> StateTransformation:
    """Read the states and timers of a ``transformWithState`` from a query's checkpoint, for ``transform_with_state``.

    Examples:
        A savepoint from which a job goes on with the same processor::

            pages = state_of_query(spark, "/checkpoints/pages", CountPages())
            SavepointWriter.new_savepoint(spark).with_operator("pages", pages).write("/savepoints/pages")

    Args:
        spark: A session of the release that ran the query, or of a later one. The query is stopped.
        checkpoint_location: The query's ``checkpointLocation``.
        processor: The processor of the query, and of the job.
        operator_id: Which of several operators; Spark's number.
        batch_id: The batch after which the state is read; the last one that is complete by default.

    Raises:
        ConfigurationError: there is no such operator, its states are not those of the processor, or its key has a column
            of a type that cannot be moved.
    """
    from pyspark.sql import DataFrame

    operator, properties = _operator(spark, checkpoint_location, operator_id)
    mode = str(properties.get("timeMode", NONE)).lower()
    if mode not in _MODES:
        raise ConfigurationError(f"{checkpoint_location}: Spark's time mode {mode!r} is not known")
    handle = declared_states(processor, mode)
    stored = {each["stateName"]: each for each in properties.get("stateVariables", [])}
    stored = {name: each for name, each in stored.items() if not name.startswith("$") and name not in handle.left_out}
    _check_states(stored, handle.declared, type(processor).__name__)

    def load(**options: str) -> DataFrame:
        given = {"operatorId": str(operator), "flattenCollectionTypes": "false", **options}
        if batch_id is not None:
            given["batchId"] = str(batch_id)
        return spark.read.format("statestore").options(**given).load(checkpoint_location)

    declared = {name: each for name, each in handle.declared.items() if name in stored}
    frames = [
        _contents(load(stateVarName=name), each, bool(stored[name].get("ttlEnabled"))) for name, each in declared.items()
    ]
    if mode != NONE:
        frame = load(readRegisteredTimers="true")
        frames.append(frame.select("key", frame["expiration_timestamp_ms"].alias(_CONTENT)))
    if not frames:
        raise ConfigurationError(
            f"{checkpoint_location}: {type(processor).__name__} declares no state, so there is none to move"
        )
    names, key_type = _key(frames[0])
    flat = [_flat(frame, names, f"content{n}") for n, frame in enumerate(frames)]
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), flat)
    columns = [*(f"key{n}" for n in range(len(names))), *(f"content{n}" for n in range(len(frames)))]
    function = _Moved(mode, list(declared.values()), len(names))
    elements = OperatorTransformation.bootstrap_with(rows.select(*columns))
    return elements.key_by(_Key(len(names)), key_type).transform(function)


def _operator(spark: SparkSession, location: str, wanted: int | None) -> tuple[int, Mapping[str, Any]]:
    """The number and the properties of the operator."""
    from pyspark.errors import PySparkException

    try:
        found = spark.read.format("state-metadata").load(location).collect()
    except PySparkException as error:
        raise ConfigurationError(f"{location} cannot be read: {str(error).strip().splitlines()[0]}") from error
    if not found:
        raise ConfigurationError(f"{location} is not the checkpoint location of a query with state")
    known = {row.operatorId: row for row in found}
    fitting = [row for row in known.values() if row.operatorName.startswith(_OPERATOR)]
    if wanted is not None:
        fitting = [row for row in fitting if row.operatorId == wanted]
    if len(fitting) != 1:
        has = ", ".join(f"{row.operatorId}: {row.operatorName}" for row in known.values())
        raise ConfigurationError(
            f"{location}: name the operator of transformWithState by operator_id; the query's operators are {has}"
        )
    return fitting[0].operatorId, json.loads(fitting[0].operatorProperties)


def _check_states(stored: Mapping[str, Any], declared: Mapping[str, DeclaredState], processor: str) -> None:
    for name, each in stored.items():
        if name not in declared:
            raise ConfigurationError(
                f"the query has a state {name!r}, which {processor} does not declare; call deleteIfExists({name!r}) in "
                "init() to leave it behind"
            )
        kind = str(each["stateVariableType"]).removesuffix("State")
        if kind != declared[name].kind:
            raise ConfigurationError(
                f"state {name!r} is a {kind}State of the query and a {declared[name].kind}State of {processor}"
            )


def _contents(frame: DataFrame, declared: DeclaredState, expires: bool) -> DataFrame:
    """The key, and the content of a state that has not expired."""
    from pyspark.sql import functions as F

    name, kind, column = declared.descriptor.get_name(), declared.kind, F.col(_COLUMNS[declared.kind])
    now = time.time_ns() // 1_000_000

    def lives(value: Column) -> Column:
        return value[_EXPIRES] > now

    if expires and kind == "Value":
        frame, column = frame.where(lives(column)), column["value"]
    elif expires and kind == "List":
        column = F.transform(F.filter(column, lives), lambda value: value["value"])
    elif expires:
        column = F.transform_values(F.map_filter(column, lambda _, value: lives(value)), lambda _, value: value["value"])
    frame = frame.select("key", column.alias(_CONTENT))
    _check_schemas(name, frame.schema[_CONTENT].dataType, declared)
    return frame


def _check_schemas(name: str, found: Any, declared: DeclaredState) -> None:
    parts = {"Value": lambda: [found], "List": lambda: [found.elementType], "Map": lambda: [found.keyType, found.valueType]}
    for kind, own in zip(parts[declared.kind](), declared.schemas, strict=True):
        stored = parse_schema(kind, f"state {name!r} of the query")
        if stored.types != own.types:
            raise ConfigurationError(
                f"state {name!r} has the fields {kind.simpleString()} in the query, and others in the processor: "
                f"{_shown(own)}; move it with the schema that it has, and change the schema in the job"
            )


def _shown(schema: Schema) -> str:
    return ", ".join(f"{name} {kind!r}" for name, kind in zip(schema.names, schema.types))


def _key(frame: DataFrame) -> tuple[list[str], TypeInformation[Any]]:
    """The names of the key's columns, and its type in the job."""
    fields = frame.schema["key"].dataType.fields
    types = [parse_schema(f"k {field.dataType.simpleString()}", "the key of the query").types[0] for field in fields]
    for field, kind in zip(fields, types):
        if kind is None:
            raise ConfigurationError(
                f"the query groups by {field.name}, of the type {field.dataType.simpleString()}; state moves with keys of "
                "boolean, whole number, float, double, string, date and binary columns"
            )
    known = [kind for kind in types if kind is not None]
    return [field.name for field in fields], known[0] if len(known) == 1 else Types.TUPLE(known)


def _flat(frame: DataFrame, key: Sequence[str], content: str) -> DataFrame:
    columns = [frame["key"].getField(name).alias(f"key{n}") for n, name in enumerate(key)]
    return frame.select(*columns, frame[_CONTENT].alias(content))


class _Key:
    """The key of a row, as `col` makes it."""

    def __init__(self, fields: int) -> None:
        self._fields = fields

    def __call__(self, row: Any) -> Any:
        return row[0] if self._fields == 1 else tuple(row[: self._fields])


class _Moved(KeyedStateBootstrapFunction[Any, Any]):
    """Writes contents and timers as the operator of the processor keeps them."""

    def __init__(self, time_mode: str, declared: Sequence[DeclaredState], key_fields: int) -> None:
        self._mode, self._declared, self._key_fields = time_mode, declared, key_fields

    def open(self, runtime_context: RuntimeContext) -> None:
        """Make the states."""
        self._handle = ProcessorHandle(self._mode, runtime_context)
        self._writers = [_writer(each.kind, self._handle.state_of(each)) for each in self._declared]

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context[Any]) -> None:
        """Write one content, or register one timer."""
        contents = value[self._key_fields :]
        for content, write in zip(contents, self._writers):
            if content is not None:
                write(content)
        if self._mode != NONE and contents[-1] is not None:
            self._handle.timers.service = ctx.timer_service()
            self._handle.timers.register(contents[-1])


def _writer(kind: str, state: Any) -> Callable[[Any], None]:
    if kind == "Value":
        return lambda content: state.update(tuple(content))
    if kind == "List":
        return lambda content: state.put([tuple(each) for each in content]) if content else None

    def write(content: Any) -> None:
        for key, value in content.items():
            state.updateValue(tuple(key), tuple(value))

    return write
