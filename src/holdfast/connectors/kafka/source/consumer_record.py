"""ConsumerRecord, a whole Kafka record, and the schemas that read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

from holdfast.common.values.type_variables import OUT

__all__ = ["CalledWithRecord", "ConsumerRecord", "KafkaRecordDeserializationSchema"]


class ConsumerRecord(NamedTuple):
    """A Kafka record with its place, as Kafka's ConsumerRecord."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Kafka's timestamp of the record, in ms; -1 if it has none."""
    key: bytes | None
    value: bytes | None
    """None: the record is a tombstone, which deletes its key in a compacted topic."""
    headers: tuple[tuple[str, bytes | None], ...]
    """Names and values, in their order in the record; a name may come more than once."""


class KafkaRecordDeserializationSchema(ABC, Generic[OUT]):
    """Makes elements of whole Kafka records. Subclasses define `deserialize`, which must not keep state between calls."""

    @abstractmethod
    def deserialize(self, record: ConsumerRecord) -> OUT | None:
        """Make the element of a record; return None to emit nothing. Tombstones come too: their value is None.

        Raises:
            Exception: the record does not fit the schema.
        """


class CalledWithRecord(KafkaRecordDeserializationSchema):
    """Calls a function with each record.

    Args:
        function: A callable ``record -> element``.
    """

    def __init__(self, function: Callable[[ConsumerRecord], Any]) -> None:
        self._function = function

    def deserialize(self, record: ConsumerRecord) -> Any:
        """Return what the function returns."""
        return self._function(record)
