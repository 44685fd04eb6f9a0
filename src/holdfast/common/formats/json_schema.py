"""Conversion of a JSON schema to a type."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.errors import ConfigurationError

__all__ = ["type_of_json_schema"]

_Factories = dict[str, Callable[[], TypeInformation]]
_SIMPLE: _Factories = {"number": Types.BIG_DEC, "integer": Types.BIG_INT, "boolean": Types.BOOLEAN}
_FORMATS: _Factories = {"date": Types.SQL_DATE, "time": Types.SQL_TIME, "date-time": Types.SQL_TIMESTAMP}


def type_of_json_schema(json_schema: str) -> TypeInformation:
    """Convert a JSON schema to the type of the values it allows.

    An object becomes ``ROW_NAMED``, an array ``OBJECT_ARRAY`` (of a list of item schemas: ``ROW``), a number
    ``BIG_DEC``, an integer ``BIG_INT``, a string ``STRING`` or, by its format, a date, a time or a timestamp;
    ``contentEncoding: base64`` makes it bytes. References within the schema are followed.

    Examples:
        >>> type_of_json_schema('{"type": "object", "properties": {"id": {"type": "integer"}}}')
        Types.ROW_NAMED(['id'], [Types.BIG_INT()])

    Raises:
        ConfigurationError: the schema is not JSON, or a part of it matches no type.
    """
    try:
        root = json.loads(json_schema)
    except ValueError as e:
        raise ConfigurationError(f"the JSON schema is no JSON: {e}") from e
    return _type(root, root, "$", 0)


def _type(node: Any, root: Any, where: str, depth: int) -> TypeInformation:
    if not isinstance(node, dict):
        raise ConfigurationError(f"JSON schema, {where}: expected an object, got {node!r}")
    if depth > 50:
        raise ConfigurationError(f"JSON schema, {where}: it refers to itself, which no type can describe")
    if "$ref" in node:
        return _type(_resolve(node["$ref"], root, where), root, where, depth + 1)
    for choice in ("oneOf", "anyOf"):
        if choice in node:
            return _type(_not_null(node[choice], where), root, where, depth + 1)
    kind = node.get("type")
    if isinstance(kind, list):
        kind = _not_null([{"type": k} for k in kind], where)["type"]
    if kind == "object":
        properties = node.get("properties", {})
        names = list(properties)
        return Types.ROW_NAMED(names, [_type(properties[n], root, f"{where}.{n}", depth + 1) for n in names])
    if kind == "array":
        items = node.get("items")
        if isinstance(items, list):
            return Types.ROW([_type(item, root, f"{where}[{i}]", depth + 1) for i, item in enumerate(items)])
        return Types.OBJECT_ARRAY(_type(items, root, f"{where}[]", depth + 1))
    if kind == "string":
        if node.get("contentEncoding") == "base64":
            return Types.PRIMITIVE_ARRAY(Types.BYTE())
        return _FORMATS.get(node.get("format", ""), Types.STRING)()
    if kind not in _SIMPLE:
        raise ConfigurationError(f"JSON schema, {where}: no type stands for {node!r}")
    return _SIMPLE[kind]()


def _not_null(choices: list[Any], where: str) -> Any:
    left = [choice for choice in choices if choice.get("type") != "null"]
    if len(left) != 1:
        raise ConfigurationError(f"JSON schema, {where}: a choice must be of one type and null, got {choices!r}")
    return left[0]


def _resolve(reference: str, root: Any, where: str) -> Any:
    node = root
    if not reference.startswith("#"):
        raise ConfigurationError(f"JSON schema, {where}: {reference!r} is outside of the schema")
    for part in reference[1:].strip("/").split("/"):
        if part:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or key not in node:
                raise ConfigurationError(f"JSON schema, {where}: {reference!r} leads nowhere")
            node = node[key]
    return node
