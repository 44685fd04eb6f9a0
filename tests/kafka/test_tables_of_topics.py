"""Tables of compacted topics, and topics of tables, on a real broker: ends and restarts lose nothing and repeat nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.common import Configuration
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, ProducerRecord
from holdfast.errors import UserCodeError
from holdfast.table import StreamsBuilder
from holdfast.testing import InProcessEnvironment
from kafka_fixtures import read_all

ROOT = Path(__file__).resolve().parents[2]
COMPACTED = {"cleanup_policy": "compact"}

pytestmark = pytest.mark.kafka

Record = tuple[str | None, str | None]


def produce(servers: str, topic: str, records: list[Record]) -> None:
    """Write records by their keys."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "enable.idempotence": True})
    for key, value in records:
        producer.produce(topic, value, key)
    producer.flush()


def written(servers: str, topic: str) -> dict[str, list[Any]]:
    """The values of each key, in the order of the topic; None is a tombstone."""
    found = defaultdict(list)
    for message in read_all(servers, topic):
        found[message.key().decode()].append(None if message.value() is None else json.loads(message.value()))
    return found


@contextmanager
def running(tmp_path: Path, build: Callable[[Any], Any], parallelism: int = 2) -> Iterator[Any]:
    """A job in this process that resumes from the checkpoint of the one before; it is cancelled in the end."""
    settings = Configuration()
    settings.set_string("execution.checkpointing.dir", tmp_path.as_uri())
    env = InProcessEnvironment(settings).set_parallelism(parallelism)
    build(env)
    client = env.execute_async("tables")
    try:
        yield client
    finally:
        client.cancel().result()


def wait_for(servers: str, topic: str, wanted: dict[str, list[Any]]) -> None:
    deadline = time.monotonic() + 600
    while (found := written(servers, topic)) != wanted:
        assert time.monotonic() < deadline, (found, wanted)
        time.sleep(0.1)


def changes(records: list[Record]) -> dict[str, list[Any]]:
    """What a table of these records writes for each key: each value, and a tombstone for each deletion of a row."""
    told: dict[str, list[Any]] = defaultdict(list)
    for key, value in records:
        if value is not None or (told[str(key)] and told[str(key)][-1] is not None):
            told[str(key)].append(None if value is None else json.loads(value))
    return {key: values for key, values in told.items() if values}


def test_a_table_of_a_compacted_topic_is_written_with_its_tombstones_across_restarts(
    kafka: Any, new_topic: Any, tmp_path: Path
) -> None:
    servers, source, target = kafka.bootstrap_servers, new_topic(3, **COMPACTED), new_topic(2, **COMPACTED)

    def build(env: Any) -> None:
        builder = StreamsBuilder(env, {"bootstrap.servers": servers, "application.id": target})
        builder.table(source, value_deserializer=json.loads).to_stream().to(target, value_serializer=json.dumps)

    draw = random.Random(5)
    records: list[Record] = []
    for parallelism in (2, 3):
        more = [(draw.choice("abcdefgh"), draw.choice([None, "1", "2", "3"])) for _ in range(60)]
        produce(servers, source, more)
        records += more
        with running(tmp_path, build, parallelism):
            wait_for(servers, target, changes(records))


def test_a_stream_is_joined_with_the_whole_table_of_a_topic_by_any_key_across_restarts(
    kafka: Any, new_topic: Any, tmp_path: Path
) -> None:
    servers, payments, shops, target = kafka.bootstrap_servers, new_topic(3), new_topic(2, **COMPACTED), new_topic(2)

    def build(env: Any) -> None:
        builder = StreamsBuilder(env, {"bootstrap.servers": servers, "application.id": target})
        table = builder.global_table(shops)
        paid = builder.stream(payments, value_deserializer=json.loads)
        joined = paid.left_join(table, lambda user, payment: payment["shop"], lambda payment, shop: [payment["n"], shop])
        joined.to(target, value_serializer=json.dumps)

    produce(servers, shops, [("s1", "Lima"), ("s2", "Oslo"), ("s3", "Bonn")])
    wanted: dict[str, list[Any]] = defaultdict(list)
    towns = {"s1": "Lima", "s2": "Oslo", "s3": "Bonn"}
    for run, parallelism in enumerate((2, 3)):
        for n in range(12):
            user, shop = f"u{n % 5}", f"s{1 + n % 4}"
            produce(servers, payments, [(user, json.dumps({"n": 100 * run + n, "shop": shop}))])
            wanted[user].append([100 * run + n, towns.get(shop)])
        with running(tmp_path, build, parallelism):
            wait_for(servers, target, wanted)
        produce(servers, shops, [("s1", None), ("s2", "Rome"), ("s4", "Kyiv")])
        towns = {"s2": "Rome", "s3": "Bonn", "s4": "Kyiv"}


