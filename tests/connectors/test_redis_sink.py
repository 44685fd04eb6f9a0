"""RedisSink on a real server: each row once, whatever dies."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from connector_harness import Crash, SinkRun, eventually
from redis_server import RedisServer, redis_server

from effort import examples
from holdfast.common import Configuration, Duration, Row, RowKind, Types, WatermarkStrategy
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.datastream.connectors.redis import RedisSink
from holdfast.datastream.formats.json import JsonRowSerializationSchema
from holdfast.errors import ConfigurationError, IncompatibleState, InputLost, ServiceUnavailable, UserCodeError
from holdfast.testing import InProcessEnvironment
from holdfast.testing.ports import ReservedPort

TOTALS = Types.ROW_NAMED(["name", "total"], [Types.STRING(), Types.LONG()])
BEFORE, AFTER, DELETE = RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE


def key(row: Row) -> str:
    return f"total:{row.name}"


def sink(server: RedisServer, structure: Any = "hash", **more: Any) -> RedisSink:
    of = more.pop("key", "totals" if structure == "stream" else key)
    return RedisSink(more.pop("url", server.url), more.pop("rows", TOTALS), of, structure, **more)


def row(name: str, total: int | None, kind: RowKind = RowKind.INSERT) -> Row:
    return Row.of_kind(kind, name=name, total=total)


def hashes(server: RedisServer) -> dict[str, Any]:
    with server.client() as client:
        return {name.removeprefix("total:"): client.hgetall(name).get("total") for name in client.scan_iter("total:*")}


def entries(server: RedisServer, name: str = "totals") -> list[Any]:
    with server.client() as client:
        return [tuple(fields.values()) for _, fields in client.xrange(name)]


def waiting(server: RedisServer) -> list[str]:
    with server.client() as client:
        return sorted(name for name in client.scan_iter("holdfast:*") if ":written:" not in name)


def the_newest_row_of_each_key_is_there_when_its_checkpoint_is_complete(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis))
    with pytest.raises(Crash):
        run.epoch([[row("a", 1), row("a", 2)], [row("b", 3)]], crash_at="prepared")
    assert hashes(redis) == {}
    assert len(waiting(redis)) == 3
    run.start()
    assert waiting(redis) == []
    run.epoch([[row("a", 1), row("a", 2)], [row("b", 3), row("c", 4)]])
    assert hashes(redis) == {"a": "2", "b": "3", "c": "4"}
    run.epoch([[row("a", 2, BEFORE), row("a", 5, AFTER), row("d", 1), row("d", None, DELETE)], [row("c", 4, DELETE)]])
    assert hashes(redis) == {"a": "5", "b": "3"}
    assert waiting(redis) == []


@pytest.mark.parametrize("structure", ["hash", "string", "stream"])
@pytest.mark.parametrize("seed", range(examples(2)))
def a_row_is_written_once_wherever_the_process_dies(redis: RedisServer, runs: Any, structure: str, seed: int) -> None:
    draw = random.Random(seed)
    run = runs(sink(redis, structure))
    rows: dict[str, str] = {}
    added: list[tuple[str, str]] = []
    for _ in range(15):
        values: list[list[Row]] = [[], []]
        for _ in range(draw.randrange(8)):
            subtask = draw.randrange(2)
            kind = DELETE if structure != "stream" and draw.random() < 0.3 else RowKind.INSERT
            values[subtask].append(row(f"{subtask}-{draw.randrange(4)}", draw.randrange(100), kind))
        if run.completes(values, draw.choice([None, *SinkRun.CRASH_POINTS])):
            for each in values[0] + values[1]:
                added.append((each.name, str(each.total)))
                rows.pop(each.name, None)
                if each.get_row_kind() is not DELETE:
                    rows[each.name] = str(each.total)
        if structure == "stream":
            assert entries(redis) == added
        elif structure == "hash":
            assert hashes(redis) == rows
        else:
            with redis.client() as client:
                found = {name: client.get(name) for name in client.scan_iter("total:*")}
            assert found == {f"total:{name}": f'{{"name":"{name}","total":{total}}}' for name, total in rows.items()}
        assert waiting(redis) == []


def a_driver_that_was_overtaken_leaves_its_successors_rows_alone(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis))
    run.epoch([[row("a", 1)], []])
    run.recover_overtaken([[row("b", 2)], [row("c", 3)]])
    assert hashes(redis) == {"a": "1", "b": "2", "c": "3"}


def a_job_under_another_name_writes_what_a_savepoint_holds(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis))
    with pytest.raises(Crash):
        run.epoch([[row("a", 1)], [row("b", 2)]], crash_at="complete")
    committer = run.sink.create_committer(replace(run.job, job_name="another"), run.uid)
    assert committer is not None
    committer.recover(run.committables)
    committer.close()
    assert (hashes(redis), waiting(redis)) == ({"a": "1", "b": "2"}, [])


def an_epoch_that_is_abandoned_is_never_seen(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis, "stream"))
    writer = run.writers[0]
    writer.begin_epoch(1, "abandoned", 0)
    writer.write([row("a", n) for n in range(1500)], None)
    assert len(waiting(redis)) == 2
    writer.abort_epoch()
    run.epoch([[row("b", 1)], []])
    run.epoch([[row("c", 2)], []])
    assert (entries(redis), waiting(redis)) == ([("b", "1"), ("c", "2")], [])


def a_server_that_is_killed_keeps_what_was_prepared(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis, "stream"))
    with pytest.raises(Crash):
        run.epoch([[row("a", n) for n in range(2500)], [row("b", 2)]], crash_at="complete")
    redis.kill()
    with pytest.raises(
        ServiceUnavailable, match=r"cannot write to redis://.*does the server run\? \[Redis sink, uid 'sink'\]"
    ):
        run.start()
    redis.start()
    run.start()
    assert entries(redis) == [*(("a", str(n)) for n in range(2500)), ("b", "2")]
    writer = run.writers[0]
    writer.begin_epoch(9, "again", 1)
    writer.write([row("c", 3)], None)
    redis.kill()
    with pytest.raises(ServiceUnavailable, match="cannot write"):
        writer.prepare_commit()
    redis.start()
    run.start()
    assert (len(entries(redis)), waiting(redis)) == (2501, [])


def a_program_and_its_server_that_are_killed_lose_and_repeat_nothing(redis: RedisServer, tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        for kills_server in (False, True, None):
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
            program = [sys.executable, __file__, redis.url, (tmp_path / "checkpoints").as_uri()]
            running = subprocess.Popen(program, env=environment, stdout=log, stderr=log)
            try:
                written = len(entries(redis, "payments"))
                if kills_server is None:
                    assert running.wait(300) == 0, (tmp_path / "log").read_text()
                    continue
                eventually(partial(goes_on, redis, written + 50, running))
            finally:
                running.kill()
                running.wait()
            if kills_server:
                redis.kill()
                redis.start()
    written_ids = entries(redis, "payments")
    assert len(written_ids) == len(set(written_ids)) == COUNT
    with redis.client() as client:
        assert sum(int(client.hget(name, "count")) for name in client.scan_iter("count:*")) == COUNT
    assert waiting(redis) == []


def goes_on(server: RedisServer, count: int, program: subprocess.Popen[bytes]) -> bool:
    return len(entries(server, "payments")) > count or program.poll() is not None


COUNT = 3000
PAYMENTS, COUNTS = (Types.ROW_NAMED(names, types) for names, types in (
    (["id"], [Types.STRING()]), (["merchant", "count"], [Types.STRING(), Types.LONG()])
))  # fmt: skip


def run_program(url: str, checkpoints: str) -> None:
    """Write payments to a stream, and the number of each merchant's payments to a hash."""
    settings = Configuration()
    settings.set_string("execution.checkpointing.dir", checkpoints)
    env = InProcessEnvironment(settings)
    source = PaymentsSource(rate_per_second=1000, count=COUNT, merchants=10)
    payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments")
    ids = payments.map(lambda payment: Row(id=str(payment["payment_id"])), PAYMENTS)
    ids.sink_to(RedisSink(url, PAYMENTS, "payments", "stream"))
    pairs = payments.map(lambda payment: (payment["merchant_id"], 1), Types.TUPLE([Types.STRING(), Types.LONG()]))
    counts = pairs.key_by(lambda pair: pair[0]).sum(1).map(lambda pair: Row(merchant=pair[0], count=pair[1]), COUNTS)
    counts.sink_to(RedisSink(url, COUNTS, lambda row: f"count:{row.merchant}", "hash"))
    env.execute("payments")


