"""Latency from the moment when a record is due to a read_committed reader, at a constant rate; and that of a lone epoch.

The job keeps a count per user, sets a timer, and emits some records' input timestamps; from Kafka to Kafka, exactly once.
Generator, job and reader are separate processes on the broker's machine. After the load, one record a second arrives,
each in an epoch of its own: this measures the two stages of an epoch without data.

With ``--rough``, users have a Zipf distribution (exponent 1.2), so that one user has a fifth of all records, and a tenth
of the records are between 5 s and two minutes late. The job then also counts in windows of one minute with allowed
lateness of a minute; later records go to a side output.

With ``--processor``, the count and the timer are those of a ``StatefulProcessor`` of PySpark's, called by records.

With ``--engine``, another engine does the same in place of the job: Kafka Streams, Flink with its changelog, or a plain
transactional loop, which shows what machine and broker allow. ``--pace-ms`` is the time between their commits.

With ``--store-ms``, the checkpoints are in an object store whose requests take that long (`benchmarks.object_store`); its
requests are counted there.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from confluent_kafka import Consumer, KafkaException, Producer

from benchmarks import jobs, kafka_jobs, measure
from benchmarks.object_store import ObjectStore, asked_between, dollars_a_month, object_store
from benchmarks.peers import latency as peers
from holdfast.common import Duration, Time, Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.metrics.requests import Requests
from holdfast.metrics.stats import EpochStats
from holdfast.testing.kafka import KafkaBroker

LATE = OutputTag("late")
HOLDFAST, PLAIN = "holdfast", "plain"
"""Engines beside those of `benchmarks.peers.latency`: the job, and a plain transactional loop in one process."""
TICK_S = 0.005
"""The generator's pause, in which records become due."""
_START_S = 120.0
_NOTHING = "nothing was measured between the warm-up and the end of the load: the machine is too busy, or --seconds too few"


class Sample(KeyedProcessFunction):
    """Counts a user's records of a minute; emits the input timestamps of some.

    With a profile, a user stays known. The first minutes of such users end at any time, as after hours of running.
    """

    def __init__(self, emit_every: int, profile_bytes: int) -> None:
        self.emit_every = emit_every
        self.profile_bytes = profile_bytes

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        if self.profile_bytes:
            self.profile = runtime_context.get_state(ValueStateDescriptor("profile", Types.STRING()))

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[str]:
        count = self.count.value()
        until = 60_000
        if count is None and self.profile_bytes:
            self.profile.update(value["user_id"].ljust(self.profile_bytes, "."))
            until -= value["number"] * 7919 % until
        if not count:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + until)
        self.count.update((count or 0) + 1)
        if value["number"] % self.emit_every == 0:
            if self.profile_bytes and not (self.profile.value() or "").startswith(value["user_id"]):
                raise RuntimeError(f"the profile of {value['user_id']} is another user's")
            yield str(value["sent"])

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        if self.profile_bytes:
            self.count.update(0)  # the user is known
        else:
            self.count.clear()


class Parse(MapFunction):
    """Parses JSON to a dict."""

    def map(self, value: str) -> Any:
        return orjson.loads(value)


