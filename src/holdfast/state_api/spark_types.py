"""Spark's types for the types of states, and the conversion of values between the two."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as sql

from holdfast.common.time import Instant
from holdfast.common.typeinfo import MapTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from holdfast.common.typeinfo.base import described
from holdfast.common.typeinfo.composite import SequenceTypeInfo
from holdfast.common.typeinfo.pojo import PojoTypeInfo
from holdfast.common.types import Row
from holdfast.common.values import pickling

if TYPE_CHECKING:
    import pyarrow

__all__ = ["from_arrow", "from_spark", "has_arrow", "is_plain_in_arrow", "is_unchanged", "misfit", "spark_type", "to_spark"]

Convert = Callable[[Any], Any]

_BASIC: dict[str, sql.DataType] = {
    "STRING": sql.StringType(),
    "CHAR": sql.StringType(),
    "BOOLEAN": sql.BooleanType(),
    "BYTE": sql.ByteType(),
    "SHORT": sql.ShortType(),
    "INT": sql.IntegerType(),
    "LONG": sql.LongType(),
    "FLOAT": sql.FloatType(),
    "DOUBLE": sql.DoubleType(),
    "BIG_INT": sql.StringType(),
    "BIG_DEC": sql.StringType(),
    "SQL_DATE": sql.DateType(),
    "SQL_TIME": sql.StringType(),
    "SQL_TIMESTAMP": sql.TimestampNTZType(),
    "PICKLED_BYTE_ARRAY": sql.BinaryType(),
}
_INSTANT = sql.StructType([sql.StructField("seconds", sql.LongType()), sql.StructField("nanos", sql.IntegerType())])


def _node(declared: TypeInformation[Any] | None) -> dict[str, Any]:
    return {"type": "PICKLED_BYTE_ARRAY"} if declared is None else described(declared)


def _names(node: dict[str, Any]) -> list[str]:
    first = 1 if node["type"] == "TUPLE" else 0
    prefix = "_" if node["type"] == "TUPLE" else "f"
    return node.get("names") or [f"{prefix}{n + first}" for n in range(len(node["fields"]))]


def _is_bytes(node: dict[str, Any]) -> bool:
    return bool(node["type"] == "PRIMITIVE_ARRAY" and node["element"]["type"] == "BYTE")


def spark_type(declared: TypeInformation[Any] | None) -> sql.DataType:
    """The type of a column for values of a type; None: pickles, as bytes.

    Whole and decimal numbers of any size are texts, as are times of day. A map whose keys are records is a list of pairs.
    """
    return _spark_type(_node(declared))


def _spark_type(node: dict[str, Any]) -> sql.DataType:
    kind = node["type"]
    if kind in _BASIC:
        return _BASIC[kind]
    if kind == "INSTANT":
        return _INSTANT
    if "fields" in node:
        return sql.StructType([sql.StructField(n, _spark_type(f)) for n, f in zip(_names(node), node["fields"])])
    if kind == "MAP":
        key, value = _spark_type(node["key"]), _spark_type(node["value"])
        if node["key"]["type"] in _BASIC:
            return sql.MapType(key, value)
        return sql.ArrayType(sql.StructType([sql.StructField("key", key), sql.StructField("value", value)]))
    return sql.BinaryType() if _is_bytes(node) else sql.ArrayType(_spark_type(node["element"]))


def to_spark(declared: TypeInformation[Any] | None) -> Convert:
    """A function from values of a type to Spark's; None stays None. Pickles of a state without a type stay pickles."""
    if declared is None or declared.is_pickled:
        return _nullable(lambda value: value if isinstance(value, bytes) else pickling.dumps(value))
    return _nullable(_to_spark(_node(declared)))


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _to_spark(node: dict[str, Any]) -> Convert:
    kind = node["type"]
    if kind in ("BIG_INT", "BIG_DEC"):
        return str
    if kind == "SQL_TIME":
        return lambda value: value.isoformat()
    if kind == "INSTANT":
        return lambda value: (value.seconds, value.nanos)
    if kind == "PICKLED_BYTE_ARRAY":
        return pickling.dumps
    if kind in _BASIC or _is_bytes(node):
        return lambda value: value
    if kind == "POJO":
        names, fields = node["names"], [_nullable(_to_spark(each)) for each in node["fields"]]
        return lambda value: tuple([convert(getattr(value, name)) for name, convert in zip(names, fields)])
    if "fields" in node:
        fields = [_nullable(_to_spark(each)) for each in node["fields"]]
        return lambda value: tuple([convert(each) for convert, each in zip(fields, value)])
    if kind == "MAP":
        key, inner = _to_spark(node["key"]), _nullable(_to_spark(node["value"]))
        if node["key"]["type"] in _BASIC:
            return lambda value: {key(k): inner(v) for k, v in value.items()}
        return lambda value: [(key(k), inner(v)) for k, v in value.items()]
    element = _nullable(_to_spark(node["element"]))
    return lambda value: [element(each) for each in value]


def from_spark(declared: TypeInformation[Any] | None) -> Convert:
    """A function from Spark's values to values of a type; None stays None."""
    return _nullable(_from_spark(declared))


def _from_spark(declared: TypeInformation[Any] | None) -> Convert:
    if isinstance(declared, (RowTypeInfo, TupleTypeInfo, PojoTypeInfo)):
        # By the type itself, not by its description: the class of a POJO may have come by value.
        fields = [from_spark(each) for each in declared.get_field_types()]
        made = _record(declared)
        return lambda value: made([convert(each) for convert, each in zip(fields, value, strict=True)])
    if isinstance(declared, MapTypeInfo):
        key, inner = _from_spark(declared.key_type), from_spark(declared.value_type)
        return lambda value: _entries([(key(k), inner(v)) for k, v in (value.items() if isinstance(value, dict) else value)])
    node = _node(declared)
    if isinstance(declared, SequenceTypeInfo) and not _is_bytes(node):
        element = from_spark(declared.element_type)
        return lambda value: [element(each) for each in value]
    return _BASIC_FROM_SPARK.get(node["type"], _basic)


