"""The settings that determine where checkpoint logs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from holdfast.checkpoint.stores.log_router import LogRouter
from holdfast.checkpoint.stores.object_store import ObjectStore
from holdfast.checkpoint.stores.topic import Topic
from holdfast.errors import ConfigurationError

__all__ = ["LOG", "LOG_TOPIC", "log_in_topic", "log_topics", "routed"]

LOG = "execution.checkpointing.log"
LOG_TOPIC = "execution.checkpointing.log.topic"
_KAFKA = f"{LOG}.kafka."
"""Prefix of Kafka's client properties."""


def log_in_topic(config: Mapping[str, str]) -> bool:
    """Whether the checkpoint log is kept in a topic.

    Raises:
        ConfigurationError: the setting is neither ``storage`` nor ``kafka``, or the brokers are missing.
    """
    kind = config.get(LOG, "storage").strip().lower()
    if kind not in ("storage", "kafka"):
        raise ConfigurationError(f"{LOG} is {kind!r}; it must be storage or kafka")
    if kind == "kafka" and not config.get(f"{_KAFKA}bootstrap.servers", "").strip():
        raise ConfigurationError(f"{_KAFKA}bootstrap.servers is not set: the brokers of the checkpoint log ({LOG} is kafka)")
    return kind == "kafka"


def log_topics(config: Mapping[str, str], directory: str) -> frozenset[str]:
    """The topic with the checkpoint log of the job with this directory; empty if it is not in a topic.

    >>> log_topics({LOG: "kafka", f"{_KAFKA}bootstrap.servers": "broker:9092"}, "payments")
    frozenset({'payments-checkpoints'})
    """
    return frozenset([_topic(config, directory)] if log_in_topic(config) else [])


def _topic(config: Mapping[str, str], directory: str) -> str:
    return config.get(LOG_TOPIC, "").strip() or f"{directory}-checkpoints"


def routed(store: ObjectStore, config: Mapping[str, str], signed: Callable[[ObjectStore], ObjectStore]) -> LogRouter:
    """The store with its checkpoint logs in topics.

    Raises:
        ConfigurationError: Kafka's client is not installed, or a property is invalid.
    """
    properties = {key.removeprefix(_KAFKA): value for key, value in config.items() if key.startswith(_KAFKA)}
    try:
        from confluent_kafka import Producer

        from holdfast.checkpoint.stores.kafka_topic import KafkaTopic
        from holdfast.common.kafka_properties import check_properties
    except ImportError as error:
        raise ConfigurationError(
            f"{LOG} is kafka, but Kafka's client is not installed: pip install 'holdfast[kafka]'"
        ) from error
    try:
        check_properties(properties, Producer)
    except ConfigurationError as error:
        raise ConfigurationError(f"{_KAFKA}*, the properties of the checkpoint log: {error}") from error

    def open_topic(name: str) -> Topic:
        return KafkaTopic(name, properties)

    return LogRouter(store, open_topic, partial(_topic, config), signed)
