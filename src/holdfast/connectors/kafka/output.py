"""KafkaOutput, the settings of a Kafka sink for its writers and committer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.serializer import RecordSerializer
from holdfast.errors import ConfigurationError

__all__ = ["KafkaOutput"]

_TRANSACTION_TIMEOUT_MS = 600_000


@dataclass(frozen=True)
class KafkaOutput:
    """Where a sink writes, in which form, and with which guarantee."""

    properties: Mapping[str, Any]
    """Client properties, ``bootstrap.servers`` among them."""
    serializer: RecordSerializer
    guarantee: DeliveryGuarantee = DeliveryGuarantee.NONE
    transactional_id_prefix: str = ""

    @property
    def transaction_timeout_ms(self) -> int:
        """When the brokers abort a transaction that no one ends (``transaction.timeout.ms``, 10 minutes if not set).

        It is no deadline for data: what it takes is written again on recovery. It bounds how long readers may have to
        wait behind a transaction of a job that is down.
        """
        value = self.properties.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS)
        try:
            return int(value)
        except ValueError:
            raise ConfigurationError(f"transaction.timeout.ms={value}: must be a number of milliseconds") from None

    @property
    def topic(self) -> str | None:
        """The topic, None if it is chosen for each record."""
        return self.serializer.topic if isinstance(self.serializer.topic, str) else None
