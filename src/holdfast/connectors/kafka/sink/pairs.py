"""Pairs of key and value to and from Kafka records; a record without a value is the pair with None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.serializer import RecordSerializer, serialized
from holdfast.connectors.kafka.sink.upserts import with_tombstones
from holdfast.connectors.kafka.source.consumer_record import ConsumerRecord, KafkaRecordDeserializationSchema

__all__ = ["PairDeserializer", "PairSerializer"]


class PairDeserializer(KafkaRecordDeserializationSchema):
    """Makes pairs of key and value; a missing one is None.

    Args:
        key: A `DeserializationSchema` or a callable from bytes for the keys; None: strings.
        value: The same for the values.
        of_table: Whether the pairs are changes of a table: each needs a key.
    """

    def __init__(self, key: Any, value: Any, of_table: bool) -> None:
        self._key = _reads(key)
        self._value = _reads(value)
        self._of_table = of_table

    def deserialize(self, record: ConsumerRecord) -> tuple[Any, Any]:
        """Make the pair of a record.

        Raises:
            ValueError: a record of a table has no key.
        """
        key = None if record.key is None else self._key(record.key)
        if key is None and self._of_table:
            raise ValueError(
                "a record without a key changes no row of a table. Write it with a key, or read the topic as a stream, by "
                "StreamsBuilder.stream(...), and give the records keys with KStream.of(...)"
            )
        return key, None if record.value is None else self._value(record.value)


def _reads(schema: Any) -> Callable[[bytes], Any]:
    return bytes.decode if schema is None else getattr(schema, "deserialize", schema)


@dataclass(frozen=True)
class PairSerializer(RecordSerializer):
    """Writes pairs of key and value; the value None is a tombstone."""

    def columns(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> OutgoingBatch:
        """Convert pairs; errors are those of the schemas, or tell what is wrong with the pairs."""
        for pair in values:
            if type(pair) is not tuple or len(pair) != 2:
                raise TypeError(f"a KStream consists of pairs of key and value, not {pair!r:.200}")
            if pair[0] is None and pair[1] is None:
                raise ValueError("the pair (None, None) cannot be written: a deletion (the value None) needs a key")
        known = iter(serialized(self.key_schema, [pair[0] for pair in values if pair[0] is not None], "key"))
        keys = [None if pair[0] is None else next(known) for pair in values]
        return self.outgoing(values, with_tombstones(self.value_schema, [pair[1] for pair in values]), keys, timestamps)
