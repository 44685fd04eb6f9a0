"""Types made of other types: rows, tuples, lists, maps and arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Any

from holdfast.common.typeinfo.base import (
    TypeInformation,
    checked,
    described,
    from_described,
    refuse,
    register,
    shown,
)
from holdfast.common.typeinfo.basic import BasicType, BasicTypeInfo
from holdfast.common.types import Row, RowKind
from holdfast.common.values.type_variables import S, V

__all__ = [
    "BasicArrayTypeInfo",
    "ListTypeInfo",
    "MapTypeInfo",
    "ObjectArrayTypeInfo",
    "PrimitiveArrayTypeInfo",
    "RowTypeInfo",
    "SequenceTypeInfo",
    "TupleTypeInfo",
]

Convert = Callable[[Any], Any]


def alias(container: Any, *args: Any) -> Any:
    """The annotation ``container[args]``, made at run time."""
    return GenericAlias(container, args)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _within(place: str, error: Exception) -> Exception:
    """The same error, saying where in the value it arose."""
    return type(error)(f"{place}: {error}")


def _fields(field_types: Sequence[Any], kind: str) -> tuple[TypeInformation, ...]:
    if isinstance(field_types, TypeInformation) or not isinstance(field_types, (list, tuple)):
        raise TypeError(f"Types.{kind} takes a list of types, got {shown(field_types)}")
    return tuple(checked(t, f"field {i} of Types.{kind}") for i, t in enumerate(field_types))


REFUSALS = (TypeError, ValueError, OverflowError)


def name_field(values: Sequence[Any], converts: Sequence[Convert], names: Sequence[str]) -> None:
    """Convert once more, to name the field that fails: as long as all is well this costs nothing."""
    for convert, value, name in zip(converts, values, names, strict=True):
        try:
            convert(value)
        except REFUSALS as e:
            raise _within(f"field {name}", e) from e


_KINDS = tuple(RowKind)


class RowTypeInfo(TypeInformation[Row]):
    """The type of a `Row`; its fields may be None.

    A Row with names is matched by name against named fields, any other Row, tuple or list by position; a dict or an
    object of a dataclass by name. What reaches a function is always a Row with this type's names (f0, f1, ... unless given).
    """

    _names: tuple[str, ...]
    _types: tuple[TypeInformation, ...]

    def __init__(self, field_types: list[TypeInformation], field_names: list[str] | None = None) -> None:
        types = _fields(field_types, "ROW")
        names = tuple(f"f{i}" for i in range(len(types))) if field_names is None else tuple(field_names)
        if len(names) != len(types):
            raise ValueError(f"Types.ROW_NAMED: {len(names)} names for {len(types)} types")
        if len(set(names)) != len(names):
            raise ValueError(f"Types.ROW_NAMED: a name is given twice in {', '.join(names)}")
        self.__dict__.update(_names=names, _types=types, _named=field_names is not None)
        row_names = list(names)
        encodes = [t.encode for t in types]
        decodes = [t.decode for t in types]

        def encode(row: Row) -> Any:
            fields = [None if v is None else f(v) for f, v in zip(encodes, row._values, strict=True)]
            return (row._row_kind.value, *fields)

        def encode_plain(row: Row) -> Any:
            return (row._row_kind.value, *row._values)

        def decode(stored: Any) -> Row:
            fields = [None if v is None else f(v) for f, v in zip(decodes, stored[1:], strict=True)]
            return Row.of_values(fields, row_names, _KINDS[stored[0]])

        def decode_plain(stored: Any) -> Row:
            return Row.of_values(list(stored[1:]), row_names, _KINDS[stored[0]])

        plain = all(t.is_plain for t in types)
        annotation = alias(tuple, int, *(t.annotation | None for t in types))
        identity = ("ROW_NAMED", names, types) if field_names is not None else ("ROW", types)
        self._seal(
            identity,
            annotation,
            self._conformer(row_names, [t.conform for t in types]),
            (encode_plain, decode_plain) if plain else (encode, decode),
        )

    def _conformer(self, names: list[str], converts: list[Convert]) -> Convert:
        by_name = set(names) if self.__dict__["_named"] else None

        def conform(value: Any) -> Row:
            kind = RowKind.INSERT
            if isinstance(value, Row):
                kind = value._row_kind
                given = value._fields
                if given is names or by_name is None or given is None or given == names:
                    values: Sequence[Any] = value._values
                elif set(given) == by_name:
                    values = value.get_fields_by_names(names)
                else:
                    raise ValueError(f"{self!r} has other fields than {shown(value)}")
            elif isinstance(value, (tuple, list)):
                values = value
            elif isinstance(value, dict):
                unknown = [k for k in value if k not in names]
                if unknown:
                    raise ValueError(f"{self!r} has no field {shown(unknown[0])}")
                values = [value.get(n) for n in names]
            elif dataclasses.is_dataclass(value) and {field.name for field in dataclasses.fields(value)} == set(names):
                values = [getattr(value, n) for n in names]
            else:
                raise refuse("ROW", value, "return a Row(...)")
            if len(values) != len(converts):
                raise ValueError(f"{self!r} has {len(converts)} fields, got {len(values)} in {shown(value)}")
            try:
                fields = [None if v is None else f(v) for f, v in zip(converts, values, strict=True)]
            except REFUSALS:
                name_field(values, [_nullable(f) for f in converts], names)
                raise
            return Row.of_values(fields, names, kind)

        return conform

    def get_field_names(self) -> list[str]:
        """The fields' names."""
        return list(self._names)

    def get_field_index(self, field_name: str) -> int:
        """The position of a field; -1 if there is none of this name."""
        return self._names.index(field_name) if field_name in self._names else -1

    def get_field_types(self) -> list[TypeInformation]:
        """The fields' types."""
        return list(self._types)

    def with_aliases(self, aliases: Mapping[str, str | Sequence[str]]) -> RowTypeInfo:
        """The same type, for state stored when fields had other names.

        Args:
            aliases: By the present name of a field: its former name, or its former names.

        Raises:
            ValueError: the row has no field of a present name; an alias stands for two fields, or fields exchange names.
        """
        return self._with(_aliases=former_names(aliases, self._names), _defaults=self.__dict__.get("_defaults", {}))

    def with_defaults(self, defaults: Mapping[str, Any]) -> RowTypeInfo:
        """The same type, for state stored before it had some fields: they get these values. Without a default, None.

        Raises:
            ValueError: the row has no such field, or the default does not fit the field's type.
            TypeError: the default does not fit the field's type.
        """
        forms = default_forms(defaults, self._names, self._types)
        return self._with(_aliases=self.__dict__.get("_aliases", {}), _defaults=forms)

    def _with(self, **hints: Any) -> RowTypeInfo:
        if not self.__dict__["_named"]:
            raise ValueError(f"{self!r} has no field names: declare it with Types.ROW_NAMED")
        made = RowTypeInfo(list(self._types), list(self._names))
        made.__dict__.update(hints)
        return made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        names = list(self._names) if self.__dict__["_named"] else None
        return _rebuilt_row, (list(self._types), names, *map(self.__dict__.get, ("_aliases", "_defaults")))

    def _describe(self) -> dict[str, Any]:
        node: dict[str, Any] = {"type": "ROW", "fields": [described(t) for t in self._types]}
        if self.__dict__["_named"]:
            node["names"] = list(self._names)
        return node | hints_of(self)

    def _text(self) -> str:
        return f"RowTypeInfo({', '.join(f'{name}: {each}' for name, each in zip(self._names, self._types, strict=True))})"


