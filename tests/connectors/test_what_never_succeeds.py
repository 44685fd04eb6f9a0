"""An error that no attempt cures ends the job and names the record, topic or statement; any other one is tried again.

By the codes of the client libraries. With the default restart strategy, a record's error ends the job when the same record
fails a second time (docs/operations.md).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from connector_harness import attempts, job_info
from postgres_server import PostgresServer

from awaiting import until
from holdfast.common import Row, Types
from holdfast.common.kafka_refusals import REFUSED
from holdfast.connectors.base import WriterContext
from holdfast.connectors.jdbc_database import Database
from holdfast.connectors.kafka.changelogs.changelog_reader import KafkaChangelogReader
from holdfast.connectors.kafka.cluster import BrokerUnavailable, ClusterView
from holdfast.connectors.kafka.sink.producers import RecordProducer
from holdfast.connectors.kafka.sink.transactions import TransactionClient
from holdfast.connectors.kafka.source.reader import KafkaReader, _Partition
from holdfast.connectors.kafka.source.source_options import KafkaSourceOptions
from holdfast.connectors.redis.server import RedisServer
from holdfast.connectors.schema_registry import SchemaRegistry
from holdfast.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from holdfast.errors import ConfigurationError, HoldfastError, InputLost, ServiceUnavailable, UserCodeError
from kafka import errors as broker_errors

pytestmark = pytest.mark.usefixtures("no_broker")

NOWHERE = {"bootstrap.servers": "localhost:1", "log_level": 0}
CODES = {
    name: code
    for name in dir(KafkaError)
    if isinstance(code := getattr(KafkaError, name), int) and not name.startswith("__") and name != "NO_ERROR"
}
PERMISSIONS = """
    TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_EXPIRED DELEGATION_TOKEN_NOT_FOUND
    DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED SASL_AUTHENTICATION_FAILED
    UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE SECURITY_DISABLED _AUTHENTICATION
"""
SETTINGS = """
    INVALID_TRANSACTION_TIMEOUT INVALID_REQUIRED_ACKS INVALID_GROUP_ID INVALID_CONFIG POLICY_VIOLATION
    UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_FOR_MESSAGE_FORMAT _UNSUPPORTED_FEATURE
"""
REFUSALS = {*PERMISSIONS.split(), *SETTINGS.split()}
OF_A_RECORD = {"MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"}
OF_A_RECORD |= {"RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"}
DAMAGED = {"_BAD_MSG", "_BAD_COMPRESSION", "MSG_SIZE_TOO_LARGE"}
GONE = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"}
POSITIONS = {"_PARTITION_EOF", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION"}
"""What these mean depends on the partition's offsets: tests/kafka/test_source_lost_tail.py."""


def test_the_codes_of_refusals_are_these() -> None:
    assert {CODES[name] for name in REFUSALS} == REFUSED


@pytest.mark.parametrize("name", CODES)
def an_error_of_a_delivery_ends_the_job_if_it_lasts(name: str) -> None:
    producer = RecordProducer(NOWHERE, "KafkaSink (uid 'out')", "out")
    message = Message(topic="payments", partition=3, key=b"anna", value=b"value")
    producer._on_delivery(KafkaError(CODES[name]), message)
    with pytest.raises(HoldfastError) as raised:
        producer.check()
    error = raised.value
    assert "topic payments" in str(error)
    if name in OF_A_RECORD:
        assert isinstance(error, UserCodeError)
        assert "key b'anna', value b'value'" in error.record
    assert attempts(error) == (1 if name in REFUSALS else 2 if name in OF_A_RECORD else 20)


OF_THE_GROUP = {"GROUP_AUTHORIZATION_FAILED"}
"""What reads given partitions uses no group, and passes this over."""


@pytest.mark.parametrize("name", sorted(CODES.keys() - POSITIONS))
def an_error_of_a_read_ends_the_job_if_it_lasts(name: str) -> None:
    reader = KafkaReader(KafkaSourceOptions(NOWHERE, ("payments",)), "in")
    try:
        partition = reader._partitions["payments", 3] = _Partition()
        partition.wanted, partition.position, partition.fetched = True, 17, 17
        message = Message(topic="payments", partition=3, error=KafkaError(CODES[name]))
        if name not in (REFUSALS | DAMAGED | GONE) - OF_THE_GROUP:
            return reader._handle(message)  # the client goes on by itself, and says so in the log
        with pytest.raises(HoldfastError, match=r"uid in.*topic payments") as raised:
            reader._handle(message)
    finally:
        reader.close()
    if name in DAMAGED:
        assert isinstance(raised.value, UserCodeError)
        assert raised.value.record == "topic payments, partition 3, offset 17"
    elif name in GONE:
        assert isinstance(raised.value, InputLost)
        assert "partition 3 is gone; the records from offset 17 on" in str(raised.value)
    assert attempts(raised.value) == (2 if name in DAMAGED else 1)


