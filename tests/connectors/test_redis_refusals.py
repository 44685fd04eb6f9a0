"""RedisSink on a real server: what the server refuses, forgets and has no room for."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from connector_harness import Crash
from redis_rows import DELETE, TOTALS, entries, hashes, key, row, sink, waiting
from redis_server import RedisServer, redis_server

from holdfast.common import Duration, Row, Types
from holdfast.datastream.connectors.redis import RedisSink
from holdfast.errors import ConfigurationError, IncompatibleState, InputLost, ServiceUnavailable, UserCodeError
from holdfast.testing.ports import ReservedPort


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


def the_rows_that_wait_get_the_room_that_failed_attempts_took(redis: RedisServer, runs: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.connectors.redis.server._TRIES", 2)
    run = runs(sink(redis, "stream"), parallelism=1)
    with pytest.raises(Crash):
        run.epoch([[row("a", n) for n in range(100)]], crash_at="complete")
    with redis.client() as client:
        room = client.info()["used_memory"] + (6 << 20)
        client.config_set("maxmemory", room)
        try:
            run.writers[0].begin_epoch(2, "a larger one", 1)
            with pytest.raises(ServiceUnavailable, match="OOM"):
                run.writers[0].write([row("a" * 1000, n) for n in range(50_000)], None)
            client.config_set("maxmemory", room - (1 << 20))
            run.start()
            assert (len(entries(redis)), waiting(redis)) == (100, [])
        finally:
            client.config_set("maxmemory", 0)


def a_server_that_has_forgotten_what_it_wrote_is_told_of(
    redis: RedisServer, runs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = runs(sink(redis))
    run.epoch([[row("a", 1)], [row("b", 2)]])
    run.epoch([[row("a", 3)], []])
    assert "forgotten" not in caplog.text
    with redis.client() as client:
        client.flushall()
    run.epoch([[row("a", 4)], []])
    assert caplog.text.count("has forgotten what it wrote: it was emptied, or restarted without its log") == 1
    run.epoch([[row("a", 5)], []])
    assert (hashes(redis), caplog.text.count("has forgotten")) == ({"a": "5"}, 1)


@pytest.mark.parametrize("structure", ["hash", "stream"])
def a_row_may_have_thousands_of_fields(redis: RedisServer, runs: Any, structure: str) -> None:
    names = [f"f{number}" for number in range(9000)]
    run = runs(sink(redis, structure, rows=Types.ROW_NAMED(names, [Types.LONG()] * 9000), **WIDE[structure]), parallelism=1)
    few, many = dict.fromkeys(names) | {"f1": 1, "f8999": 2}, dict.fromkeys(names, 3)
    if structure == "stream":
        with pytest.raises(UserCodeError, match="the row has 9000 fields: an entry of a stream takes 3000"):
            run.epoch([[Row(**few), Row(**many)]])
        return
    run.epoch([[Row(**many)]])
    with redis.client() as client:
        assert client.hgetall("wide") == dict.fromkeys(names, "3")
    run.epoch([[Row(**few)]])
    with redis.client() as client:
        assert client.hgetall("wide") == {"f1": "1", "f8999": "2"}


def wide(row: Row) -> str:
    return "wide"


WIDE: dict[str, dict[str, Any]] = {"hash": {"key": wide}, "stream": {}}


def a_server_that_cannot_be_written_to_is_told_before_the_job_starts(
    redis: RedisServer, runs: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
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
        commands = ["+info", "+eval", "+sadd", "+srem", "+smembers", "+set", "+get", "+del"]
        client.acl_setuser("writer", enabled=True, passwords=["+secret-word"], commands=commands, keys=["holdfast:*"])
        limited = sink(redis, url=f"redis://writer:secret-word@127.0.0.1:{redis.port}")
        limited.validate()
        with pytest.raises(
            ConfigurationError, match=r"HSET of the key 'total:a' fails: .*wait in .*: grant the user EVAL and"
        ):
            runs(limited, parallelism=1).epoch([[row("a", 1)]])
        client.acl_deluser("writer")
    with redis_server(tmp_path, "--cluster-enabled", "yes", "--requirepass", "secret-word") as cluster:
        with pytest.raises(ConfigurationError, match=r"NOAUTH.*give the password"):
            sink(cluster).validate()
        with pytest.raises(ConfigurationError, match="belongs to a Redis Cluster"):
            sink(cluster, password="secret-word").validate()


def a_server_behind_tls_is_known_by_its_certificate(tmp_path: Path, runs: Any) -> None:
    own, other = certificate(tmp_path, "own"), certificate(tmp_path, "other")
    more = ["--tls-cert-file", str(own), "--tls-key-file", str(own.with_suffix(".key")), "--tls-auth-clients", "no"]
    with (
        contextlib.closing(ReservedPort()) as port,
        redis_server(tmp_path, "--tls-port", str(port.number), "--requirepass", "secret-word", *more) as server,
    ):
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
