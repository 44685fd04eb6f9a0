"""Client properties: Java's and librdkafka's names, for the data clients and the transaction client.

Most names are identical. Different names are translated here, and names unknown to all clients are refused at the start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from holdfast.errors import ConfigurationError

__all__ = [
    "admin_properties",
    "check_properties",
    "check_transactional",
    "connection_settings",
    "consumer_properties",
    "producer_properties",
    "protocol_properties",
    "transactional_properties",
]

_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "default.api.timeout.ms": "socket.timeout.ms",
}
_LIMITS = {"delivery.timeout.ms": "message.timeout.ms", "transaction.timeout.ms": "message.timeout.ms", **_RENAMED}
"""The settings of librdkafka that properties set or bound."""
_WITHOUT_MEANING = {
    "key.deserializer", "value.deserializer", "key.serializer", "value.serializer", "max.poll.records", "max.block.ms",
    "partition.discovery.interval.ms", "commit.offsets.on.checkpoint", "register.consumer.metrics", "client.id.prefix",
    "auto.offset.reset",
}  # fmt: skip
"""Names that Java programs set and librdkafka clients do not need; the source reads some of them itself."""

_OURS = {
    "enable.auto.commit": "the position is part of the checkpoint; the group's offsets are committed after each one",
    "enable.auto.offset.store": "the position is part of the checkpoint",
    "enable.partition.eof": "the reader sets it",
    "transactional.id": "it is made from the transactional id prefix: set_transactional_id_prefix(...)",
    "enable.idempotence": "the sink always writes idempotently",
    "acks": "the sink always waits for all replicas",
    "delivery.report.only.error": "the sink sets it",
}
_OUR_VALUES = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.idempotence": "true",
    "acks": "all -1",
}

_CONNECTION = ("bootstrap.servers", "metadata.broker.list", "client.id", "client.rack", "debug", "log_level")
_CONNECTION_PREFIXES = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl.",
    "socket.",
    "broker.address.",
    "reconnect.",
    "client.dns.",
)

_PRODUCERS_ONLY = {
    "acks", "request.required.acks", "batch.num.messages", "batch.size", "compression.codec",
    "compression.level", "compression.type", "delivery.report.only.error", "delivery.timeout.ms",
    "enable.gapless.guarantee", "enable.idempotence", "linger.ms", "max.in.flight", "message.send.max.retries",
    "message.timeout.ms", "msg_order_cmp", "partitioner", "produce.offset.report",
    "queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes", "queue.buffering.max.messages",
    "queue.buffering.max.ms", "queuing.strategy", "request.timeout.ms", "retries", "sticky.partitioning.linger.ms",
    "transaction.timeout.ms", "transactional.id",
}  # fmt: skip
_CONSUMERS_ONLY = {
    "allow.auto.create.topics", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs",
    "consume.callback.max.messages", "coordinator.query.interval.ms", "enable.auto.commit", "enable.auto.offset.store",
    "enable.partition.eof", "fetch.error.backoff.ms", "fetch.max.bytes", "fetch.message.max.bytes", "fetch.min.bytes",
    "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.id", "group.instance.id", "group.protocol",
    "group.protocol.type", "group.remote.assignor", "heartbeat.interval.ms", "isolation.level",
    "max.partition.fetch.bytes", "max.poll.interval.ms", "offset.store.method", "offset.store.path",
    "offset.store.sync.interval.ms", "partition.assignment.strategy", "queued.max.messages.kbytes",
    "queued.min.messages", "session.timeout.ms",
}  # fmt: skip
"""librdkafka prints a warning for properties of the other client type."""

_JAAS = re.compile(r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")

_ANSWER_MS = 30_000
"""How long a request waits for its answer before it is repeated on another connection; as Java's ``request.timeout.ms``."""
_SHORTEST_ANSWER_MS = 2_000
_SOON_MS = 20
"""The first pause between two connections. A client pauses for half of it before its second one, of which each new producer
needs two; librdkafka's default would cost each of them 50 ms."""

_READING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,  # the only sign that a range ends with transaction markers
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 5,  # librdkafka's default, one second, would idle a reader that keeps pace with its queue
    "queued.min.messages": 200_000,
    "max.poll.interval.ms": 86_400_000,
    "socket.keepalive.enable": True,
    "socket.timeout.ms": _ANSWER_MS,
    "reconnect.backoff.max.ms": 2_000,
}
_WRITING = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 131_072,
    "delivery.report.only.error": True,
    "enable.metrics.push": False,  # a producer lives for one epoch: not worth the brokers' effort
    "socket.keepalive.enable": True,
    "socket.timeout.ms": _ANSWER_MS,
    "reconnect.backoff.max.ms": 2_000,
}


