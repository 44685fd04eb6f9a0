"""Kafka topics as a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import T
from holdfast.connectors.base import Enumerator, JobInfo, ReaderContext, SourceReader, produced_type
from holdfast.connectors.kafka.source.enumerator import KafkaEnumerator
from holdfast.connectors.kafka.source.positions import check_positions
from holdfast.connectors.kafka.source.reader import KafkaReader
from holdfast.connectors.kafka.source.source_options import KafkaSourceOptions

__all__ = ["KafkaSource"]


@dataclass(frozen=True)
class KafkaSource(KafkaSourceOptions, Generic[T]):
    """A source of the values or the whole records in Kafka topics. Elements have Kafka's timestamps.

    A schema of values does not get records without a value (tombstones): they emit nothing.

    Raises:
        ConfigurationError: a property is unknown, or its value is out of range.
    """

    def get_produced_type(self) -> TypeInformation | None:
        """The records' type, if the schema declares it."""
        return produced_type(self.deserializer)

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        """Create the enumerator, in the driver."""
        return KafkaEnumerator(self, uid, job.changelogs)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in topics; a topic that the source no longer reads is dropped."""
        check_positions(state)

    def create_reader(self, context: ReaderContext) -> SourceReader[T]:
        """Create a reader, in a task slot."""
        return KafkaReader(self, context.uid)
