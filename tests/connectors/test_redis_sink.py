"""RedisSink on a real server: each row once, whatever dies."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from connector_harness import Crash, SinkRun, eventually
from redis_rows import AFTER, BEFORE, DELETE, TOTALS, entries, hashes, key, row, sink, waiting
from redis_server import RedisServer

from effort import examples
from holdfast.common import Configuration, Duration, Row, RowKind, Types, WatermarkStrategy
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.datastream.connectors.redis import RedisSink
from holdfast.datastream.formats.json import JsonRowSerializationSchema
from holdfast.errors import ServiceUnavailable
from holdfast.testing import InProcessEnvironment


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
    with pytest.raises(ServiceUnavailable, match=r"cannot .* to redis://.*does the server run\? \[Redis sink, uid 'sink'\]"):
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


if __name__ == "__main__":
    run_program(*sys.argv[1:])
