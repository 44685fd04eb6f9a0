"""Debezium's topics on a real broker, read to a table and written as Debezium's events; the program is killed."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.common import Configuration, RestartStrategies, Row, RowKind, Types, WatermarkStrategy
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from holdfast.datastream.formats.json import DebeziumJsonRowDeserializationSchema, DebeziumJsonRowSerializationSchema
from holdfast.errors import UserCodeError
from holdfast.table import KStream
from holdfast.testing import InProcessEnvironment
from kafka_fixtures import produce, read_all

pytestmark = pytest.mark.kafka

ORDERS = Types.ROW_NAMED(["id", "city", "amount"], [Types.LONG(), Types.STRING(), Types.BIG_DEC()])
CITIES = Types.ROW_NAMED(["city", "orders", "amount"], [Types.STRING(), Types.LONG(), Types.BIG_DEC()])
REMOVED = (RowKind.UPDATE_BEFORE, RowKind.DELETE)


# ---- the program ----


def build(env: Any, servers: str, orders: str, copy: str, cities: str) -> None:
    """Copy the changes of orders, and count the orders of each city, with their amount."""
    schema = DebeziumJsonRowDeserializationSchema(ORDERS, primary_key=["id"])
    source = KafkaSource(bootstrap_servers=servers, topics=orders, value_only_deserializer=schema)
    changes = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders")
    changes.sink_to(sink(servers, copy, ORDERS, lambda row: str(row.id)))
    rows = changes.filter(lambda row: row.get_row_kind() is not RowKind.UPDATE_BEFORE)
    table = KStream.of(
        rows, lambda row: row.id, lambda row: None if row.get_row_kind() is RowKind.DELETE else row
    ).to_table()
    totals = table.group_by(lambda _, row: (row.city, row.amount)).aggregate(
        lambda: (0, Decimal(0)),
        lambda city, amount, total: (total[0] + 1, total[1] + amount),
        lambda city, amount, total: (total[0] - 1, total[1] - amount) if total[0] > 1 else None,
    )
    flat = totals.to_changelog().map(
        lambda row: Row.of_kind(row.get_row_kind(), city=row[0], orders=row[1][0], amount=row[1][1])
    )
    flat.sink_to(sink(servers, cities, CITIES, lambda row: row.city))


def sink(servers: str, topic: str, declared: Any, key: Any) -> KafkaSink[Any]:
    record = KafkaRecordSerializationSchema(
        topic=topic, key_serialization_schema=key, value_serialization_schema=DebeziumJsonRowSerializationSchema(declared)
    )
    made = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(record)
    return made.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix(topic).build()


def run(parallelism: str, checkpoints: str, *topics: str) -> None:
    """Run the program in this process until it is killed."""
    settings = Configuration()
    settings.set_string("execution.checkpointing.dir", checkpoints)
    env = InProcessEnvironment(settings).set_parallelism(int(parallelism))
    build(env, *topics)
    env.execute("debezium")


# ---- events ----


def described() -> dict[str, Any]:
    """The schema in the events of the table."""
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    columns = [{"field": "id", "type": "int64"}, {"field": "city", "type": "string"}, {"field": "amount", **decimal}]
    return {
        "type": "struct",
        "fields": [{"field": part, "type": "struct", "fields": columns} for part in ("before", "after")],
    }


def value(op: str, before: Any, after: Any, in_schema: bool) -> bytes:
    """An event with its schema, where decimals are bytes, or without one, where they are text."""

    def fields(row: Any) -> Any:
        if row is None:
            return None
        amount = row["amount"]
        if in_schema:
            amount = base64.b64encode(int(amount * 100).to_bytes(4, "big", signed=True)).decode()
        return {**row, "amount": amount if in_schema else str(amount)}

    event = {"before": fields(before), "after": fields(after), "source": {"table": "orders"}, "op": op, "ts_ms": 1}
    event["transaction"] = {"id": "5:7", "total_order": 1, "data_collection_order": 1}
    return json.dumps({"schema": described(), "payload": event} if in_schema else event).encode()


class Table:
    """A table whose changes are written to a topic as Debezium does, with what a reader must see of them."""

    def __init__(self, servers: str, topic: str, seed: int) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.changes: dict[int, list[tuple[bool, dict[str, Any]]]] = defaultdict(list)
        """Of each key, the rows that were removed and added."""
        self._draw = random.Random(seed)
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "enable.idempotence": True})

    def change(self, times: int, snapshot: bool = False) -> None:
        for _ in range(times):
            key = self._draw.randrange(30)
            self._changed(key, "r" if snapshot else "c")
        self._producer.flush()

    def _changed(self, key: int, insert: str) -> None:
        old = self.rows.get(key)
        new = None
        if old is None or self._draw.random() < 0.7:
            amount = Decimal(self._draw.randrange(-5000, 5000)) / 100
            new = {"id": key, "city": self._draw.choice(["Pune", "Bonn", "Lima", "Goa"]), "amount": amount}
        op = insert if old is None else "d" if new is None else "u"
        name = json.dumps({"id": key})
        self._producer.produce(self._topic, value(op, old, new, self._draw.random() < 0.5), name)
        if new is None:
            self._producer.produce(self._topic, None, name)
            del self.rows[key]
        else:
            self.rows[key] = new
        self.changes[key] += [(added, row) for added, row in ((False, old), (True, new)) if row is not None]

    def cities(self) -> dict[str, tuple[int, Decimal]]:
        found: dict[str, tuple[int, Decimal]] = {}
        for row in self.rows.values():
            count, amount = found.get(row["city"], (0, Decimal(0)))
            found[row["city"]] = (count + 1, amount + row["amount"])
        return found


def changes_in(servers: str, topic: str, declared: Any, key: str) -> dict[Any, list[tuple[bool, dict[str, Any]]]]:
    """Of each key, the rows that a topic's events remove and add."""
    read, found = DebeziumJsonRowDeserializationSchema(declared), defaultdict(list)
    for message in read_all(servers, topic):
        for row in read.deserialize_flat(message.value()):
            assert message.key().decode() == str(row[key])
            found[row[key]].append((row.get_row_kind() not in REMOVED, row.as_dict()))
    return found


