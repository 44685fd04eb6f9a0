"""JSON schemas: JSON text to records of a declared type, usually Rows, and back."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Generic, cast

import msgspec

from holdfast.common.formats.json_schema import type_of_json_schema
from holdfast.common.formats.parsed_columns import ParsedColumns, can_parse
from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.time import Instant
from holdfast.common.typeinfo import (
    BasicType,
    BasicTypeInfo,
    MapTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    SqlTimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from holdfast.common.typeinfo.base import shown
from holdfast.common.typeinfo.composite import REFUSALS, SequenceTypeInfo, alias, name_field
from holdfast.common.types import Row
from holdfast.common.values.type_variables import R, T, V
from holdfast.errors import ConfigurationError

__all__ = [
    *(
        "JsonRowDeserializationSchema",
        "JsonRowSerializationSchema",
        "from_instant",
        "json_reader",
        "plain_row",
        "to_instant",
        "to_time",
        "to_utc",
    ),
    "with_named_floats",
]

Convert = Callable[[Any], Any]
UTC = datetime.timezone.utc
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = datetime.timedelta(seconds=1)


class JsonRowDeserializationSchema(DeserializationSchema[V]):
    """Deserializes JSON objects to Rows. Unknown fields are ignored, missing fields are None.

    Numbers may also be given as strings. Dates and times are strings in RFC 3339's form; those with an offset become
    UTC. Bytes are base64.

    Examples:
        >>> from holdfast.common import Types
        >>> row_type = Types.ROW_NAMED(["merchant", "amount"], [Types.STRING(), Types.DOUBLE()])
        >>> schema = JsonRowDeserializationSchema.builder().type_info(row_type).build()
        >>> schema.deserialize(b'{"merchant": "M001", "amount": 250, "city": "Pune"}')
        Row(merchant='M001', amount=250.0)

    Args:
        type_info: The records' type, usually ``Types.ROW_NAMED``.
        fail_on_missing_field: Raise an error for a missing field instead of reading None.
        ignore_parse_errors: Drop records that cannot be parsed.

    Raises:
        ConfigurationError: there is no type, or both settings are made.
    """

    def __init__(
        self, type_info: TypeInformation[V], fail_on_missing_field: bool = False, ignore_parse_errors: bool = False
    ) -> None:
        if not isinstance(type_info, TypeInformation):
            raise ConfigurationError(
                "JsonRowDeserializationSchema: give the records' type by type_info(Types.ROW_NAMED(...)) or "
                f"json_schema(...), got {type_info!r}"
            )
        if fail_on_missing_field and ignore_parse_errors:
            raise ConfigurationError(
                "JsonRowDeserializationSchema: fail_on_missing_field and ignore_parse_errors exclude each other"
            )
        self._type = type_info
        self._required = fail_on_missing_field
        self._ignore = ignore_parse_errors
        annotation, convert = json_reader(type_info, fail_on_missing_field)
        self._columnar = can_parse(type_info)  # then msgspec's values are those of the Rows
        self._decode = msgspec.json.Decoder(annotation, strict=False).decode
        self._convert = convert
        self._nulls = _takes_numbers(type_info)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type, self._required, self._ignore)

    @staticmethod
    def builder() -> JsonRowDeserializationSchema.Builder[Any]:
        """Return a builder."""
        return JsonRowDeserializationSchema.Builder()

    def get_produced_type(self) -> TypeInformation:
        """The records' type."""
        return self._type

    def deserialize(self, data: bytes) -> Any:
        """Parse JSON text to a record; return None for an ignored parse error.

        Raises:
            ValueError: the text is not JSON of this type; names the field.
        """
        try:
            value = self._decode(data)
            if self._nulls and any(null in data for null in _NULLS):
                _check_nulls(value, msgspec.json.decode(data))
            return value if self._convert is None else self._convert(value)
        except _PARSE_ERRORS as e:
            if self._ignore:
                return None
            raise ValueError(f"not a JSON record of the declared type: {e}, in {shown(bytes(data))}") from e

    def deserialize_batch(self, data: Sequence[bytes]) -> list[Any]:
        """Parse each JSON text to a record; None for an ignored parse error."""
        decode, convert = self._decode, self._convert
        if self._nulls and _may_be_null(data):
            return [self.deserialize(item) for item in data]
        try:
            if self._columnar:
                return self._columns([decode(item) for item in data])
            if convert is None:
                return [decode(item) for item in data]
            return [convert(decode(item)) for item in data]
        except _PARSE_ERRORS:
            return [self.deserialize(item) for item in data]

    def _columns(self, structs: list[Any]) -> list[Any]:
        return ParsedColumns(structs, self._type).as_list()  # type: ignore[arg-type]

    class Builder(Generic[T]):
        """Builds a `JsonRowDeserializationSchema`."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None
            self._required = False
            self._ignore = False

        def type_info(self, type_info: TypeInformation[R]) -> JsonRowDeserializationSchema.Builder[R]:
            """Set the records' type, usually ``Types.ROW_NAMED``."""
            self._type_info = type_info
            return cast("JsonRowDeserializationSchema.Builder[R]", self)

        def json_schema(self, json_schema: str) -> JsonRowDeserializationSchema.Builder[Any]:
            """Derive the records' type from a JSON schema.

            Raises:
                ConfigurationError: the schema cannot be understood.
            """
            self._type_info = type_of_json_schema(json_schema)
            return self

        def fail_on_missing_field(self) -> JsonRowDeserializationSchema.Builder[T]:
            """Raise an error for a missing field instead of reading None."""
            self._required = True
            return self

        def ignore_parse_errors(self) -> JsonRowDeserializationSchema.Builder[T]:
            """Drop records that cannot be parsed."""
            self._ignore = True
            return self

        def build(self) -> JsonRowDeserializationSchema[T]:
            """Build the schema.

            Raises:
                ConfigurationError: there is no type, or both ``fail_on_missing_field`` and ``ignore_parse_errors`` are set.
            """
            return JsonRowDeserializationSchema(cast("TypeInformation[T]", self._type_info), self._required, self._ignore)