class Late(MapFunction):
    """Counts records that are too late for their window."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.late = runtime_context.get_metrics_group().counter("late")

    def map(self, value: dict[str, Any]) -> Any:
        self.late.inc()
        return value


def generate(
    servers: str, rate: int, seconds: float, user_count: int, emit_every: int, rough: bool, lone_records: int = 15
) -> None:
    """The generator's process: ``rate`` records a second, then one a second.

    Every few milliseconds it sends the records that have become due, each with the moment at which it was due. So the time
    that a record waits for the others counts, and the time by which the generator is late.
    """
    settings = {"linger.ms": 1, "queue.buffering.max.messages": 2_000_000, "delivery.report.only.error": True}
    producer = Producer({"bootstrap.servers": servers, **settings})
    random = np.random.default_rng(11)
    population = np.arange(user_count)
    late: Iterator[int] = iter(())
    if rough:
        share = np.arange(1, user_count + 1, dtype=float) ** -1.2
        population = random.choice(user_count, 1_000_003, p=share / share.sum())
        late = itertools.cycle(np.where(random.random(999_983) < 0.1, random.integers(5_000, 120_000, 999_983), 0).tolist())
    beginnings = [f'{{"user_id":"u{n}","number":' for n in range(user_count)]
    draws = iter(lambda: population[random.integers(0, len(population), 1 << 16)].tolist(), None)
    user = map(beginnings.__getitem__, itertools.chain.from_iterable(draws))

    def send(numbers: range, due: int) -> None:
        """Send records that are due in the same millisecond."""
        ends: Iterator[str]
        if rough:
            ends = (f'{due},"event_time":{due - behind}}}' for behind in late)
        else:
            ends = itertools.repeat(f'{due},"event_time":{due}}}')
        records = [{"value": f'{begin}{number},"sent":{end}'} for number, begin, end in zip(numbers, user, ends)]
        if producer.produce_batch("input", records) < len(records):
            raise SystemExit(f"the generator's queue is full: {records[-1]}")

    began = time.time()
    number = 0
    while (passed := time.time() - began) < seconds:
        while number < (due := passed * rate):
            # All of a millisecond at once, by the first one's moment.
            until = min(int(due) + 1, number + max(1, rate // 1000))
            send(range(number, until), int(1000 * (began + number / rate)))
            number = until
        producer.poll(0)  # else the records that were sent stay in the queue
        time.sleep(TICK_S)
    producer.flush()
    time.sleep(3 if lone_records else 0)
    for _ in range(lone_records):
        time.sleep(1)
        number += -number % emit_every
        send(range(number, number + 1), time.time_ns() // 1_000_000)
        number += 1
        producer.flush()


def read(servers: str, until: float, warm_up_until: float, topic: str = "output") -> None:
    """The reader's process: prints the latencies (ms) of the records received after the warm-up, as JSON."""
    print(json.dumps([latency for at, latency in received(servers, until, topic) if at > warm_up_until]))


def received(servers: str, until: float, topic: str) -> Generator[tuple[float, float], None, None]:
    """Read a topic until a moment; yields for each record when it was received (s), and its latency (ms)."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.subscribe([topic])
    try:
        while time.time() < until:
            # With a timeout, consume() would wait for a full batch.
            first = consumer.poll(0.1)
            for message in [] if first is None else [first, *consumer.consume(1000, 0)]:
                if message.error() is not None:
                    raise KafkaException(message.error())
                now = time.time()
                yield now, now * 1000 - int(message.value())
    finally:
        consumer.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument(
        "--rough", action="store_true", help="skewed users, late records, and windows in addition to the counts"
    )
    parser.add_argument("--rate", type=int, default=20_000, help="records per second")
    parser.add_argument("--users", type=int, default=10_000, help="number of keys")
    parser.add_argument("--emit-every", type=int, default=50, metavar="N", help="every N-th record has a result")
    parser.add_argument("--profile-bytes", type=int, default=0, help="bytes that each key keeps beside its count")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--warm-up", type=float, default=15, help="seconds before latencies are measured")
    parser.add_argument("--lone-records", type=int, default=15, help="records after the load, one a second")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--engine", default=HOLDFAST, choices=(HOLDFAST, PLAIN, *peers.ENGINES))
    parser.add_argument("--pace-ms", type=int, default=100, help="another engine's time between two commits")
    parser.add_argument(
        "--processor", action="store_true", help="the job is a StatefulProcessor of PySpark's; every record has a result"
    )
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--store-ms", type=float, help="checkpoints are in an object store whose requests take that long")
    parser.add_argument("--throttled", type=float, default=0.0, metavar="SHARE", help="of requests that it answers by 503")
    parser.add_argument("--priced", action="store_true", help="its requests cost something, so that a budget sets the pace")
    parser.add_argument("--log-in-kafka", action="store_true", help="the checkpoint log is a topic of the same broker")
    parser.add_argument("--at-least-once", action="store_true", help="the sink writes without transactions")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job under load; returns its latencies."""
    work = jobs.scratch()
    children: list[subprocess.Popen[str]] = []
    others: list[subprocess.Popen[str]] = []
    far = contextlib.nullcontext() if options.store_ms is None else object_store(options.store_ms, options.throttled)
    try:
        with KafkaBroker(work / "kafka") as broker, far as store:
            servers = broker.bootstrap_servers
            for topic in ("input", "output", "windows"):
                broker.create_topic(topic, partitions=kafka_jobs.PARTITIONS)
            client, outcome = _start(servers, work, options, store) if options.engine == HOLDFAST else (None, None)
            if client is not None and outcome is not None:
                _first_epoch(servers, client, outcome)
            elif options.engine in peers.ENGINES:
                others.append(peers.start(servers, work, options, store))
                _first_result(servers)
            begins = time.time()
            loaded = begins + options.seconds
            shape = [
                options.rate,
                options.seconds,
                options.users,
                options.emit_every,
                int(options.rough),
                options.lone_records,
            ]
            children.append(child("generate", servers, *map(str, shape)))
            ends = loaded + 5
            children.append(child("read", servers, str(ends), str(begins + options.warm_up)))
            if options.engine == PLAIN:
                arguments = servers, str(ends), str(options.emit_every)
                others.append(child(*arguments, module="benchmarks.plain_copy"))
            spent, asked = _spent(begins + options.warm_up, loaded, store)
            said = children[1].communicate()[0]
            children[0].wait()
            time.sleep(1)
            if client is not None:
                client.cancel().result()
    finally:
        for each in [*children, *others]:
            each.kill()
        jobs.tidy(work)
    latencies = sorted(json.loads(said))
    if not latencies:
        raise SystemExit(_NOTHING)
    figures: dict[str, Any]
    measured = loaded - begins - options.warm_up
    if outcome is None or client is None:
        figures = {**measure.percentiles(latencies), "ok": bool(latencies), "pace_ms": options.pace_ms}
    else:
        figures = _figures(outcome, latencies, begins + options.warm_up, loaded)
        epochs = max(1, figures["epochs"])
        figures["state_mb"] = round(client.metrics.snapshot().values["stateSizeBytes"] / 1e6)
        figures["cpu_ms_per_epoch"] = {role: round(1000 * seconds / epochs, 1) for role, seconds in spent.items()}
        if asked is not None:
            figures["requests_per_epoch"] = {k: round(n / epochs, 2) for k, n in asked._asdict().items() if n}
    if asked is not None:
        figures["requests_per_minute"] = {k: round(n / measured * 60, 1) for k, n in asked._asdict().items() if n}
        figures["dollars_a_month"] = round(dollars_a_month(asked, measured), 2)
    return {
        **figures,
        "cpu_s": spent,
        "rate": options.rate,
        "users": options.users,
        "profile_bytes": options.profile_bytes,
        "rough": options.rough,
        "parallelism": options.parallelism,
        "label": _label(options),
        "store": _store(options),
        "workload": "latency",
    }


