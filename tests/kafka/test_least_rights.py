"""Jobs of users who have the rights in Kafka that the documentation asks for, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from holdfast.common import Configuration, SimpleStringSchema, WatermarkStrategy
from holdfast.connectors.kafka.sink.tokens import token_topic
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from holdfast.testing import InProcessEnvironment
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import committed_values

pytestmark = pytest.mark.kafka

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
CREATE, DELETE, DESCRIBE_CONFIGS = AclOperation.CREATE, AclOperation.DELETE, AclOperation.DESCRIBE_CONFIGS
_LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_joe="secret";'


class Guarded(KafkaBroker):
    """A broker with a second listener, where the user joe may do what he was given."""

    def __init__(self) -> None:
        super().__init__(
            heap="256m",
            properties={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LIMITED:SASL_PLAINTEXT",
                "listener.name.limited.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.limited.plain.sasl.jaas.config": _LOGIN,
            },
        )
        self.limited = self._reserve_port()
        self._listeners["LIMITED"] = (self.limited, self.limited)

    @property
    def login(self) -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.limited}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "joe",
            "sasl.password": "secret",
        }

    def allow(self, name: str, *operations: AclOperation, kind: ResourceType = ResourceType.TOPIC) -> None:
        pattern = ResourcePatternType.LITERAL if kind is ResourceType.TOPIC else ResourcePatternType.PREFIXED
        for operation in operations:
            one = AclBinding(kind, name, pattern, "User:joe", "*", operation, AclPermissionType.ALLOW)
            self.admin().create_acls([one])[one].result()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded() as broker:
        broker.create_topic("in", 2)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(20):
            producer.produce("in", str(number))
        producer.flush()
        broker.allow("in", READ)
        yield broker


def copy(broker: Guarded, output: str, settings: dict[str, Any]) -> None:
    """Run a job that copies the topic ``in``."""
    env = InProcessEnvironment(Configuration.from_dict(settings))
    source = KafkaSource(
        topics="in",
        bounded=KafkaOffsetsInitializer.latest(),
        value_only_deserializer=SimpleStringSchema(),
        properties=broker.login,
    )
    sink = KafkaSink(
        record_serializer=KafkaRecordSerializationSchema(topic=output, value_serialization_schema=SimpleStringSchema()),
        delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
        transactional_id_prefix=output,
        properties=broker.login,
    )
    env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in").sink_to(sink).uid("out")
    env.execute(output)


@pytest.mark.parametrize("creates", [True, False], ids=["the job", "somebody else"])
def a_job_reads_and_writes_with_the_rights_on_its_topics_and_transactions(
    guarded: Guarded, tmp_path: Path, creates: bool
) -> None:
    output = f"out-{creates}"
    guarded.create_topic(output)
    guarded.allow(output, WRITE, DESCRIBE)
    guarded.allow(output, WRITE, DESCRIBE, kind=ResourceType.TRANSACTIONAL_ID)
    guarded.allow(token_topic(output), READ, WRITE, DESCRIBE)
    if creates:
        guarded.allow(token_topic(output), CREATE)
    else:
        guarded.create_topic(token_topic(output), cleanup_policy="compact")
    settings = {"execution.checkpointing.dir": str(tmp_path)}
    copy(guarded, output, settings)
    assert sorted(map(int, committed_values(guarded.bootstrap_servers, output))) == list(range(20))


def a_checkpoint_log_works_with_the_rights_on_its_topic(guarded: Guarded, tmp_path: Path) -> None:
    output, log = "logged", "logged-checkpoints"
    guarded.create_topic(output)
    guarded.create_topic(token_topic(output), cleanup_policy="compact")
    guarded.create_topic(log, retention_ms="-1", retention_bytes="-1")
    guarded.allow(output, WRITE, DESCRIBE)
    guarded.allow(output, WRITE, DESCRIBE, kind=ResourceType.TRANSACTIONAL_ID)
    guarded.allow(token_topic(output), READ, WRITE, DESCRIBE)
    guarded.allow(log, DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE, DELETE)
    settings = {"execution.checkpointing.dir": str(tmp_path), "execution.checkpointing.log": "kafka"}
    settings |= {f"execution.checkpointing.log.kafka.{key}": value for key, value in guarded.login.items()}
    copy(guarded, output, settings)
    copy(guarded, output, settings)  # reads the log; there is nothing more to copy
    assert sorted(map(int, committed_values(guarded.bootstrap_servers, output))) == list(range(20))