class JsonRowSerializationSchema(SerializationSchema):
    """Serializes Rows to JSON objects with the type's field names; None as null, NaN and infinities as strings.

    Examples:
        >>> from holdfast.common import Row, Types
        >>> row_type = Types.ROW_NAMED(["merchant", "amount"], [Types.STRING(), Types.DOUBLE()])
        >>> schema = JsonRowSerializationSchema.builder().with_type_info(row_type).build()
        >>> schema.serialize(Row(merchant="M001", amount=250.0))
        b'{"merchant":"M001","amount":250.0}'

    Args:
        type_info: The records' type, usually ``Types.ROW_NAMED``.

    Raises:
        ConfigurationError: there is no type.
    """

    def __init__(self, type_info: TypeInformation) -> None:
        if not isinstance(type_info, TypeInformation):
            raise ConfigurationError(
                "JsonRowSerializationSchema: give the records' type by with_type_info(Types.ROW_NAMED(...)), "
                f"got {type_info!r}"
            )
        self._type = type_info
        self._conform = type_info.conform
        self._convert = _writer(type_info)
        self._convert_exactly = _writer(type_info, exact=True)
        self._encode = msgspec.json.Encoder(decimal_format="number").encode

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type,)

    @staticmethod
    def builder() -> JsonRowSerializationSchema.Builder:
        """Return a builder."""
        return JsonRowSerializationSchema.Builder()

    def serialize(self, value: Any) -> bytes:
        """Format a record as JSON text.

        Raises:
            TypeError: the record is not of the declared type.
            ValueError: the same, or it cannot be represented.
        """
        value = self._conform(value)
        try:
            data = self._encode(value if self._convert is None else self._convert(value))
            if b"null" in data and self._convert_exactly is not None:  # maybe NaN or an infinity, which JSON cannot hold
                return self._encode(self._convert_exactly(value))
            return data
        except REFUSALS:
            self._name_field(value)
            raise

    def _name_field(self, row: Any) -> None:
        """Encode field by field, to name the one that fails."""
        if isinstance(self._type, RowTypeInfo):
            writers = [_nullable(_writer(declared)) for declared in self._type.get_field_types()]
            steps = [lambda field, w=w: self._encode(field if w is None else w(field)) for w in writers]
            name_field(row, steps, self._type.get_field_names())

    class Builder:
        """Builds a `JsonRowSerializationSchema`."""

        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None

        def with_type_info(self, type_info: TypeInformation) -> JsonRowSerializationSchema.Builder:
            """Set the records' type, usually ``Types.ROW_NAMED``."""
            self._type_info = type_info
            return self

        def build(self) -> JsonRowSerializationSchema:
            """Build the schema.

            Raises:
                ConfigurationError: there is no type.
            """
            return JsonRowSerializationSchema(cast("TypeInformation", self._type_info))


_PARSE_ERRORS = (ValueError, OverflowError, TypeError, RecursionError)
_NULLS = (b'"null"', b'"Null"', b'"NULL"')


