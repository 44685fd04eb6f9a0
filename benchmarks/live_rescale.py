"""Latency of the results, from Kafka's timestamp to a read_committed reader, while a running job changes its parallelism.

    python -m benchmarks live_rescale

Each key has a kilobyte of state. When all keys are there, the load goes on at a constant rate, and the parallelism changes
from 2 to 4 to 3, some seconds apart. ``steady``: the latencies before the first change; ``rescaled``: those from then on.
The largest of them is how late a result was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import jobs, kafka_jobs, measure
from benchmarks.latency import Parse, Sample, child, received
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import RuntimeContext, StreamExecutionEnvironment
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.testing.kafka import KafkaBroker

STEPS = (4, 3)
VALUE_BYTES = 1024


class Remember(Sample):
    """Stores a kilobyte for a user, too."""

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.PRIMITIVE_ARRAY(Types.BYTE())))

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[str]:
        count = self.count.value() or 0
        if count == 0:
            self.value.update(hashlib.shake_128(value["user_id"].encode()).digest(VALUE_BYTES))
        self.count.update(count + 1)
        if value["number"] % self.emit_every == 0:
            yield str(value["sent"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--keys", type=int, default=100_000, help="keys of 1 KiB each")
    parser.add_argument("--rate", type=int, default=5_000, help="records per second")
    parser.add_argument("--steady", type=float, default=15, help="seconds before each change, and after the last one")
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fill, change the parallelism twice under load; returns the latencies."""
    work = jobs.scratch()
    children: list[subprocess.Popen[str]] = []
    fill = 1.3 * options.keys / options.rate
    try:
        with KafkaBroker(work / "kafka") as broker:
            servers = broker.bootstrap_servers
            for topic in ("input", "output"):
                broker.create_topic(topic, partitions=kafka_jobs.PARTITIONS)
            env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, options.backend, options.set))
            env.set_parallelism(2)
            source = kafka_jobs.kafka_source(servers, "input", bounded=False)
            records = env.from_source(source, WatermarkStrategy.no_watermarks(), "input").map(Parse())
            counted = records.key_by(lambda record: record["user_id"]).process(Remember(50, 0))
            counted.sink_to(kafka_jobs.kafka_sink(servers, "output"))
            job = jobs.RunningJob(env, "live-rescale")
            job.until(lambda: bool(job.outcome.epochs))
            began = time.time()
            seconds = fill + (len(STEPS) + 1) * options.steady + 60
            shape = [options.rate, seconds, options.keys, 50, 0]
            children.append(child("generate", servers, *map(str, shape)))
            ends = began + fill + (len(STEPS) + 1) * options.steady + 30
            children.append(child("read", servers, str(ends), module="benchmarks.live_rescale"))
            job.until(lambda: job.records >= fill * options.rate)
            filled = time.time()
            state = job.client.metrics.snapshot().completed[-1].full_bytes
            job.until(lambda: time.time() > filled + options.steady)
            changes, took = [], []
            for parallelism in STEPS:
                changes.append(time.time())
                job.client.rescale(parallelism).result(300)
                took.append(round(time.time() - changes[-1], 2))
                job.until(lambda: time.time() > changes[-1] + options.steady)
            said = children[1].communicate()[0]
            job.client.cancel().result(120)
    finally:
        for each in children:
            each.kill()
        jobs.tidy(work)
    latencies = json.loads(said)
    last = changes[-1] + options.steady
    return {
        "label": f"holdfast-{options.backend}",
        "workload": "live_rescale",
        "rate": options.rate,
        "state_mb": round(state / 2**20),
        "rescale_s": took,
        "steady": measure.percentiles(sorted(latency for at, latency in latencies if filled + 2 < at < changes[0])),
        "rescaled": measure.percentiles(sorted(latency for at, latency in latencies if changes[0] < at < last)),
        "ok": True,
    }


def read(servers: str, until: str) -> None:
    """The reader's process: prints when each record was received, and its latency, as JSON."""
    print(json.dumps(list(received(servers, float(until), "output"))))


if __name__ == "__main__":
    read(*sys.argv[2:])
