"""Jobs of users who have the rights in Kafka that the documentation asks for, and no others."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from holdfast.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from holdfast.common.kafka_refusals import refused_login
from holdfast.connectors.kafka.changelogs.changelog import changelog_topic
from holdfast.connectors.kafka.sink.tokens import token_topic
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from holdfast.errors import ConfigurationError
from holdfast.testing import InProcessEnvironment
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import committed_values

pytestmark = pytest.mark.kafka

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
CREATE, DELETE, DESCRIBE_CONFIGS = AclOperation.CREATE, AclOperation.DELETE, AclOperation.DESCRIBE_CONFIGS
_numbers = itertools.count()
_LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_joe="secret";'


class Guarded(KafkaBroker):
    """A broker with a listener where the user joe may do what he was given, and one that refuses him."""

    def __init__(self) -> None:
        super().__init__(
            heap="256m",
            properties={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
                "LIMITED:SASL_PLAINTEXT,OTHERS:SASL_PLAINTEXT",
                "listener.name.others.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.others.plain.sasl.jaas.config": _LOGIN.replace("joe", "ann"),
                "listener.name.limited.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.limited.plain.sasl.jaas.config": _LOGIN,
            },
        )
        self.limited = self._reserve_port()
        self.others = self._reserve_port()
        self._listeners |= {"LIMITED": (self.limited, self.limited), "OTHERS": (self.others, self.others)}

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

    def forbid(self, name: str, operation: AclOperation) -> None:
        """Take a right on a topic back."""
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        one = AclBindingFilter(ResourceType.TOPIC, name, literal, "User:joe", "*", operation, allow)
        self.admin().delete_acls([one])[one].result()


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


def copy(
    broker: Guarded,
    output: str | Callable[[str], str],
    settings: dict[str, Any],
    guarantee: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE,
    *,
    name: str = "",
    group: str = "",
    start: str = "earliest",
    passwords: tuple[str, str] = ("secret", "secret"),
) -> None:
    """Run a job that copies the topic ``in``, with these passwords of source and sink; an error that may pass ends it."""
    env = InProcessEnvironment(Configuration.from_dict({"restart-strategy.type": "none", **settings}))
    name = name or str(output)
    reading, writing = ({**broker.login, "sasl.password": password} for password in passwords)
    source = KafkaSource(
        topics="in",
        starting_offsets=start,
        group_id=group or None,
        bounded=KafkaOffsetsInitializer.latest(),
        value_only_deserializer=SimpleStringSchema(),
        properties=reading,
    )
    chosen = {"topic": output} if isinstance(output, str) else {"topic_selector": output}
    sink = KafkaSink(
        record_serializer=KafkaRecordSerializationSchema(**chosen, value_serialization_schema=SimpleStringSchema()),
        delivery_guarantee=guarantee,
        transactional_id_prefix=name if guarantee is DeliveryGuarantee.EXACTLY_ONCE else "",
        properties=writing,
    )
    records = env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
    if settings.get("state.changelog.enabled"):
        pairs = records.map(lambda value: (value, 1), Types.TUPLE([Types.STRING(), Types.LONG()]))
        records = pairs.key_by(lambda pair: pair[0]).sum(1).uid("sum").map(lambda pair: pair[0], Types.STRING())
    records.sink_to(sink).uid("out")
    env.execute(name)


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


# ---- what is missing is named, and ends the job ----


def log_in(broker: Guarded, topic: str, tmp_path: Path, password: str = "secret") -> dict[str, Any]:
    settings = {"execution.checkpointing.dir": str(tmp_path), "execution.checkpointing.log": "kafka"}
    settings["execution.checkpointing.log.topic"] = topic
    login = {**broker.login, "sasl.password": password}
    return settings | {f"execution.checkpointing.log.kafka.{key}": value for key, value in login.items()}


@pytest.fixture
def output(guarded: Guarded) -> str:
    """A topic that joe may write, transactions and tokens included."""
    name = f"to-{next(_numbers)}"
    guarded.create_topic(name)
    guarded.create_topic(token_topic(name), cleanup_policy="compact")
    guarded.allow(name, WRITE, DESCRIBE)
    guarded.allow(name, WRITE, DESCRIBE, kind=ResourceType.TRANSACTIONAL_ID)
    guarded.allow(token_topic(name), READ, WRITE, DESCRIBE)
    return name


@pytest.mark.parametrize(
    ("missing", "told"),
    [(DESCRIBE_CONFIGS, "DescribeConfigs"), (READ, "Read"), (WRITE, "Write"), (DELETE, "Delete"), (CREATE, "Create")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def the_right_that_a_checkpoint_log_lacks_is_named(
    guarded: Guarded, output: str, tmp_path: Path, missing: AclOperation, told: str
) -> None:
    log = f"{output}-log"
    if missing is not CREATE:
        guarded.create_topic(log, retention_ms="-1", retention_bytes="-1")
    guarded.allow(log, *(right for right in (DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE, DELETE) if right is not missing))
    with pytest.raises(
        ConfigurationError, match=rf"topic {log} \(the checkpoint log\): .*Grant the user {told} \("
    ) as refused:
        copy(guarded, output, log_in(guarded, log, tmp_path))
    assert f"kafka-acls.sh --add --topic {log} --operation {told} " in str(refused.value)


@pytest.mark.parametrize(
    ("lost", "told"), [(READ, "read it: .* Grant the user Read"), (WRITE, "write to it: .* the user Write")]
)
def a_right_on_the_log_that_is_taken_back_ends_the_job_by_name(
    guarded: Guarded, output: str, tmp_path: Path, lost: AclOperation, told: str
) -> None:
    log = f"{output}-log"
    guarded.allow(log, DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE, DELETE, CREATE)
    copy(guarded, output, log_in(guarded, log, tmp_path))
    guarded.forbid(log, lost)
    with pytest.raises(ConfigurationError, match=rf"topic {log} \(the checkpoint log\): could not {told}"):
        copy(guarded, output, log_in(guarded, log, tmp_path))


@pytest.mark.parametrize("guarantee", [DeliveryGuarantee.EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE])
@pytest.mark.parametrize("of", ["the topic", "its tokens", "a topic for each record"])
def a_topic_that_the_sink_may_not_write_ends_the_job_by_name(
    guarded: Guarded, output: str, tmp_path: Path, of: str, guarantee: DeliveryGuarantee
) -> None:
    topic = token_topic(output) if of == "its tokens" else output
    guarded.forbid(topic, WRITE)
    guarded.allow(topic, DESCRIBE)
    settings = {"execution.checkpointing.dir": str(tmp_path)}
    chosen: Any = output if of != "a topic for each record" else lambda value: output
    if of == "its tokens" and guarantee is DeliveryGuarantee.AT_LEAST_ONCE:
        copy(guarded, chosen, settings, guarantee, name=output)  # it has none
        return
    with pytest.raises(ConfigurationError, match=rf"(?s)topic {topic}.*(Write is missing|Topic authorization failed)"):
        copy(guarded, chosen, settings, guarantee, name=output)


def the_transactional_ids_that_the_sink_may_not_use_are_named(guarded: Guarded, tmp_path: Path) -> None:
    name = f"no-ids-{next(_numbers)}"
    guarded.create_topic(name)
    guarded.create_topic(token_topic(name), cleanup_policy="compact")
    guarded.allow(name, WRITE)
    guarded.allow(token_topic(name), READ, WRITE)
    with pytest.raises(ConfigurationError, match=rf"transactional id prefix '{name}'.*TransactionalIdAuthorizationFailed"):
        copy(guarded, name, {"execution.checkpointing.dir": str(tmp_path)})


@pytest.mark.parametrize(("missing", "told"), [(READ, "Read"), (WRITE, "Write")])
def the_right_that_a_changelog_lacks_is_named(
    guarded: Guarded, output: str, tmp_path: Path, missing: AclOperation, told: str
) -> None:
    changelog = changelog_topic(output, "sum")
    guarded.create_topic(changelog, 8, cleanup_policy="compact")
    guarded.allow(changelog, *(right for right in (DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE) if right is not missing))
    guarded.allow(f"{output}-changelog", WRITE, DESCRIBE, kind=ResourceType.TRANSACTIONAL_ID)
    settings = {"execution.checkpointing.dir": str(tmp_path), "state.backend.type": "rocksdb"}
    settings |= {"state.changelog.enabled": "true", "state.changelog.storage": "kafka"}
    settings |= {f"state.changelog.kafka.{key}": value for key, value in guarded.login.items()}
    with pytest.raises(ConfigurationError, match=rf"{changelog}: {told} is missing"):
        copy(guarded, output, settings)
    guarded.allow(changelog, missing)
    copy(guarded, output, settings)
    assert sorted(map(int, committed_values(guarded.bootstrap_servers, output))) == list(range(20))


def a_group_whose_offsets_may_not_be_read_is_named(guarded: Guarded, output: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"refuses the request for group the-readers: .*Group authorization failed"):
        copy(guarded, output, {"execution.checkpointing.dir": str(tmp_path)}, group="the-readers", start="committed")


def a_group_whose_offsets_may_not_be_committed_is_warned_of(
    guarded: Guarded, output: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy(guarded, output, {"execution.checkpointing.dir": str(tmp_path)}, group="the-readers")
    assert sorted(map(int, committed_values(guarded.bootstrap_servers, output))) == list(range(20))
    assert re.search("offsets of group the-readers not committed: .*Group authorization failed", caplog.text)


@pytest.mark.parametrize(
    ("of", "goes_on"),
    [("the source", False), ("the sink", True), ("the checkpoint log", True)],
)
def a_password_that_the_brokers_refuse_ends_the_job_by_name(
    guarded: Guarded, output: str, tmp_path: Path, of: str, goes_on: bool
) -> None:
    log = f"{output}-log"
    guarded.allow(log, DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE, DELETE, CREATE)
    if goes_on:
        copy(guarded, output, log_in(guarded, log, tmp_path))
    wrong = {part: "changed" if part == of else "secret" for part in ("the source", "the sink", "the checkpoint log")}
    settings = log_in(guarded, log, tmp_path, wrong["the checkpoint log"])
    with pytest.raises(ConfigurationError, match=r"(?s)refuses? the login: .*Authentication failed.*Check the"):
        copy(guarded, output, settings, passwords=(wrong["the source"], wrong["the sink"]))


def a_login_that_one_broker_refuses_and_another_takes_is_not_refused(guarded: Guarded) -> None:
    refusing, taking = f"127.0.0.1:{guarded.others}", f"127.0.0.1:{guarded.limited}"
    assert "Authentication failed" in refused_login({**guarded.login, "bootstrap.servers": refusing})
    for servers in (f"{refusing},{taking}", f"{taking},{refusing}", taking):
        assert refused_login({**guarded.login, "bootstrap.servers": servers}) == ""