def _translate(properties: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in properties.items():
        if key in _OURS:
            if str(value).lower() not in _OUR_VALUES.get(key, "").split():
                raise ConfigurationError(f"the Kafka property {key}={value} cannot be set: {_OURS[key]}")
        elif key == "sasl.jaas.config":
            found = {name: a or b for name, a, b in _JAAS.findall(str(value))}
            if set(found) != {"username", "password"}:
                raise ConfigurationError(
                    "sasl.jaas.config: only login modules with username and password are understood; set sasl.username "
                    "and sasl.password, or librdkafka's sasl.* properties"
                )
            result["sasl.username"], result["sasl.password"] = found["username"], found["password"]
        elif key.startswith(("ssl.truststore.", "ssl.keystore.")) and not key.endswith((".pem", ".password")):
            raise ConfigurationError(
                f"the Kafka property {key} names a Java key store, which Python cannot read; give PEM files: "
                "ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password"
            )
        elif key == "ssl.endpoint.identification.algorithm" and not value:
            result[key] = "none"
        elif key == "buffer.memory":
            result["queue.buffering.max.kbytes"] = max(1, int(value) // 1024)
        elif key not in _WITHOUT_MEANING:
            result[_RENAMED.get(key, key)] = value
    return result


def consumer_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A reader's consumer settings; producer-only properties are left out."""
    given = {key: value for key, value in _translate(properties).items() if key not in _PRODUCERS_ONLY}
    return {"group.id": "holdfast", **_READING, **given}


def producer_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A writer's producer settings; consumer-only properties are left out."""
    given = {key: value for key, value in _translate(properties).items() if key not in _CONSUMERS_ONLY}
    return {**_WRITING, **given}


def transactional_properties(properties: Mapping[str, Any], transactional_id: str, timeout_ms: int) -> dict[str, Any]:
    """A transactional writer's producer settings: no wait outlasts the transaction, and no request takes all its time.

    librdkafka's default would let a request wait as long as the transaction may last. If its broker stands still, the
    epoch would be lost, even if another broker had taken over the broker's partitions long before.
    """
    settings = producer_properties(properties)
    delivery = int(settings.pop("delivery.timeout.ms", 0)) or int(settings.get("message.timeout.ms", 0)) or timeout_ms
    return {
        "reconnect.backoff.ms": _SOON_MS,
        **settings,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": min(delivery, timeout_ms),
        "socket.timeout.ms": min(int(settings["socket.timeout.ms"]), max(timeout_ms // 3, _SHORTEST_ANSWER_MS), timeout_ms),
    }


def admin_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The connection settings."""
    return connection_settings(_translate(properties)) | {"socket.keepalive.enable": True, "reconnect.backoff.max.ms": 2_000}


def connection_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The connection settings among a client's settings."""
    return {k: v for k, v in settings.items() if k in _CONNECTION or k.startswith(_CONNECTION_PREFIXES)}


def check_properties(properties: Mapping[str, Any], kind: type[Consumer] | type[Producer]) -> None:
    """Check names and values by creating a client, which does not connect yet.

    Raises:
        ConfigurationError: a property is invalid; the message names it.
    """
    consumer = kind is Consumer
    complete = {**({"group.id": "holdfast"} | _READING if consumer else _WRITING), **_translate(properties)}
    client = _created(kind, complete, properties)
    if consumer:
        client.close()


def check_transactional(properties: Mapping[str, Any], timeout_ms: int) -> None:
    """Check the settings of a transactional writer, as `check_properties`.

    Raises:
        ConfigurationError: they do not go together; the message names them.
    """
    _created(Producer, transactional_properties(properties, "check", timeout_ms), properties)


def _created(kind: type[Consumer] | type[Producer], settings: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    try:
        for each in settings.values():
            if isinstance(each, str):
                each.encode()  # the client library dies of texts without a UTF-8 form
        return kind({**settings, "log_level": 0, "bootstrap.servers": ""})
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        for name in given:
            if _LIMITS.get(name, name) in reason and name not in reason:
                reason += f" (set by {name})"
        raise ConfigurationError(f"Kafka {'source' if kind is Consumer else 'sink'}: {reason}") from error


def protocol_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The connection settings for kafka-python, which ends transactions.

    Raises:
        ConfigurationError: kafka-python does not support the login.
    """
    known = admin_properties(properties)
    mechanism = str(known.get("sasl.mechanism", known.get("sasl.mechanisms", ""))).upper()
    if mechanism and mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"):
        raise ConfigurationError(
            f"exactly-once to Kafka cannot log in by sasl.mechanism={mechanism} yet; use PLAIN, SCRAM-SHA-256, "
            "SCRAM-SHA-512, GSSAPI or TLS certificates, or DeliveryGuarantee.AT_LEAST_ONCE"
        )
    names = {
        "security.protocol": "security_protocol",
        "sasl.username": "sasl_plain_username",
        "sasl.password": "sasl_plain_password",
        "sasl.kerberos.service.name": "sasl_kerberos_service_name",
        "ssl.ca.location": "ssl_cafile",
        "ssl.certificate.location": "ssl_certfile",
        "ssl.key.location": "ssl_keyfile",
        "ssl.key.password": "ssl_password",
        "ssl.crl.location": "ssl_crlfile",
    }
    result = {there: known[here] for here, there in names.items() if here in known}
    if "security_protocol" in result:
        result["security_protocol"] = str(result["security_protocol"]).upper()
    if mechanism:
        result["sasl_mechanism"] = mechanism
    checked = str(known.get("ssl.endpoint.identification.algorithm", "https")).lower() != "none"
    verified = str(known.get("enable.ssl.certificate.verification", "true")).lower() == "true"
    if not verified:
        raise ConfigurationError(
            "enable.ssl.certificate.verification=false does not work with exactly-once to Kafka; give the CA by "
            "ssl.ca.location"
        )
    if not checked:
        result["ssl_check_hostname"] = False
    servers = known.get("bootstrap.servers", known.get("metadata.broker.list", ""))
    result["bootstrap_servers"] = [s.strip() for s in str(servers).split(",") if s.strip()]
    return result
