"""UpsertSerializer: writes Rows by their kind, for a compacted topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.common.types import Row, RowKind
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.serializer import RecordSerializer, serialized

__all__ = ["UpsertSerializer", "with_tombstones"]


@dataclass(frozen=True)
class UpsertSerializer(RecordSerializer):
    """Writes Rows by their kind: INSERT and UPDATE_AFTER as a record, DELETE as a tombstone, UPDATE_BEFORE not at all."""

    def columns(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> OutgoingBatch:
        """Convert rows; errors are those of the schemas, or tell what is wrong with the rows."""
        kinds = [_kind(row) for row in values]
        if RowKind.UPDATE_BEFORE in kinds:
            kept = [i for i, kind in enumerate(kinds) if kind is not RowKind.UPDATE_BEFORE]
            values, kinds = [values[i] for i in kept], [kinds[i] for i in kept]
            timestamps = None if timestamps is None else [timestamps[i] for i in kept]
        keys = serialized(self.key_schema, values, "key")
        for key, row in zip(keys, values, strict=True):
            if key is None:
                raise ValueError(f"{row!r:.200} has no key: the key serialization schema returned None")
        data = with_tombstones(
            self.value_schema, [None if k is RowKind.DELETE else v for k, v in zip(kinds, values, strict=True)]
        )
        return self.outgoing(values, data, keys, timestamps)


def with_tombstones(schema: Any, values: Sequence[Any]) -> list[bytes | None]:
    """Serialize values; None stays None, and nothing else becomes it."""
    live = [value for value in values if value is not None]
    data = serialized(schema, live, "value")
    for item, value in zip(data, live, strict=True):
        if item is None:
            raise ValueError(
                f"the value serialization schema returned None for {value!r:.200}: this would delete the key. Delete keys "
                "by Rows of kind DELETE or by the value None"
            )
    rest = iter(data)
    return [None if value is None else next(rest) for value in values]


def _kind(row: Any) -> RowKind:
    if not isinstance(row, Row):
        raise TypeError(f"upserts are Rows with a kind, e.g. Row.of_kind(RowKind.DELETE, ...), not {type(row).__name__}")
    return row.get_row_kind()