def _entries(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The map of these entries.

    Raises:
        ValueError: two have one key.
    """
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key occurs twice in the map")
    return entries


def _basic(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


_BASIC_FROM_SPARK: dict[str, Convert] = {
    "BIG_INT": int,
    "BIG_DEC": Decimal,
    "SQL_TIME": datetime.time.fromisoformat,
    "INSTANT": lambda value: Instant(*value),
    "PICKLED_BYTE_ARRAY": lambda value: pickling.loads(bytes(value)),
}


def is_unchanged(declared: TypeInformation[Any] | None) -> bool:
    """Whether Spark's values are those of a type, so that `from_spark` is not needed for values of Arrow."""
    kind = _node(declared)["type"]
    return kind in _BASIC and kind not in _BASIC_FROM_SPARK


_PLAIN_IN_ARROW = (
    *(sql.StringType, sql.BinaryType, sql.BooleanType, sql.ByteType, sql.ShortType, sql.IntegerType, sql.LongType),
    *(sql.FloatType, sql.DoubleType, sql.DateType, sql.TimestampNTZType),
)


def is_plain_in_arrow(kind: sql.DataType) -> bool:
    """Whether `from_arrow` makes the values of Spark's rows from Arrow's. Times with a zone differ, for example."""
    if isinstance(kind, sql.StructType):
        return len(set(kind.names)) == len(kind.names) and all(is_plain_in_arrow(each.dataType) for each in kind.fields)
    if isinstance(kind, sql.ArrayType):
        return is_plain_in_arrow(kind.elementType)
    if isinstance(kind, sql.MapType):
        return is_plain_in_arrow(kind.keyType) and is_plain_in_arrow(kind.valueType)
    return type(kind) in _PLAIN_IN_ARROW


def has_arrow() -> bool:
    """Whether Spark can exchange Arrow batches with Python here, for which it wants pandas, too."""
    from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

    try:
        require_minimum_pandas_version()
        require_minimum_pyarrow_version()
    except ImportError:
        return False
    return True


def from_arrow(kind: pyarrow.DataType) -> Convert | None:
    """A function from the values of an Arrow column to those that `from_spark` takes; None: they are the same."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        fields = [from_arrow(kind.field(n).type) or _same for n in range(kind.num_fields)]
        return _nullable(lambda value: tuple([convert(each) for convert, each in zip(fields, value.values())]))
    if pyarrow.types.is_map(kind):
        key, inner = from_arrow(kind.key_type) or _same, from_arrow(kind.item_type) or _same
        return _nullable(lambda value: [(key(k), inner(v)) for k, v in value])
    if pyarrow.types.is_list(kind):
        element = from_arrow(kind.value_type)
        return None if element is None else _nullable(lambda value: list(map(element, value)))
    return None


def _same(value: Any) -> Any:
    return value


def _record(declared: RowTypeInfo | TupleTypeInfo | PojoTypeInfo[Any]) -> Callable[[list[Any]], Any]:
    if isinstance(declared, TupleTypeInfo):
        return tuple
    if isinstance(declared, PojoTypeInfo):
        return declared.made_of
    names = _names(described(declared))
    return lambda values: Row.of_values(values, names)


_WIDER = (sql.ByteType, sql.ShortType, sql.IntegerType, sql.LongType)


def misfit(found: sql.DataType, declared: TypeInformation[Any], at: str = "") -> str:
    """Why a column cannot be read as values of a type; empty if it can. ``at``: the field, for the message."""
    return _misfit(found, spark_type(declared), at)


def _misfit(found: sql.DataType, wanted: sql.DataType, at: str) -> str:
    if isinstance(found, sql.StructType) and isinstance(wanted, sql.StructType):
        names, expected = found.fieldNames(), wanted.fieldNames()
        numbered = all(name.startswith("_") for name in expected)
        if len(names) != len(expected) or not (numbered or names == expected):
            return f"{at or 'it'} has the fields {', '.join(names)} instead of {', '.join(expected)}"
        pairs = [(one.dataType, two.dataType, f"field {one.name}") for one, two in zip(found.fields, wanted.fields)]
    elif isinstance(found, sql.ArrayType) and isinstance(wanted, sql.ArrayType):
        pairs = [(found.elementType, wanted.elementType, "its element")]
    elif isinstance(found, sql.MapType) and isinstance(wanted, sql.MapType):
        pairs = [(found.keyType, wanted.keyType, "its key"), (found.valueType, wanted.valueType, "its value")]
    else:
        return "" if _fits(found, wanted) else f"{at or 'it'} is {found.simpleString()} instead of {wanted.simpleString()}"
    return next((said for each in pairs if (said := _misfit(*each))), "")


def _fits(found: sql.DataType, wanted: sql.DataType) -> bool:
    kinds = type(found), type(wanted)
    if (
        kinds[0] is kinds[1]
        or kinds[0] is sql.NullType
        or (isinstance(found, sql.StringType) and kinds[1] is sql.StringType)
    ):
        return True
    if kinds[0] in _WIDER:
        return kinds[1] in _WIDER[_WIDER.index(kinds[0]) :] or kinds[1] is sql.DoubleType
    return kinds == (sql.FloatType, sql.DoubleType) or kinds == (sql.TimestampType, sql.TimestampNTZType)
