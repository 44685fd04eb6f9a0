"""Schemas of states and results, as PySpark's programs give them: a ``StructType``, or Spark's text for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.errors import ConfigurationError

__all__ = ["Schema", "check_fields", "parse_fields", "parse_schema", "tuples"]

_TYPES: dict[str, TypeInformation] = {
    **dict.fromkeys(("boolean",), Types.BOOLEAN()),
    **dict.fromkeys(("byte", "tinyint"), Types.BYTE()),
    **dict.fromkeys(("short", "smallint"), Types.SHORT()),
    **dict.fromkeys(("int", "integer"), Types.INT()),
    **dict.fromkeys(("long", "bigint"), Types.LONG()),
    **dict.fromkeys(("float", "real"), Types.FLOAT()),
    "double": Types.DOUBLE(),
    "string": Types.STRING(),
    "date": Types.SQL_DATE(),
    "binary": Types.PRIMITIVE_ARRAY(Types.BYTE()),
}
"""The types whose values are checked. Values of the others are kept as they are."""
_OTHERS = re.compile(
    r"(timestamp(_ntz|_ltz)?|dec(imal)?(\s*\(.*\))?|numeric(\s*\(.*\))?|(var)?char\s*\(.*\)|time(\s*\(.*\))?|interval\b.*"
    r"|(array|map)\s*<.+>|struct\s*<.*>)",
    re.DOTALL,
)
_FIELD = re.compile(r"\s*(`(?:[^`]|``)+`|\w+)\s*(?::\s*|\s+)(.+)", re.DOTALL)
_HINTS = re.compile(r"\s+(not\s+null|comment\s+('[^']*'|\"[^\"]*\"))\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Schema:
    """Names and types of fields, in order."""

    names: tuple[str, ...]
    types: tuple[TypeInformation | None, ...]
    """None: values of the field are not checked."""

    @property
    def as_tuple(self) -> TypeInformation | None:
        """The declared type of tuples; None if a field has none."""
        known = [each for each in self.types if each is not None]
        return Types.TUPLE(known) if len(known) == len(self.types) else None

    @property
    def as_row(self) -> TypeInformation | None:
        """The declared type of Rows; None if a field has none."""
        known = [each for each in self.types if each is not None]
        return Types.ROW_NAMED(list(self.names), known) if len(known) == len(self.types) else None


def parse_schema(given: Any, where: str) -> Schema:
    """Parse a schema.

    Args:
        given: A ``StructType``, or a text like ``"count int, last timestamp"``.
        where: What it belongs to, for messages.

    Raises:
        ConfigurationError: it is neither, has no fields or one name twice, or a type is not known.
    """
    if isinstance(given, str):
        fields = parse_fields(given, where)
    elif type(given).__name__ == "StructType":
        fields = [(field.name, field.dataType.simpleString()) for field in given.fields]
    else:
        raise ConfigurationError(f"{where} takes a StructType or a text such as 'count int', not {given!r}")
    names = tuple(name for name, _ in fields)
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"{where}: {given!r} has {'two fields of one name' if names else 'no fields'}")
    return Schema(names, tuple(_type(text, where) for _, text in fields))


def parse_fields(given: str, where: str) -> list[tuple[str, str]]:
    """The names of the fields in a text such as ``"count int, last timestamp"``, and the texts of their types.

    Raises:
        ConfigurationError: the text is not a schema; ``where`` says what it belongs to.
    """
    return [_parsed(text, given, where) for text in _split(given)]


def _type(text: str, where: str) -> TypeInformation | None:
    text = text.strip().lower()
    if text not in _TYPES and not _OTHERS.fullmatch(text):
        raise ConfigurationError(
            f"{where}: {text!r} is not a type that a field may have; give e.g. 'count int, name string'"
        )
    return _TYPES.get(text)


def _parsed(text: str, given: str, where: str) -> tuple[str, str]:
    while hint := _HINTS.search(text):
        text = text[: hint.start()]
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{where}: {given!r} is not a schema; give names and types, e.g. 'count int, name string'")
    name, kind = found.groups()
    return (name[1:-1].replace("``", "`") if name.startswith("`") else name), kind.strip()


def _split(text: str) -> Iterator[str]:
    """The fields, at commas outside of brackets and quotes."""
    depth, quote, start = 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and not depth:
            yield text[start:at]
            start = at + 1
    if text.strip():
        yield text[start:]


def check_fields(value: Any, count: int, what: str) -> tuple[Any, ...]:
    """A value of a state as a tuple of so many fields.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, (tuple, list)) or len(value) != count:
        fields = f"{count} field{'s' if count > 1 else ''}"
        raise TypeError(f"{what} takes a tuple of {fields}, as in its schema, not {value!r}")
    return tuple(value)


def tuples(values: Sequence[Any], count: int, what: str) -> list[tuple[Any, ...]]:
    """Values of a list state as tuples.

    Raises:
        TypeError: one has other fields.
        ValueError: there are none.
    """
    if not isinstance(values, (list, tuple)) or not values:
        raise ValueError(f"{what} takes a list of at least one tuple, not {values!r}; clear() empties the state")
    return [check_fields(value, count, what) for value in values]