def test_a_record_without_a_key_is_no_row_of_a_table(kafka: Any, new_topic: Any, tmp_path: Path) -> None:
    servers, source = kafka.bootstrap_servers, new_topic()
    produce(servers, source, [("a", "1"), (None, "2")])
    env = InProcessEnvironment()
    StreamsBuilder(env, {"bootstrap.servers": servers, "application.id": source}).table(source).to_changes().print()
    with pytest.raises(UserCodeError, match="a record without a key changes no row of a table") as caught:
        env.execute("rows")
    assert caught.value.record == f"topic {source}, partition 0, offset 1"


class ToPartition(KafkaRecordSerializationSchema):
    """Writes numbers: odd ones to the last partition, even ones as tombstones to the first; 0 is left out."""

    def serialize(self, element: Any, context: Any, timestamp: int | None) -> ProducerRecord | None:
        topic, number = element
        partitions = context.get_partitions_for_topic(topic)
        if number == 0:
            return None
        if number % 2:
            return ProducerRecord(topic, "odd", str(number), {"n": "1"}, 1000 + number, partitions[-1])
        return ProducerRecord(topic, "even", None, [("n", "1"), ("n", b"2")], partition=partitions[0])


def test_a_schema_of_records_sets_all_parts_of_a_record_exactly_once(kafka: Any, new_topic: Any, tmp_path: Path) -> None:
    servers, target = kafka.bootstrap_servers, new_topic(3)
    settings = Configuration()
    settings.set_string("execution.checkpointing.dir", tmp_path.as_uri())
    env = InProcessEnvironment(settings)
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(ToPartition())
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(target)
        .build()
    )
    env.from_collection([(target, n) for n in range(5)]).sink_to(sink)
    env.execute("records")
    told = [(m.partition(), m.key(), m.value(), m.headers()) for m in read_all(servers, target)]
    assert told == [
        *[(0, b"even", None, [("n", b"1"), ("n", b"2")])] * 2,
        (2, b"odd", b"1", [("n", b"1")]),
        (2, b"odd", b"3", [("n", b"1")]),
    ]
    assert [m.timestamp()[1] for m in read_all(servers, target)][2:] == [1001, 1003]


def balances(records: list[Record]) -> dict[str, list[int]]:
    """The newest balance of each city, with the number of its accounts."""
    accounts: dict[Any, Any] = {}
    for key, value in records:
        accounts[key] = None if value is None else json.loads(value)
    cities: dict[str, list[int]] = {}
    for row in accounts.values():
        if row is not None:
            count, total = cities.get(row["city"], [0, 0])
            cities[row["city"]] = [count + 1, total + row["balance"]]
    return cities


@pytest.mark.spark
@pytest.mark.fault
def test_the_balances_of_the_example_are_right_although_its_driver_is_killed(kafka: Any, new_topic: Any) -> None:
    servers, accounts, target = kafka.bootstrap_servers, new_topic(2, **COMPACTED), new_topic(2, **COMPACTED)
    draw = random.Random(11)
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="tables-", ignore_cleanup_errors=True) as directory:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "TMPDIR": directory,
            "KAFKA": servers,
            "ACCOUNTS_TOPIC": accounts,
            "BALANCES_TOPIC": target,
            "CHECKPOINTS": Path(directory, "checkpoints").as_uri(),
        }
        log = Path(directory, "log")
        program = [sys.executable, str(ROOT / "examples" / "account_balances.py")]

        def wait(driver: subprocess.Popen[bytes]) -> None:
            deadline = time.monotonic() + 600
            while True:
                found = written(servers, target)
                if {city: told[-1] for city, told in found.items() if told[-1] is not None} == balances(records):
                    return
                assert driver.poll() is None, log.read_text()
                assert time.monotonic() < deadline, (found, balances(records), log.read_text())
                time.sleep(0.2)

        for _ in range(3):
            row = [(f"account-{draw.randrange(20)}", draw.choice(["Pune", "Delhi", "Goa", None])) for _ in range(200)]
            more = [(k, None if c is None else json.dumps({"city": c, "balance": draw.randrange(9)})) for k, c in row]
            records += more
            produce(servers, accounts, more[:100])
            with log.open("ab") as output:
                driver = subprocess.Popen(program, cwd=directory, env=environment, stdout=output, stderr=output)
            try:
                produce(servers, accounts, more[100:])
                wait(driver)
            finally:
                driver.kill()
                driver.wait()
        gone = [(f"account-{n}", None) for n in range(20)]
        records += gone
        produce(servers, accounts, gone)
        with log.open("ab") as output:
            driver = subprocess.Popen(program, cwd=directory, env=environment, stdout=output, stderr=output)
        try:
            wait(driver)  # every city is deleted
        finally:
            driver.kill()
            driver.wait()