class TupleTypeInfo(TypeInformation[tuple[Any, ...]]):
    """The type of a tuple of fixed length; its fields are never None."""

    _types: tuple[TypeInformation, ...]

    def __init__(self, field_types: list[TypeInformation]) -> None:
        types = _fields(field_types, "TUPLE")
        self.__dict__["_types"] = types
        converts = [t.conform for t in types]
        names = [str(i) for i in range(len(types))]
        encodes = [t.encode for t in types]
        decodes = [t.decode for t in types]

        def conform(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, tuple):
                raise refuse("TUPLE", value, "return a tuple")
            if len(value) != len(converts):
                raise ValueError(f"{self!r} has {len(converts)} fields, got {len(value)} in {shown(value)}")
            try:
                return tuple([f(v) for f, v in zip(converts, value, strict=True)])
            except REFUSALS:
                name_field(value, converts, names)
                raise

        plain = all(t.is_plain for t in types)
        codec = (
            lambda value: tuple([f(v) for f, v in zip(encodes, value, strict=True)]),
            lambda stored: tuple([f(v) for f, v in zip(decodes, stored, strict=True)]),
        )
        annotation = alias(tuple, *(t.annotation for t in types))
        self._seal(("TUPLE", types), annotation, conform, None if plain else codec)

    def get_field_types(self) -> list[TypeInformation]:
        """The fields' types."""
        return list(self._types)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return TupleTypeInfo, (list(self._types),)

    def _describe(self) -> dict[str, Any]:
        return {"type": "TUPLE", "fields": [described(t) for t in self._types]}

    def _text(self) -> str:
        return f"TupleTypeInfo({', '.join(map(str, self._types))})"


