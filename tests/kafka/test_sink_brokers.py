"""The sink while brokers come and go, and its weaker guarantees."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from awaiting import until
from holdfast.common import Configuration, SimpleStringSchema, WatermarkStrategy
from holdfast.connectors.base import JobInfo, WriterContext
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.cluster import silence_of
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from holdfast.errors import HoldfastError, UserCodeError
from holdfast.testing import InProcessEnvironment
from holdfast.testing.kafka import KafkaBroker, KafkaCluster
from kafka_fixtures import committed_values, read_all
from kafka_sink_helpers import Driver, both

pytestmark = pytest.mark.kafka


def write_all(sink: KafkaSink, values: list[Any], timestamps: list[int] | None = None) -> None:
    writer = sink.create_writer(WriterContext(JobInfo("j", "j", 1, None), "sink", 0, 1))
    writer.begin_epoch(1, "a", 0)
    writer.write(values, timestamps)
    assert writer.prepare_commit() == []
    writer.close()


def sink_to(servers: str, topic: str) -> KafkaSink:
    return KafkaSink(
        properties={"bootstrap.servers": servers},
        record_serializer=RecordSerializer(topic),
        delivery_guarantee=DeliveryGuarantee.AT_LEAST_ONCE,
    )


@pytest.mark.parametrize("guarantee", [DeliveryGuarantee.NONE, DeliveryGuarantee.AT_LEAST_ONCE])
def test_weaker_guarantees_write_at_once(kafka: Any, new_topic: Any, guarantee: DeliveryGuarantee) -> None:
    topic = new_topic()
    sink = KafkaSink(
        properties={"bootstrap.servers": kafka.bootstrap_servers},
        record_serializer=RecordSerializer(topic, str, lambda v: f"k{v}", lambda v: {"n": str(v)}),
        delivery_guarantee=guarantee,
    )
    assert sink.create_committer(JobInfo("j", "j", 1, None), "sink") is None
    write_all(sink, [1, 2, 3], [1000, 2000, -(2**63)])
    found = read_all(kafka.bootstrap_servers, topic)
    assert [(m.key(), m.value(), m.headers()) for m in found] == [
        (f"k{i}".encode(), str(i).encode(), [("n", str(i).encode())]) for i in (1, 2, 3)
    ]
    assert [m.timestamp()[1] for m in found[:2]] == [1000, 2000]
    assert found[2].timestamp()[1] > 1_600_000_000_000  # no event time: the clock's


def test_records_that_cannot_be_delivered_fail_the_epoch(kafka: Any, new_topic: Any) -> None:
    topic = new_topic(max_message_bytes="2000")
    sink = KafkaSink(
        properties={"bootstrap.servers": kafka.bootstrap_servers},
        record_serializer=RecordSerializer(topic),
        delivery_guarantee=DeliveryGuarantee.AT_LEAST_ONCE,
    )
    with pytest.raises(HoldfastError, match=rf"topic {topic}, key None, value b'xxx.*too large"):
        write_all(sink, ["fine", "x" * 10_000])


@pytest.mark.parametrize("queue", [10, 100_000])
def a_topic_that_is_deleted_is_named_also_while_the_clients_queue_is_full(kafka: Any, new_topic: Any, queue: int) -> None:
    topic = new_topic()
    properties = {"bootstrap.servers": kafka.bootstrap_servers, "queue.buffering.max.messages": queue}
    sink = KafkaSink(
        properties=properties, record_serializer=RecordSerializer(topic), delivery_guarantee=DeliveryGuarantee.AT_LEAST_ONCE
    )
    writer = sink.create_writer(WriterContext(JobInfo("j", "j", 1, None), "sink", 0, 1))
    writer.begin_epoch(1, "a", 0)
    writer.write(["x"], None)
    writer.prepare_commit()
    kafka.delete_topic(topic)
    writer.begin_epoch(2, "a", 1)
    gone = f"there is no topic {topic} at {kafka.bootstrap_servers}"
    with pytest.raises(HoldfastError, match=gone) as raised:  # noqa: PT012
        writer.write(["x"] * 100, None)
        writer.prepare_commit()
    assert not isinstance(raised.value, UserCodeError), "no record is to blame"
    with pytest.raises(HoldfastError, match=gone):
        writer.close()


def the_deleted_topic_of_a_transaction_is_named_and_not_that_of_its_tokens(
    kafka: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = new_topic(partitions=3)
    driver = Driver(kafka.bootstrap_servers, topic, tmp_path)
    driver.sink.validate()
    driver.commit(1, driver.prepare(1, ["a"]))
    kafka.delete_topic(topic)
    with pytest.raises(HoldfastError, match=f"there is no topic {topic} at {kafka.bootstrap_servers}"):
        driver.prepare(2, ["b"])
    driver.close()


def created_again(kafka: Any, topic: str) -> str:
    """Create a topic of three partitions again with one; returns what is told of it."""
    kafka.delete_topic(topic)
    until(lambda: topic not in kafka.admin().list_topics().topics)
    kafka.create_topic(topic)
    return f"topic {topic} at {kafka.bootstrap_servers} was created again with fewer partitions: it has 1, and no partition"


def a_topic_that_is_created_again_with_fewer_partitions_is_named_and_written_by_the_next_attempt(
    kafka: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = new_topic(partitions=3)
    everywhere = {"sticky.partitioning.linger.ms": 0}  # else all records may go to the partition that is left
    driver = Driver(kafka.bootstrap_servers, topic, tmp_path, **{"transaction.timeout.ms": 60_000}, **everywhere)
    driver.sink.validate()
    driver.commit(1, driver.prepare(1, ["a"] * 50))
    told = created_again(kafka, topic)
    with pytest.raises(HoldfastError, match=told) as raised:
        driver.prepare(2, ["b"] * 50)
    assert not isinstance(raised.value, UserCodeError), "no record is to blame"
    driver.commit(2, driver.prepare(2, ["c"], driver.more_writers()))
    assert sorted(committed_values(driver.servers, topic)) == both("c")
    driver.close()


def a_record_is_not_blamed_for_a_partition_that_it_has_not_chosen(kafka: Any, new_topic: Any) -> None:
    topic = new_topic(partitions=3)
    properties = {"bootstrap.servers": kafka.bootstrap_servers, "sticky.partitioning.linger.ms": 0}
    sink = KafkaSink(
        properties=properties, record_serializer=RecordSerializer(topic), delivery_guarantee=DeliveryGuarantee.AT_LEAST_ONCE
    )
    writer = sink.create_writer(WriterContext(JobInfo("j", "j", 1, None), "sink", 0, 1))
    writer.begin_epoch(1, "a", 0)
    writer.write(["x"] * 100, None)
    writer.prepare_commit()
    told = created_again(kafka, topic)
    with pytest.raises(HoldfastError, match=told) as raised:  # noqa: PT012
        writer.write(["x"] * 100, None)
        writer.prepare_commit()
    assert not isinstance(raised.value, UserCodeError)
    with pytest.raises(HoldfastError, match=told):
        writer.close()
    assert "it does not exist (any more)" in silence_of(properties, topic, 2)


@pytest.mark.fault
def test_a_broker_restarted_between_prepare_and_commit_keeps_the_prepared_output(tmp_path: Path) -> None:
    with KafkaBroker() as kafka:
        kafka.create_topic("t", 2)
        driver = Driver(kafka.bootstrap_servers, "t", tmp_path)
        driver.sink.validate()
        prepared = driver.prepare(1, ["a"])
        kafka.kill()
        back = threading.Thread(target=kafka.start)
        back.start()
        driver.commit(1, prepared)  # waits for it
        back.join()
        assert sorted(committed_values(driver.servers, "t")) == ["a/0", "a/1"]
        driver.commit(2, driver.prepare(2, ["b"]))
        assert sorted(committed_values(driver.servers, "t")) == ["a/0", "a/1", "b/0", "b/1"]
        driver.close()


def copying(servers: str, directory: Path) -> InProcessEnvironment:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", f"file://{directory}")
    env = InProcessEnvironment(configuration)
    source: Any = KafkaSource(
        bootstrap_servers=servers,
        topics="in",
        value_only_deserializer=SimpleStringSchema(),
        starting_offsets=KafkaOffsetsInitializer.earliest(),
    )
    sink: Any = KafkaSink(
        properties={"bootstrap.servers": servers},
        record_serializer=RecordSerializer("out"),
        delivery_guarantee=DeliveryGuarantee.EXACTLY_ONCE,
        transactional_id_prefix="copying",
    )
    env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in").sink_to(sink).uid("out")
    return env


@pytest.mark.fault
def a_job_that_goes_on_waits_for_its_brokers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with KafkaBroker() as kafka:
        kafka.create_topic("in", 1)
        kafka.create_topic("out", 1)
        write_all(sink_to(kafka.bootstrap_servers, "in"), ["a"])
        first = copying(kafka.bootstrap_servers, tmp_path).execute_async("copying")
        until(lambda: committed_values(kafka.bootstrap_servers, "out") == ["a"])
        first.cancel().result()
        write_all(sink_to(kafka.bootstrap_servers, "in"), ["b"])
        kafka.kill()
        second = copying(kafka.bootstrap_servers, tmp_path).execute_async("copying")
        assert "goes on from its checkpoint, and waits for a service: Kafka sink: no answer" in caplog.text
        until(lambda: "cannot end transactions" in caplog.text)
        kafka.start()
        until(lambda: committed_values(kafka.bootstrap_servers, "out") == ["a", "b"])
        second.cancel().result()


@pytest.mark.fault
@pytest.mark.timeout(1800)
def test_brokers_of_a_cluster_die_and_return_while_epochs_are_written_and_committed(tmp_path: Path) -> None:
    with KafkaCluster(3) as cluster:
        cluster.create_topic("t", 3)
        generation, driver = 1, Driver(cluster.bootstrap_servers, "t", tmp_path)
        driver.sink.validate()
        driver.committer.recover([])
        epoch, completed, reruns = 1, 0, 0
        while epoch <= 24:
            victim = cluster.brokers[epoch // 8 % 3]
            if epoch % 8 == 3:
                victim.kill() if epoch < 16 else victim.stop()
            if epoch % 8 == 7:
                victim.start()
            try:
                driver.completed = completed
                prepared = driver.prepare(epoch, [f"{epoch}"])
            except HoldfastError:  # the attempt failed: run the epoch again, as the runtime would
                reruns += 1
                for writer in driver.writers:
                    writer.abort_epoch()
                continue
            try:
                driver.commit(epoch, prepared)
            except HoldfastError:  # the job restarts from its checkpoint
                driver.close()
                generation += 1
                driver = Driver(cluster.bootstrap_servers, "t", tmp_path, generation)
                driver.committer.recover(prepared)
            completed = epoch
            epoch += 1
        assert reruns < 20
        expected = sorted(f"{e}/{s}" for e in range(1, 25) for s in range(2))
        assert sorted(committed_values(driver.servers, "t")) == expected
        driver.close()
