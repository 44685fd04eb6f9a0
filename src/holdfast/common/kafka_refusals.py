"""Kafka's refusals: errors that last until somebody changes permissions, the login or settings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation, AdminClient

from holdfast.common.kafka_properties import connection_settings

__all__ = ["OF_THE_GROUP", "REFUSED", "refused_login", "rights_missing"]

REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTH_DISABLED,
        KafkaError.DELEGATION_TOKEN_EXPIRED,
        KafkaError.DELEGATION_TOKEN_NOT_FOUND,
        KafkaError.DELEGATION_TOKEN_OWNER_MISMATCH,
        KafkaError.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SECURITY_DISABLED,
        KafkaError._AUTHENTICATION,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)
"""Codes for which the job ends at once."""

OF_THE_GROUP = KafkaError.GROUP_AUTHORIZATION_FAILED
"""What a client tells that may not use its group. One that reads given partitions needs no group, so it goes on."""

_OF_THE_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM}
_LOGIN_S = 5.0
"""Seconds to wait for the brokers."""
_OTHERS_S = 1.0
"""After one broker has refused the login, this long for another one to accept it: the first may just be starting."""


def refused_login(settings: Mapping[str, Any]) -> str:
    """Why the brokers refuse the login; empty if they accept it or do not answer. Blocks for some seconds at most.

    A request of a client whose login is refused only times out: the client reports the reason to a callback. So a client of
    its own asks here, after a request that had no answer.

    Args:
        settings: The client's settings, with librdkafka's names.
    """
    refusals: list[str] = []

    def heard(error: KafkaError) -> None:
        if error.code() in _OF_THE_LOGIN or "certificate verify failed" in error.str():
            refusals.append(error.str())

    client = AdminClient({**connection_settings(settings), "log_level": 0, "error_cb": heard})
    answer = client.describe_cluster(request_timeout=_LOGIN_S)
    heard_at = 0.0
    while not answer.done() and not (refusals and time.monotonic() > heard_at + _OTHERS_S):
        heard_at = heard_at if refusals else time.monotonic()
        client.poll(0.1)  # serves the callback
    accepted = answer.done() and answer.exception() is None
    return refusals[0] if refusals and not accepted else ""


def rights_missing(allowed: Iterable[AclOperation] | None, needed: Iterable[AclOperation]) -> list[str]:
    """The names of missing rights, as ``kafka-acls.sh --operation`` takes them; none if the brokers do not tell rights.

    >>> rights_missing([AclOperation.READ, AclOperation.DESCRIBE], [AclOperation.READ, AclOperation.DESCRIBE_CONFIGS])
    ['DescribeConfigs']
    """
    known = set(allowed or ())
    return [each.name.title().replace("_", "") for each in needed if known and each not in known]