class SequenceTypeInfo(TypeInformation[list[V]]):
    """A list of elements of one type."""

    _kind: str
    has_nulls = True
    _element: TypeInformation

    def __init__(self, element_type: TypeInformation[V]) -> None:
        kind = self._kind
        element = checked(element_type, f"the element type of Types.{kind}")
        self.__dict__["_element"] = element
        plain_conform, optional = element.conform, self.has_nulls
        convert = _nullable(plain_conform) if optional else plain_conform

        def conform(value: Any) -> list[Any]:
            if not isinstance(value, (list, tuple)):
                items = getattr(value, "tolist", lambda: None)()  # arrays of the array module and of numpy
                if not isinstance(items, list):
                    raise refuse(kind, value, "pass a list")
                value = items
            try:
                return [convert(v) for v in value]
            except REFUSALS as e:
                raise _within(f"element of {kind}", e) from e

        codec = None
        if not element.is_plain:
            encode = _nullable(element.encode) if optional else element.encode
            decode = _nullable(element.decode) if optional else element.decode
            codec = (lambda value: [encode(v) for v in value], lambda stored: [decode(v) for v in stored])
        annotation = element.annotation | None if optional else element.annotation
        self._seal((kind, element), alias(list, annotation), conform, codec)

    @property
    def element_type(self) -> TypeInformation:
        """The elements' type."""
        return self._element

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self._element,)

    def _describe(self) -> dict[str, Any]:
        return {"type": self._kind, "element": described(self._element)}

    def _text(self) -> str:
        return f"{type(self).__name__}<{self._element}>"


class ListTypeInfo(SequenceTypeInfo[V]):
    """The type of a list; its elements may be None."""

    _kind = "LIST"


class BasicArrayTypeInfo(SequenceTypeInfo[V]):
    """The type of a list of basic values; its elements may be None."""

    _kind = "BASIC_ARRAY"

    def __init__(self, element_type: TypeInformation[V]) -> None:
        if not isinstance(element_type, BasicTypeInfo):
            raise TypeError(f"Types.BASIC_ARRAY takes a basic type, got {shown(element_type)}; use Types.OBJECT_ARRAY")
        super().__init__(element_type)


class ObjectArrayTypeInfo(SequenceTypeInfo[V]):
    """The type of a list of any type; its elements may be None."""

    _kind = "OBJECT_ARRAY"


_PRIMITIVE = frozenset(
    {
        BasicType.BOOLEAN,
        BasicType.BYTE,
        BasicType.SHORT,
        BasicType.INT,
        BasicType.LONG,
        BasicType.FLOAT,
        BasicType.DOUBLE,
        BasicType.CHAR,
    }
)


def _bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value if type(value) is bytes else bytes(value)
    raise refuse("PRIMITIVE_ARRAY(BYTE)", value, "pass bytes")


class PrimitiveArrayTypeInfo(SequenceTypeInfo[V]):
    """The type of a list of numbers, booleans or characters, never None; with BYTE it is the type of ``bytes``."""

    _kind = "PRIMITIVE_ARRAY"
    has_nulls = False

    def __init__(self, element_type: TypeInformation[V]) -> None:
        if not isinstance(element_type, BasicTypeInfo) or element_type.basic_type not in _PRIMITIVE:
            raise TypeError(f"Types.PRIMITIVE_ARRAY takes a primitive type, got {shown(element_type)}")
        super().__init__(element_type)
        if element_type.basic_type is BasicType.BYTE:
            self._seal((self._kind, element_type), bytes, _bytes)


class MapTypeInfo(TypeInformation[dict[S, V]]):
    """The type of a dict; its values may be None, its keys never."""

    _key: TypeInformation
    _value: TypeInformation

    def __init__(self, key_type_info: TypeInformation[S], value_type_info: TypeInformation[V]) -> None:
        key = checked(key_type_info, "the key type of Types.MAP")
        value = checked(value_type_info, "the value type of Types.MAP")
        if isinstance(key, (MapTypeInfo, SequenceTypeInfo)) and key.annotation is not bytes:
            raise TypeError(f"Types.MAP: {key!r} cannot be the key type, for its values are not hashable")
        self.__dict__.update(_key=key, _value=value)
        conform_key, conform_value = key.conform, _nullable(value.conform)

        def conform(given: Any) -> dict[Any, Any]:
            if not isinstance(given, dict):
                raise refuse("MAP", given, "pass a dict")
            try:
                return {conform_key(k): conform_value(v) for k, v in given.items()}
            except REFUSALS as e:
                raise _within("entry of MAP", e) from e

        entry = (key.annotation, value.annotation | None)
        annotation = alias(dict, *entry) if key.is_plain else alias(list, alias(tuple, *entry))
        self._seal(("MAP", key, value), annotation, conform, self._codec())

    def _codec(self) -> tuple[Convert, Convert] | None:
        key, value = self._key, self._value
        if key.is_plain and value.is_plain:
            return None
        encode, decode = _nullable(value.encode), _nullable(value.decode)
        if key.is_plain:
            return (
                lambda given: {k: encode(v) for k, v in given.items()},
                lambda stored: {k: decode(v) for k, v in stored.items()},
            )
        encode_key, decode_key = key.encode, key.decode
        return (
            lambda given: [(encode_key(k), encode(v)) for k, v in given.items()],
            lambda stored: {decode_key(k): decode(v) for k, v in stored},
        )

    @property
    def key_type(self) -> TypeInformation:
        """The keys' type."""
        return self._key

    @property
    def value_type(self) -> TypeInformation:
        """The values' type."""
        return self._value

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return MapTypeInfo, (self._key, self._value)

    def _describe(self) -> dict[str, Any]:
        return {"type": "MAP", "key": described(self._key), "value": described(self._value)}

    def _text(self) -> str:
        return f"MapTypeInfo<{self._key}, {self._value}>"