# ---- values ----


def the_fields_are_text_and_those_without_a_value_are_not_there(redis: RedisServer, runs: Any) -> None:
    names = ["id", "name", "price", "at", "data", "tags", "paid", "many", "any"]
    types = [Types.LONG(), Types.STRING(), Types.BIG_DEC(), Types.SQL_DATE(), Types.PRIMITIVE_ARRAY(Types.BYTE())]
    more = [Types.BIG_INT(), Types.PICKLED_BYTE_ARRAY()]
    rows = Types.ROW_NAMED(names, [*types, Types.LIST(Types.STRING()), Types.BOOLEAN(), *more])
    run = runs(sink(redis, rows=rows, key=by_id), parallelism=1)
    import datetime

    given = [1, 'a "b"\n', Decimal("1.50"), datetime.date(2024, 2, 29), b"\x00\xff", ["x"], True, 2**70, {"a": 1}]
    run.epoch([[Row(**dict(zip(names, given)))]])
    with redis.client(encoding_errors="surrogateescape") as client:
        assert client.hgetall("order:1") == {
            **{"id": "1", "name": 'a "b"\n', "price": "1.50", "at": "2024-02-29", "data": "\x00\udcff"},
            **{"tags": '["x"]', "paid": "true", "many": str(2**70), "any": '{"a":1}'},
        }
        client.hset("order:1", "of another", "stays")
    run.epoch([[Row(**dict.fromkeys(names) | {"id": 1})]])
    with redis.client() as client:
        assert client.hgetall("order:1") == {"id": "1", "of another": "stays"}