@pytest.mark.parametrize("name", CODES)
def an_error_of_a_request_ends_the_job_if_it_lasts(name: str) -> None:
    view = ClusterView(NOWHERE, read_committed=True)
    error = view._translate(KafkaException(KafkaError(CODES[name])), "topic payments")
    assert "topic payments" in str(error)
    assert isinstance(error, ConfigurationError if name in REFUSALS else BrokerUnavailable)
    assert attempts(error) == (1 if name in REFUSALS else 20)


@pytest.mark.parametrize("name", sorted(CODES.keys() - {"_PARTITION_EOF"}))
def an_error_of_a_changelog_ends_the_job_if_it_lasts(name: str) -> None:
    class Reader(KafkaChangelogReader):
        def __init__(self) -> None:
            self._topic = "counts-changelog"

    class Failing:
        def consume(self, count: int, seconds: float) -> list[Any]:
            return [Message(topic="counts-changelog", partition=0, error=KafkaError(CODES[name]))]

    records = Reader()._records(Failing(), {0: 5}, {0})  # type: ignore[arg-type]
    if name in OF_THE_GROUP:
        assert next(records) == []
        return
    with pytest.raises(HoldfastError, match="the changelog topic counts-changelog") as raised:
        next(records)
    assert attempts(raised.value) == (1 if name in REFUSALS else 20)


def an_answer_about_a_transaction_ends_the_job_if_it_lasts() -> None:
    class Answer:
        def __init__(self, code: int) -> None:
            self.error_code = code

    for code in (code for code in CODES.values() if code > 0):
        if code in REFUSED:
            with pytest.raises(ConfigurationError, match=broker_errors.for_code(code).__name__):
                TransactionClient._refusal(Answer(code))
        else:
            assert TransactionClient._refusal(Answer(code)) == broker_errors.for_code(code).__name__


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 409, 422, 425, 429, 500, 502, 503, 504])
def an_answer_of_a_registry_ends_the_job_if_it_lasts(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    registry, asked = SchemaRegistry("http://registry:8081"), []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(status, json={"message": "no"})

    registry._client = httpx.Client(transport=httpx.MockTransport(answer))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    passing = status >= 500 or status in (408, 425, 429)
    with pytest.raises(ServiceUnavailable if passing else ConfigurationError, match=r"registry:8081.*payments") as raised:
        registry.register("payments", '"int"')
    assert len(asked) == (4 if passing else 1)
    assert attempts(raised.value) == (20 if passing else 1)


# ---- databases ----


def writer(path: Path, sql: str = "INSERT INTO totals VALUES (?)") -> Any:
    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(f"jdbc:sqlite:{path}").build()
    made = JdbcSink.sink(sql, Types.ROW([Types.LONG()]), options, JdbcExecutionOptions(max_retries=0))
    found = made.create_writer(WriterContext(job_info(), "totals", 0, 1))
    found.begin_epoch(1, "attempt", 0)
    return found


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "totals.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE totals (total INTEGER)")
        connection.commit()
    return path


def failure_of(made: Any) -> BaseException:
    made.write([Row(7)], None)
    with pytest.raises(HoldfastError, match="uid 'totals'") as raised:
        made.prepare_commit()
    return raised.value


def a_table_that_is_gone_ends_the_job_with_row_and_statement(database: Path) -> None:
    made = writer(database)
    made.write([Row(1)], None)
    made.prepare_commit()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE totals")
        connection.commit()
    error = failure_of(made)
    if hasattr(error.__cause__, "sqlite_errorcode"):
        assert "row: (7,)" in str(error)
        assert "statement: INSERT INTO totals" in str(error)
        assert attempts(error) == 2


def a_file_that_is_no_database_ends_the_job(database: Path) -> None:
    database.write_bytes(b"no database" * 1000)
    error = failure_of(writer(database))
    if hasattr(error.__cause__, "sqlite_errorcode"):
        assert "refuses the rows" in str(error)
        assert attempts(error) == 1