def _row(node: Mapping[str, Any]) -> TypeInformation[Any]:
    fields = [from_described(f) for f in node["fields"]]
    return _rebuilt_row(fields, node.get("names"), node.get("aliases"), node.get("defaults"))


def _rebuilt_row(
    types: list[TypeInformation[Any]],
    names: list[str] | None,
    aliases: dict[str, list[str]] | None,
    defaults: dict[str, Any] | None,
) -> RowTypeInfo:
    made = RowTypeInfo(types, names)
    made.__dict__.update(_aliases=aliases or {}, _defaults=defaults or {})
    return made


def former_names(aliases: Mapping[str, str | Sequence[str]], names: Sequence[str]) -> dict[str, list[str]]:
    """The former names of fields, by present name.

    Raises:
        ValueError: a name is no field; an alias stands for two fields; fields exchange their names.
    """
    for name in aliases:
        if name not in names:
            raise ValueError(
                f"an alias for {name!r}, which is no field: the keys are the present names, the values former ones"
            )
    found = {name: [former] if isinstance(former, str) else list(former) for name, former in aliases.items()}
    owners: dict[str, str] = {}
    for name, formers in found.items():
        for former in formers:
            if owners.setdefault(former, name) != name:
                raise ValueError(
                    f"{former!r} is an alias of both {owners[former]!r} and {name!r}: a field has one present name"
                )
    _refuse_exchanged(found)
    return found


def _refuse_exchanged(aliases: Mapping[str, Sequence[str]]) -> None:
    """Refuse fields that exchange their names: stored ones have all the present names, so no alias would be looked at."""
    waiting = {name: set(former).intersection(aliases) for name, former in aliases.items()}
    while free := {name for name, former in waiting.items() if not former}:
        waiting = {name: former - free for name, former in waiting.items() if name not in free}
    if waiting:
        raise ValueError(
            f"the fields {', '.join(map(repr, waiting))} exchange their names: stored values would keep theirs, since a "
            "present name comes before an alias. Give the fields new names"
        )


def default_forms(
    defaults: Mapping[str, Any], names: Sequence[str], types: Sequence[TypeInformation[Any]]
) -> dict[str, Any]:
    """The stored forms of the fields' defaults."""
    fields = dict(zip(names, types, strict=True))
    forms = {}
    for name, value in defaults.items():
        if name not in fields:
            raise ValueError(f"a default for {name!r}, which is no field of {', '.join(names)}")
        try:
            forms[name] = None if value is None else fields[name].encode(fields[name].conform(value))
        except REFUSALS as error:
            raise _within(f"the default of field {name}", error) from error
    return forms


def hints_of(record: TypeInformation[Any]) -> dict[str, Any]:
    """The aliases and defaults of a record's description, which concern only values that are stored already."""
    hints = {name: record.__dict__.get(f"_{name}") for name in ("aliases", "defaults")}
    return {name: hint for name, hint in hints.items() if hint}


register("ROW", _row)
register("TUPLE", lambda node: TupleTypeInfo([from_described(f) for f in node["fields"]]))
register("LIST", lambda node: ListTypeInfo(from_described(node["element"])))
register("BASIC_ARRAY", lambda node: BasicArrayTypeInfo(from_described(node["element"])))
register("OBJECT_ARRAY", lambda node: ObjectArrayTypeInfo(from_described(node["element"])))
register("PRIMITIVE_ARRAY", lambda node: PrimitiveArrayTypeInfo(from_described(node["element"])))
register("MAP", lambda node: MapTypeInfo(from_described(node["key"]), from_described(node["value"])))