def by_id(row: Row) -> bytes:
    return f"order:{row.id}".encode()


@pytest.mark.parametrize("structure", ["string", "hash"])
def a_key_lives_as_long_as_it_is_told(redis: RedisServer, runs: Any, structure: str) -> None:
    run = runs(sink(redis, structure, ttl=Duration.of_minutes(5)))
    run.epoch([[row("a", 1)], []])
    with redis.client() as client:
        assert 0 < client.pttl("total:a") <= 300_000
    run.start(sink(redis, structure, ttl=Duration.of_millis(1)))
    run.epoch([[row("a", 2)], []])
    with redis.client() as client:
        eventually(lambda: not client.exists("total:a"))


def a_value_is_that_of_its_schema(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis, "string", value=JsonRowSerializationSchema(TOTALS)))
    run.epoch([[row("a", 1)], []])
    run.start(sink(redis, "string", value=key))
    run.epoch([[row("b", 1)], []])
    with redis.client() as client:
        assert (client.get("total:a"), client.get("total:b")) == ('{"name":"a","total":1}', "total:b")


def a_stream_keeps_its_newest_entries(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis, "stream", max_length=100))
    run.epoch([[row("a", n) for n in range(5000)], []])
    assert 100 <= len(entries(redis)) < 400
    assert entries(redis)[-1] == ("a", "4999")


# ---- refusals ----


def no_text(row: Row) -> Any:
    return None


BAD: list[tuple[dict[str, Any], Any, str]] = [
    ({}, ("a", "much"), r"(TypeError|ValueError)"),
    ({"key": no_text}, row("a", 1), "the key of a row is text or bytes, not None"),
    ({"structure": "string", "value": no_text}, row("a", 1), "the value of a row is text or bytes, not None"),
    ({"structure": "stream"}, row("a", 1, DELETE), "a stream takes new rows, not one of the kind DELETE"),
    ({"structure": "stream"}, Row(name=None, total=None), "all fields of the row are None"),
]


@pytest.mark.parametrize(("options", "bad", "told"), BAD, ids=[told[:30] for *_, told in BAD])
def a_row_that_cannot_be_written_is_named(redis: RedisServer, runs: Any, options: Any, bad: Any, told: str) -> None:
    writer = runs(sink(redis, **options)).writers[0]
    writer.begin_epoch(1, "attempt", 0)
    with pytest.raises(UserCodeError, match=rf"(?s){told}.*in operator 'RedisSink' \(uid 'sink'\)\n  row: "):
        writer.write([bad], None)


