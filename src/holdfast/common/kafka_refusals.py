"""Kafka's refusals: errors that last until somebody changes permissions, the login or settings."""

from __future__ import annotations

from confluent_kafka import KafkaError

__all__ = ["OF_THE_GROUP", "REFUSED"]

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
