"""Serializer snapshots as text, for messages and listings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["type_text"]


def type_text(snapshot: Mapping[str, Any] | None) -> str:
    """The type in a serializer snapshot, with its fields; None: no declared type.

    >>> from holdfast.common.typeinfo import Types
    >>> type_text(Types.ROW_NAMED(["id", "tags"], [Types.LONG(), Types.LIST(Types.STRING())]).to_dict())
    'ROW(id LONG, tags LIST(STRING))'
    """
    if snapshot is None:
        return "pickled"
    kind = str(snapshot.get("type", snapshot))
    if "fields" in snapshot:
        fields = list(map(type_text, snapshot["fields"]))
        names = snapshot.get("names")
        return f"{kind}({', '.join(fields if names is None else map(' '.join, zip(names, fields, strict=True)))})"
    inner = [type_text(snapshot[part]) for part in ("element", "key", "value") if part in snapshot]
    return f"{kind}({', '.join(inner)})" if inner else kind