def _may_be_null(data: Sequence[bytes]) -> bool:
    """Whether a string of some texts is ``null``, which msgspec reads as None where it reads numbers of strings."""
    text = b"".join(data)
    return any(null in text for null in _NULLS)


def _takes_numbers(type_info: TypeInformation) -> bool:
    return not (isinstance(type_info, BasicTypeInfo) and type_info.basic_type in (BasicType.STRING, BasicType.CHAR))


def _check_nulls(value: Any, raw: Any) -> None:
    """Check that None was read of null only.

    Raises:
        ValueError: it was read of a string.
    """
    if value is None:
        if raw is not None:
            raise ValueError(f"expected null or a value of the declared type, got {raw!r}")
    elif isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            try:
                _check_nulls(getattr(value, field.name), raw.get(field.encode_name))
            except ValueError as error:
                raise ValueError(f"{error} - at `$.{field.encode_name}`") from None
    elif isinstance(value, (list, tuple)):
        for part, of in zip(value, raw):
            _check_nulls(part, of)
    elif isinstance(value, dict) and isinstance(raw, dict):
        for part, of in zip(value.values(), raw.values()):
            _check_nulls(part, of)


def to_time(text: str) -> datetime.time:
    time = msgspec.convert(text, datetime.time)
    if time.tzinfo is None:
        return time
    return datetime.datetime.combine(_EPOCH.date(), time).astimezone(UTC).time()