def _send_first(servers: str) -> None:
    """Send the job a record: the load begins when all processes have started."""
    producer = Producer({"bootstrap.servers": servers})
    now = time.time_ns() // 1_000_000
    producer.produce("input", f'{{"user_id":"u0","number":0,"sent":{now},"event_time":{now}}}')
    producer.flush()


def _first_result(servers: str) -> None:
    """Send another engine's job a record, and wait for its result."""
    _send_first(servers)
    with contextlib.closing(received(servers, time.time() + _START_S, "output")) as results:
        first = next(results, None)
    if first is None:
        raise SystemExit(f"the job has given no result in {_START_S:g} s")


def _first_epoch(servers: str, client: Any, outcome: jobs.Outcome) -> None:
    """Send the job a record, and wait for its epoch."""
    _send_first(servers)
    while not outcome.epochs:
        if client.get_job_status().result().is_terminal_state():
            client.get_job_execution_result().result()  # raises its error
        time.sleep(0.05)


def _spent(begin: float, end: float, store: ObjectStore | None) -> tuple[dict[str, float], Requests | None]:
    """The CPU seconds of each kind of process, and the requests to the store, between two times."""
    usage, taken, counts = measure.Usage(), [], []
    for at in (begin, end):
        time.sleep(max(0.0, at - time.time()))
        usage.sample(measure.this_process())
        taken.append(usage.by_role())
        counts.append({} if store is None else store.counts())
    spent = {role: round(seconds - taken[0].get(role, 0.0), 2) for role, seconds in taken[1].items()}
    return spent, None if store is None else asked_between(*counts)


def _store(options: argparse.Namespace) -> str:
    """Where the checkpoints are, and what else sets the pace."""
    if options.store_ms is None:
        return "a directory"
    store = f"{options.store_ms:g} ms a request"
    if options.throttled:
        store += f", {options.throttled:.0%} of them refused"
    if options.priced:
        store += ", 20 dollars a month"
    if options.log_in_kafka:
        store += ", the log in Kafka"
    return store + (", at least once" if options.at_least_once else "")


