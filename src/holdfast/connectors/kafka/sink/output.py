"""KafkaOutput, the settings of a Kafka sink for its writers and committer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.sink.serializer import Serializer
from holdfast.errors import ConfigurationError

__all__ = ["KafkaOutput"]

_TRANSACTION_TIMEOUT_MS = 600_000


@dataclass(frozen=True)
class KafkaOutput:
    """The target, format and guarantee of a sink."""

    properties: Mapping[str, Any]
    """Client properties, ``bootstrap.servers`` among them."""
    serializer: Serializer
    guarantee: DeliveryGuarantee = DeliveryGuarantee.NONE
    transactional_id_prefix: str = ""

    @property
    def transaction_timeout_ms(self) -> int:
        """Time in ms after which brokers abort an unfinished transaction (``transaction.timeout.ms``; default: 10 minutes).

        It is not a deadline for data: recovery rewrites the records of an aborted transaction. It bounds the time that
        readers wait behind a transaction of a job that is down.
        """
        value = self.properties.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS)
        try:
            return int(value)
        except ValueError:
            raise ConfigurationError(f"transaction.timeout.ms={value}: must be a number of milliseconds") from None

    @property
    def topic(self) -> str | None:
        """The topic; None if it is chosen per record."""
        return self.serializer.topic if isinstance(self.serializer.topic, str) else None