def to_utc(text: str) -> datetime.datetime:
    moment = msgspec.convert(text, datetime.datetime)
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def to_instant(text: str) -> Instant:
    at = text.find(".")
    end = at + 1
    while at >= 0 and text[end : end + 1].isdecimal():
        end += 1
    digits = text[at + 1 : end] if at >= 0 else ""
    whole = to_utc(text[:at] + text[end:] if digits else text)
    return Instant((whole.replace(tzinfo=UTC) - _EPOCH) // _SECOND, int(f"{digits:0<9.9}"))


def from_instant(instant: Instant) -> str:
    try:
        moment = _EPOCH + datetime.timedelta(seconds=instant.seconds)
    except OverflowError:
        raise OverflowError(f"JSON holds the years 1 to 9999, got {instant!r}") from None
    digits = f".{instant.nanos:09d}".rstrip("0") if instant.nanos else ""
    return f"{moment.replace(tzinfo=None).isoformat()}{digits}Z"


def _number_or_name(value: float) -> float | str:
    """Parse a number; NaN and the infinities by their names, as the serializer writes them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain_row(row: Row) -> dict[str, Any] | list[Any]:
    """The fields of a row as JSON has them: by name if they have names, else in order."""
    return list(row) if row._fields is None else row.as_dict()


def with_named_floats(value: Any) -> Any:
    """A value of any class with the names of NaN and the infinities in their place."""
    if isinstance(value, float):
        return _number_or_name(value)
    if isinstance(value, Row):
        value = plain_row(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: with_named_floats(each) for key, each in value.items()}
    return [with_named_floats(each) for each in value] if isinstance(value, (list, tuple)) else value


_READ: dict[str, tuple[Any, Convert | None]] = {
    "FLOAT": (float, BasicTypeInfo.FLOAT_TYPE_INFO().conform),
    "BIG_INT": (int, None),
    "BIG_DEC": (Decimal, BasicTypeInfo.BIG_DEC_TYPE_INFO().conform),
    "INSTANT": (str, to_instant),
    "SQL_DATE": (str, lambda text: msgspec.convert(text, datetime.date)),
    "SQL_TIME": (str, to_time),
    "SQL_TIMESTAMP": (str, to_utc),
}
_WRITE: dict[str, Convert | None] = {
    "BIG_INT": Decimal,  # written in full; msgspec's integers end at 64 bits
    "BIG_DEC": None,
    "INSTANT": from_instant,
    "SQL_DATE": None,
    "SQL_TIME": lambda value: value.replace(tzinfo=UTC),
    "SQL_TIMESTAMP": lambda value: value.replace(tzinfo=UTC),
}
_KEYS = frozenset({BasicType.STRING, BasicType.CHAR, BasicType.BYTE, BasicType.SHORT, BasicType.INT, BasicType.LONG})


def _check_key(key: TypeInformation) -> None:
    if not isinstance(key, BasicTypeInfo) or key.basic_type not in _KEYS:
        raise ConfigurationError(f"a JSON object's keys are strings or whole numbers, not {key!r}")


def _kind(type_info: TypeInformation) -> str:
    if isinstance(type_info, BasicTypeInfo):
        return type_info.basic_type.name
    return type_info.kind if isinstance(type_info, SqlTimeTypeInfo) else ""


def _nullable(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _each_element(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    each = convert
    return lambda value: [None if v is None else each(v) for v in value]


def _each_entry(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    each = convert
    return lambda value: {k: None if v is None else each(v) for k, v in value.items()}


def json_reader(type_info: TypeInformation, required: bool) -> tuple[Any, Convert | None]:
    """The type that msgspec decodes for this type, and the conversion after it (None: no conversion)."""
    kind = _kind(type_info)
    if kind:
        return _READ.get(kind, (type_info.annotation, None))
    if type_info.is_pickled:
        return Any, None
    if isinstance(type_info, PrimitiveArrayTypeInfo) and type_info.annotation is bytes:
        return bytes, None
    if isinstance(type_info, RowTypeInfo):
        return _row_reader(type_info, required)
    if isinstance(type_info, TupleTypeInfo):
        readers = [json_reader(t, required) for t in type_info.get_field_types()]
        steps = [(i, c) for i, (_, c) in enumerate(readers) if c is not None]
        return alias(tuple, *(annotation for annotation, _ in readers)), _fields(steps, tuple) if steps else None
    if isinstance(type_info, MapTypeInfo):
        _check_key(type_info.key_type)
        annotation, convert = json_reader(type_info.value_type, required)
        return alias(dict, type_info.key_type.annotation, annotation | None), _each_entry(convert)
    if isinstance(type_info, SequenceTypeInfo):
        annotation, convert = json_reader(type_info.element_type, required)
        return alias(list, annotation | None), _each_element(convert)
    raise ConfigurationError(f"JSON cannot be read as {type_info!r}")


def _fields(steps: list[tuple[int, Convert]], make: Callable[[list[Any]], Any]) -> Convert:
    def convert(values: Any) -> Any:
        fields = list(values)
        for i, step in steps:
            fields[i] = step(fields[i])
        return make(fields)

    return convert


def _row_reader(type_info: RowTypeInfo, required: bool) -> tuple[Any, Convert]:
    names = type_info.get_field_names()
    readers = [json_reader(t, required) for t in type_info.get_field_types()]
    defaults: tuple[Any, ...] = () if required else (None,)
    # A msgspec Struct decodes the known fields in C and skips the others; its own field names stay internal.
    struct = msgspec.defstruct(
        "JsonObject",
        [(f"f{i}", annotation | None, *defaults) for i, (annotation, _) in enumerate(readers)],
        rename={f"f{i}": name for i, name in enumerate(names)},
        gc=False,
    )
    steps = [(i, c) for i, (_, convert) in enumerate(readers) if (c := _nullable(convert)) is not None]
    astuple, of_values = msgspec.structs.astuple, Row.of_values
    if not steps:
        return struct, lambda value: of_values(list(astuple(value)), names)
    fields = _fields(steps, lambda values: of_values(values, names))
    return struct, lambda value: fields(astuple(value))


def _writer(type_info: TypeInformation, exact: bool = False) -> Convert | None:
    """The conversion of a value before msgspec encodes it (None: no conversion).

    With ``exact`` it also converts NaN and infinities, which msgspec would write as null.
    """
    kind = _kind(type_info)
    if kind:
        return _number_or_name if exact and kind in ("DOUBLE", "FLOAT") else _WRITE.get(kind)
    if type_info.is_pickled:
        return with_named_floats if exact else None
    if isinstance(type_info, RowTypeInfo):
        names = type_info.get_field_names()
        writers = [_nullable(_writer(t, exact)) for t in type_info.get_field_types()]
        steps = [(i, w) for i, w in enumerate(writers) if w is not None]
        if not steps:
            return lambda row: dict(zip(names, row, strict=True))
        return _fields(steps, lambda values: dict(zip(names, values, strict=True)))
    if isinstance(type_info, TupleTypeInfo):
        steps = [(i, w) for i, t in enumerate(type_info.get_field_types()) if (w := _writer(t, exact)) is not None]
        return _fields(steps, list) if steps else None
    if isinstance(type_info, MapTypeInfo):
        _check_key(type_info.key_type)
        return _each_entry(_writer(type_info.value_type, exact))
    if isinstance(type_info, SequenceTypeInfo) and type_info.annotation is not bytes:
        return _each_element(_writer(type_info.element_type, exact))
    return None
