"""The type of a dataclass or named tuple, stored by the names of its fields."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import importlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

from holdfast.common.time import Instant
from holdfast.common.typeinfo.base import TypeInformation, checked, described, from_described, refuse, register, shown
from holdfast.common.typeinfo.basic import BasicType, BasicTypeInfo, PickledBytesTypeInfo, SqlTimeTypeInfo
from holdfast.common.typeinfo.composite import (
    REFUSALS,
    ListTypeInfo,
    MapTypeInfo,
    PrimitiveArrayTypeInfo,
    alias,
    default_forms,
    former_names,
    hints_of,
    name_field,
)
from holdfast.common.types import Row
from holdfast.common.values.field_defaults import default_maker
from holdfast.common.values.type_variables import V

__all__ = ["PojoTypeInfo", "type_of_class"]

_BASIC: dict[Any, TypeInformation[Any]] = {
    str: BasicTypeInfo(BasicType.STRING),
    bool: BasicTypeInfo(BasicType.BOOLEAN),
    int: BasicTypeInfo(BasicType.LONG),
    float: BasicTypeInfo(BasicType.DOUBLE),
    bytes: PrimitiveArrayTypeInfo(BasicTypeInfo(BasicType.BYTE)),
    Decimal: BasicTypeInfo(BasicType.BIG_DEC),
    Instant: BasicTypeInfo.INSTANT_TYPE_INFO(),
    datetime.date: SqlTimeTypeInfo("SQL_DATE"),
    datetime.time: SqlTimeTypeInfo("SQL_TIME"),
    datetime.datetime: SqlTimeTypeInfo("SQL_TIMESTAMP"),
}


class PojoTypeInfo(TypeInformation[V]):
    """The type of a dataclass or named tuple; its fields may be None.

    Fields get their types from the annotations: ``int`` is LONG, ``float`` DOUBLE, ``list[str]`` LIST(STRING), a dataclass
    POJO, and so on; a field of any other annotation is pickled. ``field_types`` declares them differently.
    """

    _names: tuple[str, ...]
    _types: tuple[TypeInformation[Any], ...]

    def __init__(self, pojo_class: type[V], field_types: Mapping[str, TypeInformation[Any]] | None = None) -> None:
        annotations, defaults = _fields_of(pojo_class)
        unknown = [name for name in field_types or () if name not in annotations]
        if unknown:
            raise ValueError(f"{pojo_class.__qualname__} has no field {unknown[0]!r}")
        declared = {name: checked(each, f"the type of field {name}") for name, each in (field_types or {}).items()}
        names = list(annotations)
        fields = [declared[name] if name in declared else _type_of(annotations[name], pojo_class) for name in names]
        self._describe_class(f"{pojo_class.__module__}:{pojo_class.__qualname__}", pojo_class, names, fields)
        self.__dict__["_defaults"] = default_forms(defaults, names, fields)

    def _describe_class(
        self, path: str, pojo_class: type[Any] | None, names: Sequence[str], fields: Sequence[TypeInformation[Any]]
    ) -> None:
        self.__dict__.update(_path=path, _class=pojo_class, _names=tuple(names), _types=tuple(fields), _aliases={})
        get = (lambda value: ()) if not names else _getter(names)
        make = _maker(pojo_class, names)
        encodes, decodes = [each.encode for each in fields], [each.decode for each in fields]
        converts = [_nullable(each.conform) for each in fields]

        def conform(value: Any) -> Any:
            if type(value) is not pojo_class:
                raise refuse(f"POJO({path})", value)
            given = get(value)
            try:
                fitting = [convert(each) for convert, each in zip(converts, given)]
            except REFUSALS:
                name_field(given, converts, names)
                raise
            return value if all(map(_is, fitting, given)) else make(fitting)

        def encode(value: Any) -> Any:
            return tuple([None if each is None else f(each) for f, each in zip(encodes, get(value))])

        def decode(stored: Any) -> Any:
            return make([None if each is None else f(each) for f, each in zip(decodes, stored, strict=True)])

        annotation = alias(tuple, *(each.annotation | None for each in fields))
        self._seal(("POJO", path, tuple(names), tuple(fields)), annotation, conform, (encode, decode))

    @classmethod
    def of_description(cls, node: Mapping[str, Any]) -> PojoTypeInfo[Any]:
        """The type in a serializer snapshot. If its class is gone, values are read as Rows."""
        made = cls.__new__(cls)
        fields = [from_described(each) for each in node["fields"]]
        made._describe_class(node["class"], _found(node["class"]), node["names"], fields)
        made.__dict__.update(_aliases=node.get("aliases", {}), _defaults=node.get("defaults", {}))
        return made

    def with_aliases(self, aliases: Mapping[str, str | Sequence[str]]) -> PojoTypeInfo[V]:
        """The same type, for state stored when fields had other names.

        Args:
            aliases: By the present name of a field: its former name, or its former names.

        Raises:
            ValueError: the class has no field of a present name; an alias stands for two fields, or fields exchange names.
        """
        return _pojo(self._class, dict(zip(self._names, self._types)), former_names(aliases, self._names))

    def made_of(self, values: list[Any]) -> Any:
        """An object with these values of its fields, made without a call of ``__init__``."""
        return _maker(self._class, self._names)(values)

    @property
    def _class(self) -> Any:
        return self.__dict__["_class"]

    def get_field_names(self) -> list[str]:
        """The fields' names."""
        return list(self._names)

    def get_field_types(self) -> list[TypeInformation[Any]]:
        """The fields' types."""
        return list(self._types)

    def _describe(self) -> dict[str, Any]:
        fields = [described(each) for each in self._types]
        return {"type": "POJO", "class": self.__dict__["_path"], "names": list(self._names), "fields": fields} | hints_of(
            self
        )

    def _text(self) -> str:
        fields = ", ".join(f"{name}: {each}" for name, each in zip(self._names, self._types, strict=True))
        return f"PojoType<{self.__dict__['_path'].replace(':', '.')}, fields = [{fields}]>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._class is None:
            return TypeInformation.from_dict, (self.to_dict(),)
        return _pojo, (self._class, dict(zip(self._names, self._types)), self.__dict__["_aliases"])