def a_database_that_is_locked_is_tried_again(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **given: connect(path, **{**given, "timeout": 0}))
    with closing(connect(database)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert attempts(failure_of(writer(database))) == 20


def the_states_of_postgres_tell_what_lasts() -> None:
    class Failure(Exception):
        def __init__(self, sqlstate: str | None) -> None:
            self.sqlstate = sqlstate

    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url("jdbc:postgresql://host/db").build()
    database = Database(options)
    lasting = {
        state: database.refuses(Failure(state)) for state in ("28P01", "28000", "3D000", "57P01", "53300", "08006", None)
    }
    assert [state for state, lasts in lasting.items() if lasts] == ["28P01", "28000", "3D000"]


def a_row_that_an_index_of_postgres_does_not_take_ends_the_job_and_is_named(server: PostgresServer) -> None:
    server.execute("DROP TABLE IF EXISTS totals", "CREATE TABLE totals (name text PRIMARY KEY)")
    options = JdbcConnectionOptions(f"jdbc:{server.url()}".replace("postgres@", ""), user_name="postgres")
    made = JdbcSink("INSERT INTO totals VALUES (?)", Types.ROW([Types.STRING()]), options)
    writer = made.create_writer(WriterContext(job_info(), "totals", 0, 1))
    writer.begin_epoch(1, "attempt", 0)
    writer.write([Row("a"), Row("".join(map(str, range(10_000))))], None)
    with closing(writer), pytest.raises(UserCodeError, match="index row") as raised:
        writer.prepare_commit()
    assert raised.value.record.startswith("('0123")
    assert server.execute("SELECT * FROM totals") == []
    assert attempts(raised.value) == 2


def a_postgres_that_takes_no_writes_for_now_is_tried_again_and_blames_no_row(server: PostgresServer) -> None:
    server.execute("DROP TABLE IF EXISTS totals", "CREATE TABLE totals (name text PRIMARY KEY)")
    options = JdbcConnectionOptions(f"jdbc:{server.url()}".replace("postgres@", ""), user_name="postgres")
    made = JdbcSink(
        "INSERT INTO totals VALUES (?)", Types.ROW([Types.STRING()]), options, JdbcExecutionOptions(max_retries=1)
    )
    writer = made.create_writer(WriterContext(job_info(), "totals", 0, 1))
    writer.begin_epoch(1, "attempt", 0)
    writer.write([Row("a")], None)
    begin = "SET default_transaction_read_only = off"
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    with closing(writer):
        try:
            with pytest.raises(ServiceUnavailable, match="after 1 retries: cannot execute INSERT in a read-only"):
                writer.prepare_commit()
        finally:
            server.execute(begin, "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
        until(lambda: server.execute("SHOW default_transaction_read_only") == [("off",)])
        writer.prepare_commit()
    assert server.execute("SELECT * FROM totals") == [("a",)]


# ---- Redis ----

REDIS = {
    "WRONGTYPE Operation against a key holding the wrong kind of value": True,
    "NOAUTH Authentication required.": True,
    "WRONGPASS invalid username-password pair or user is disabled.": True,
    "NOPERM this user has no permissions to run the 'set' command": True,
    "ERR unknown command 'EVAL'": True,
    "ERR DB index is out of range": True,
    "MOVED 3999 127.0.0.1:6381": True,
    "CROSSSLOT Keys in request don't hash to the same slot": True,
    "OOM command not allowed when used memory > 'maxmemory'.": False,
    "LOADING Redis is loading the dataset in memory": False,
    "READONLY You can't write against a read only replica.": False,
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": False,
    "TRYAGAIN Multiple keys request during rehashing of slot": False,
    "CLUSTERDOWN The cluster is down": False,
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": False,
    "NOREPLICAS Not enough good replicas to write.": False,
    "BUSY Redis is busy running a script.": False,
    "ERR max number of clients reached": False,
}
"""What a server answers, and whether it lasts."""


@pytest.mark.parametrize("answer", REDIS, ids=lambda answer: answer[:20])
def an_answer_of_redis_ends_the_job_if_it_lasts(answer: str) -> None:
    pytest.importorskip("redis")
    from redis._parsers import BaseParser

    code = answer.split()[0]
    with pytest.raises(HoldfastError, match=rf"cannot write to redis://host: {'' if code == 'ERR' else code}") as raised:
        RedisServer("redis://host", None, "Redis sink, uid 'out'", 1).failed("cannot write", BaseParser.parse_error(answer))
    assert attempts(raised.value) == (1 if REDIS[answer] else 20)
    assert str(raised.value).endswith("[Redis sink, uid 'out']")


def a_connection_to_redis_that_is_lost_is_tried_again() -> None:
    redis = pytest.importorskip("redis")
    server = RedisServer("redis://host", None, "Redis sink", 1)
    for error in (redis.ConnectionError("Connection reset by peer"), redis.TimeoutError("Timeout reading"), OSError("gone")):
        with pytest.raises(ServiceUnavailable) as raised:
            server.failed("cannot write", error)
        assert attempts(raised.value) == 20
    with pytest.raises(ConfigurationError, match="certificate verify failed"):
        server.failed("cannot connect", redis.ConnectionError("Error 1: certificate verify failed: self-signed"))