def rows_of(changes: dict[Any, list[tuple[bool, Any]]]) -> dict[Any, Any]:
    """The rows that changes leave; a row is removed as it was added."""
    rows: dict[Any, Any] = {}
    for key, told in changes.items():
        for added, row in told:
            if added:
                assert key not in rows
                rows[key] = row
            else:
                assert rows.pop(key) == row
    return rows


# ---- tests ----


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Any]:
    """Starts programs, of which none outlives the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
        with (tmp_path / "log").open("ab") as log:
            program = [sys.executable, __file__, *map(str, arguments)]
            running.append(subprocess.Popen(program, env=environment, stdout=log, stderr=log))
        return running[-1]

    yield start
    for each in running:
        each.kill()
        each.wait()


@pytest.mark.fault
def the_changes_of_a_table_are_counted_and_written_exactly_once_although_the_program_is_killed(
    kafka: Any, new_topic: Any, tmp_path: Path, programs: Any
) -> None:
    servers = kafka.bootstrap_servers
    orders, copy, cities = new_topic(3, cleanup_policy="compact"), new_topic(2), new_topic(2)
    table = Table(servers, orders, 7)

    def wait(program: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 600
        while changes_in(servers, copy, ORDERS, "id") != table.changes or totals() != table.cities():
            assert program.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (changes_in(servers, copy, ORDERS, "id"), table.changes, totals())
            time.sleep(0.1)

    def totals() -> dict[str, tuple[int, Decimal]]:
        rows = rows_of(changes_in(servers, cities, CITIES, "city"))
        return {city: (row["orders"], row["amount"]) for city, row in rows.items()}

    checkpoints = (tmp_path / "checkpoints").as_uri()
    table.change(60, snapshot=True)
    program = programs(2, checkpoints, servers, orders, copy, cities)
    table.change(200)
    wait(program)
    table.change(200)  # some of them are read and not committed
    program.kill()
    program.wait()
    table.change(100)
    wait(programs(3, checkpoints, servers, orders, copy, cities))


def rows_in(env: Any, servers: str, *topics: str, **arguments: Any) -> list[Any]:
    schema = DebeziumJsonRowDeserializationSchema(ORDERS, "upsert", primary_key=["id"], **arguments)
    builder = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(*topics)
    source = builder.set_bounded(KafkaOffsetsInitializer.latest()).set_value_only_deserializer(schema).build()
    with env.from_source(source, WatermarkStrategy.no_watermarks(), "orders").execute_and_collect() as results:
        return list(results)


def the_table_of_a_topic_is_the_same_when_the_broker_has_compacted_it(kafka: Any, new_topic: Any) -> None:
    servers = kafka.bootstrap_servers
    settings = {"segment_ms": "200", "min_cleanable_dirty_ratio": "0.01", "max_compaction_lag_ms": "300"}
    topic = new_topic(cleanup_policy="compact", delete_retention_ms="0", **settings)
    table = Table(servers, topic, 8)
    table.change(300)
    deadline = time.monotonic() + 600
    while len(read_all(servers, topic)) > 150:
        assert time.monotonic() < deadline, "the broker has not compacted the topic"
        table.change(1)
    rows: dict[int, Any] = {}
    for row in rows_in(InProcessEnvironment(), servers, topic):
        if row.get_row_kind() is RowKind.DELETE:
            rows.pop(row.id, None)
        else:
            rows[row.id] = row.as_dict()
    assert rows == table.rows


OTHERS = [
    (
        {"op": "t", "source": {"table": "orders"}, "ts_ms": 1},
        "a TRUNCATE of the table, which has no rows: read with on_truncate",
    ),
    (
        {"status": "BEGIN", "id": "5:7", "ts_ms": 1, "event_count": None},
        "the BEGIN of a transaction: read the topics of tables",
    ),
    ({"databaseName": "shop", "ddl": "DROP TABLE t", "tableChanges": []}, "a schema change: read the topics of tables"),
]


@pytest.mark.parametrize(("event", "told"), OTHERS, ids=["truncate", "transaction", "schema change"])
def an_event_without_rows_is_told_with_its_place_or_left_out(kafka: Any, new_topic: Any, event: Any, told: str) -> None:
    servers, orders, other = kafka.bootstrap_servers, new_topic(), new_topic()
    row = {"id": 1, "city": "Pune", "amount": Decimal(2)}
    produce(servers, orders, [value("c", None, row, True)])
    produce(servers, other, [None, json.dumps(event).encode(), value("d", row, None, False)])
    env = InProcessEnvironment().set_restart_strategy(RestartStrategies.no_restart())
    with pytest.raises(UserCodeError, match=rf"(?s)it is {told}.*topic {other}, partition 0, offset 1"):
        rows_in(env, servers, orders, other)
    leaves_out: Any = {"on_truncate": "skip"} if "op" in event else {"ignore_parse_errors": True}
    found = rows_in(InProcessEnvironment(), servers, orders, other, **leaves_out)
    assert sorted(each.get_row_kind().name for each in found) == ["DELETE", "INSERT"]


if __name__ == "__main__":
    run(*sys.argv[1:])