def _pojo(
    pojo_class: type[Any], field_types: Mapping[str, TypeInformation[Any]], aliases: Mapping[str, list[str]]
) -> PojoTypeInfo[Any]:
    made = PojoTypeInfo(pojo_class, field_types)
    made.__dict__["_aliases"] = dict(aliases)
    return made


def _is(one: Any, other: Any) -> bool:
    return one is other


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _getter(names: Sequence[str]) -> Callable[[Any], Any]:
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _maker(pojo_class: Any, names: Sequence[str]) -> Callable[[list[Any]], Any]:
    """Makes an object from the values of its fields; like pickle, without a call of ``__init__``."""
    if pojo_class is None:
        row_names = list(names)
        return lambda values: Row.of_values(values, row_names)
    if issubclass(pojo_class, tuple):
        return lambda values: tuple.__new__(pojo_class, values)
    create = pojo_class.__new__
    if not hasattr(pojo_class, "__slots__") and not any("__slots__" in vars(base) for base in pojo_class.__mro__[:-1]):

        def made(values: list[Any]) -> Any:
            value = create(pojo_class)
            value.__dict__.update(zip(names, values))
            return value

        return made

    def made_of_slots(values: list[Any]) -> Any:
        value = create(pojo_class)
        for name, each in zip(names, values):
            object.__setattr__(value, name, each)
        return value

    return made_of_slots


def _fields_of(pojo_class: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The annotations of a class's fields, and the defaults."""
    if isinstance(pojo_class, type) and _is_named_tuple(pojo_class):
        named: Any = pojo_class
        hints = typing.get_type_hints(named)
        return {name: hints.get(name, Any) for name in named._fields}, dict(named._field_defaults)
    if not isinstance(pojo_class, type) or not dataclasses.is_dataclass(pojo_class):
        raise TypeError(f"Types.POJO takes a dataclass or a NamedTuple class, got {shown(pojo_class)}")
    hints = typing.get_type_hints(pojo_class)
    makers = {field.name: default_maker(field) for field in dataclasses.fields(pojo_class)}
    return {name: hints[name] for name in makers}, {name: make() for name, make in makers.items() if make is not None}


def _type_of(annotation: Any, within: Any) -> TypeInformation[Any]:
    """The type for an annotation; the pickled type if there is none."""
    basic = _BASIC.get(annotation) if isinstance(annotation, type) else None
    if basic is not None:
        return basic
    if annotation is within:
        return PickledBytesTypeInfo()  # a tree or a linked list has no finite type
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        inner = [each for each in args if each is not type(None)]
        return _type_of(inner[0], within) if len(inner) == 1 else PickledBytesTypeInfo()
    if origin in (list, collections.abc.Sequence) and len(args) == 1:
        return ListTypeInfo(_type_of(args[0], within))
    if origin in (dict, collections.abc.Mapping):
        key = _type_of(args[0], within)
        return PickledBytesTypeInfo() if key.is_pickled else MapTypeInfo(key, _type_of(args[1], within))
    if isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or _is_named_tuple(annotation)):
        return PojoTypeInfo(annotation)
    return PickledBytesTypeInfo()


def type_of_class(given: Any) -> TypeInformation[Any] | None:
    """The type of the values of a class, as for a field with this annotation; None: values are pickled.

    >>> type_of_class(list[int])
    Types.LIST(Types.LONG())
    """
    found = _type_of(given, None)
    return None if found.is_pickled else found


def _is_named_tuple(annotation: type[Any]) -> bool:
    return issubclass(annotation, tuple) and hasattr(annotation, "_field_defaults")


def _found(path: str) -> type[Any] | None:
    """The class of this path; None: it cannot be imported or is no dataclass or named tuple."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        _fields_of(found)
    except Exception:  # the user's module may raise anything
        return None
    return found  # type: ignore[no-any-return]


register("POJO", PojoTypeInfo.of_description)