def a_key_of_another_kind_stops_the_job_and_loses_nothing(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis))
    with redis.client() as client:
        client.set("total:b", "mine")
    with pytest.raises(ConfigurationError, match=r"HSET of the key 'total:b' fails: WRONGTYPE.*wait in holdfast:.*delete"):
        run.epoch([[row("a", 1), row("b", 2), row("c", 3)], [row("d", 4)]])
    with redis.client() as client:
        assert client.hgetall("total:a") == {"name": "a", "total": "1"}
        client.delete("total:b")
        client.hset("total:a", "total", "9")  # what is done is not done again
    run.start()
    assert hashes(redis) == {"a": "9", "b": "2", "c": "3", "d": "4"}


@pytest.mark.parametrize("before", [True, False])
def the_rows_that_a_server_has_lost_with_all_that_it_had_are_missed(redis: RedisServer, runs: Any, before: bool) -> None:
    """As after a restart without a log, or a failover to a replica that was behind."""
    run = runs(sink(redis))
    if before:
        run.epoch([[row("a", 1)], [row("b", 2)]])
    with pytest.raises(Crash):
        run.epoch([[row("a", 3)], [row("b", 4)]], crash_at="complete")
    with redis.client() as client:
        client.delete(*waiting(redis))
    with pytest.raises(InputLost, match=r"gone before they were written.*failover") as lost:
        run.start()
    told = re.findall(r"redis-cli SET (\S+) ([\d-]+)\)", str(lost.value))
    with redis.client() as client:
        for name, until in told:  # of one subtask; the rows of the other one are gone, too
            client.set(name, until)
            client.set(name.replace(":written:0", ":written:1"), until)
    run.start()
    run.epoch([[row("c", 5)], []])
    assert hashes(redis)["c"] == "5"


def a_row_that_the_server_has_removed_is_missed(redis: RedisServer, runs: Any) -> None:
    run = runs(sink(redis))
    with pytest.raises(Crash):
        run.epoch([[row("a", 1)], []], crash_at="complete")
    with redis.client() as client:
        (chunk,) = (name for name in waiting(redis) if client.type(name) == "string")
        client.delete(chunk)
    with pytest.raises(InputLost, match=r"gone before they were written.*maxmemory-policy"):
        run.start()
    with redis.client() as client:
        client.flushall()