def _label(options: argparse.Namespace) -> str:
    if options.engine == PLAIN:
        return "plain transactional loop"
    if options.engine != HOLDFAST:
        return f"{options.engine}, {options.pace_ms} ms"
    subtasks = ", one subtask" if options.parallelism == 1 else ""
    return f"holdfast-{options.backend}" + subtasks + (", StatefulProcessor" if options.processor else "")


def _start(servers: str, work: Any, options: argparse.Namespace, store: ObjectStore | None) -> tuple[Any, jobs.Outcome]:
    settings = [*([] if store is None else store.settings(priced=options.priced)), *options.set]
    if options.log_in_kafka:
        log = "execution.checkpointing.log"
        settings += [f"{log}=kafka", f"{log}.kafka.bootstrap.servers={servers}"]
    env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, options.backend, settings))
    env.set_parallelism(options.parallelism)
    in_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    records = (
        env.from_source(kafka_jobs.kafka_source(servers, "input", bounded=False), WatermarkStrategy.no_watermarks(), "input")
        .map(Parse())
        .assign_timestamps_and_watermarks(in_time.with_timestamp_assigner(lambda record, _: record["event_time"]))
    )
    by_user = records.key_by(lambda record: record["user_id"])
    sink = kafka_jobs.kafka_sink(servers, "output", exactly_once=not options.at_least_once)
    if options.processor:
        from benchmarks import processors  # imports PySpark, which generator and reader do without

        found = by_user.transform_with_state(processors.Sent(), "sent string", "EventTime").map(lambda row: row.sent)
    else:
        found = by_user.process(Sample(options.emit_every, options.profile_bytes))
    found.sink_to(sink)
    if options.rough:
        windows = by_user.window(TumblingEventTimeWindows.of(Time.minutes(1))).allowed_lateness(60_000)
        counts = windows.side_output_late_data(LATE).aggregate(jobs.Count())
        counts.map(str).sink_to(kafka_jobs.kafka_sink(servers, "windows"))
        counts.get_side_output(LATE).map(Late()).sink_to(jobs.Discard())
    return jobs.start(env, "latency")


def child(*arguments: str, module: str = "benchmarks.latency") -> subprocess.Popen[str]:
    """Start a process of a benchmark, whose output can be read."""
    command = [sys.executable, "-m", module, *arguments]
    environment = measure.environment()
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=measure.ROOT)


def _figures(outcome: jobs.Outcome, latencies: list[float], warm: float, loaded: float) -> dict[str, Any]:
    under_load = [stats for when, stats in outcome.epochs if warm < when < loaded]
    if not under_load:
        raise SystemExit(_NOTHING)
    alone = [stats for when, stats in outcome.epochs if when > loaded + 1 and stats.records_in <= 1]
    lone = [stats.duration_ms for stats in alone]
    return {
        **measure.percentiles(latencies),
        "epochs": len(under_load),
        "epoch_ms": round(statistics.median(stats.duration_ms for stats in under_load)),
        "records_per_epoch": round(statistics.median(stats.records_in for stats in under_load)),
        "records_per_s": round(sum(stats.records_in for stats in under_load) / (loaded - warm)),
        "backlog": max((sum(stats.backlog.values()) for stats in under_load), default=0),
        "late": outcome.counters().get("late", 0),
        "lone_epochs": len(lone),
        "lone_epoch_ms": round(statistics.median(lone)) if lone else None,
        "lone_epoch_min_ms": round(min(lone)) if lone else None,
        "phases_ms": _phases(under_load),
        "lone_phases_ms": _phases(alone),
        "ok": bool(latencies),
    }


def _phases(epochs: Sequence[EpochStats]) -> dict[str, float]:
    """The median duration of each phase, in ms."""
    names = {name for stats in epochs for name in stats.phases}
    return {
        name: round(1000 * statistics.median(stats.phases.get(name, 0.0) for stats in epochs), 1) for name in sorted(names)
    }


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    if task == "generate":
        users, every, rough, *lone = map(int, arguments[3:])
        generate(arguments[0], int(arguments[1]), float(arguments[2]), users, every, bool(rough), *lone)
    else:
        read(arguments[0], float(arguments[1]), float(arguments[2]), *arguments[3:])