def a_server_without_room_or_that_fails_over_is_tried_again(redis: RedisServer, runs: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.connectors.redis.server._TRIES", 2)
    run = runs(sink(redis))
    writer = run.writers[0]
    with redis.client() as client:
        for broken, mended, told in (
            (("config", "set", "maxmemory", "1"), ("config", "set", "maxmemory", "0"), "OOM .*raise maxmemory"),
            (("replicaof", "127.0.0.1", "1"), ("replicaof", "no", "one"), "READONLY .*address of the primary"),
        ):
            client.execute_command(*broken)
            try:
                writer.begin_epoch(1, "attempt", 0)
                writer.write([row("a", 1)], None)
                with pytest.raises(ServiceUnavailable, match=told):
                    writer.prepare_commit()
            finally:
                client.execute_command(*mended)
    run.epoch([[row("a", 2)], []])
    assert hashes(redis) == {"a": "2"}


def a_server_that_cannot_be_written_to_is_told_before_the_job_starts(
    redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink(redis).validate()
    with redis.client() as client:
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(ConfigurationError, match="is a replica: give the address of the primary"):
            sink(redis).validate()
        client.replicaof("no", "one")
        client.config_set("maxmemory-policy", "allkeys-lru")
        sink(redis).validate()
        client.config_set("maxmemory-policy", "noeviction")
        assert "removes keys when its memory is full" in caplog.text
        client.acl_setuser("reader", enabled=True, passwords=["+secret-word"], commands=["+info"], keys=["*"])
        for url, kind, told in (
            (f"redis://reader:secret-word@127.0.0.1:{redis.port}", ConfigurationError, r"NOPERM.*grant the user EVAL"),
            (
                f"redis://reader:wrong-word@127.0.0.1:{redis.port}",
                ConfigurationError,
                r"WRONGPASS.*check the user and the password",
            ),
            (f"redis://127.0.0.1:{redis.port}/99", ConfigurationError, "DB index is out of range"),
            (f"redis://127.0.0.1:{redis.port}?no=option", ConfigurationError, "does not do"),
            ("redis://127.0.0.1:1", ServiceUnavailable, "does the server run"),
        ):
            with pytest.raises(kind, match=told) as refused:
                sink(redis, url=url).validate()
            assert "-word" not in str(refused.value)
        client.acl_deluser("reader")
    with redis_server(tmp_path, "--cluster-enabled", "yes", "--requirepass", "secret-word") as cluster:
        with pytest.raises(ConfigurationError, match=r"NOAUTH.*give the password"):
            sink(cluster).validate()
        with pytest.raises(ConfigurationError, match="belongs to a Redis Cluster"):
            sink(cluster, password="secret-word").validate()


def a_server_behind_tls_is_known_by_its_certificate(tmp_path: Path, runs: Any) -> None:
    own, other, port = certificate(tmp_path, "own"), certificate(tmp_path, "other"), ReservedPort()
    more = ["--tls-cert-file", str(own), "--tls-key-file", str(own.with_suffix(".key")), "--tls-auth-clients", "no"]
    with redis_server(tmp_path, "--tls-port", str(port.number), "--requirepass", "secret-word", *more) as server:
        url = f"rediss://127.0.0.1:{port.number}/0?ssl_ca_certs="
        given = sink(server, url=f"{url}{own}", password="secret-word")
        given.validate()
        runs(given).epoch([[row("a", 1)], [row("b", 2)]])
        with server.client(password="secret-word") as client:
            assert client.hgetall("total:a") == {"name": "a", "total": "1"}
        for refused, password, kind, told in (
            (f"{url}{other}", "secret-word", ConfigurationError, r"certificate verify failed.*check the URL"),
            (f"{url}{own}", "wrong-word", ConfigurationError, r"WRONGPASS.*check the user and the password"),
            (f"{url}{own}", None, ConfigurationError, r"NOAUTH.*give the password"),
            (f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={own}", "secret-word", ServiceUnavailable, "does the server"),
            (f"redis://127.0.0.1:{port.number}/0", "secret-word", ServiceUnavailable, "does the server"),
        ):
            with pytest.raises(kind, match=told) as error:
                sink(server, url=refused, password=password).validate()
            assert "-word" not in str(error.value)
    port.release()


def a_server_that_never_answers_is_told(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        made = RedisSink(url, TOTALS, key, timeout=Duration.of_millis(100))
        with pytest.raises(
            ServiceUnavailable, match=rf"cannot connect to {url}: no answer within 0\.1 s; .*does the server run"
        ):
            made.validate()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "http://h"}, "the url of a RedisSink"),
        ({"rows": Types.LONG()}, "ROW_NAMED"),
        ({"structure": "set"}, "structure is one of string, hash, stream, not 'set'"),
        ({"key": "one"}, "key is a callable"),
        ({"structure": "stream", "key": ""}, "the name of a stream"),
        ({"value": key}, "value belongs to the structure 'string'"),
        ({"structure": "string", "value": 5}, "value is a schema or a callable"),
        ({"max_length": 5}, "max_length belongs to the structure 'stream'"),
        ({"structure": "stream", "max_length": 0}, "a whole number from 1"),
        ({"structure": "stream", "ttl": Duration.of_millis(5)}, "bound it with max_length"),
        ({"ttl": 5}, "ttl is a Duration"),
        ({"timeout": Duration.of_nanos(1)}, "timeout is a Duration of a millisecond or more"),
    ],
)
def a_wrong_argument_is_refused(options: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"url": "redis://h", "rows": TOTALS, "key": key, "structure": "hash", **options}
    with pytest.raises(ConfigurationError, match=told):
        RedisSink(given.pop("url"), given.pop("rows"), given.pop("key"), given.pop("structure"), **given)


def the_output_of_another_sink_is_refused() -> None:
    made = RedisSink("redis://h", TOTALS, key)
    made.check_prepared({"version": 1, "prefix": "holdfast:a", "attempt": "1-0-1-a", "chunks": 1})
    with pytest.raises(IncompatibleState, match="another kind of connector"):
        made.check_prepared({"bucket": "b"})


if __name__ == "__main__":
    run_program(*sys.argv[1:])
