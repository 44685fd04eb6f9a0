"""Latency of the other keys while one key has half of the load, and a function that is ten times slower for it.

From Kafka's timestamp to a read_committed reader, as in `latency`, three times: without the hot key, with it, and with it
and unaligned checkpoints. The function waits, as for a service; it needs no processor. Keys in the hot key's subtask
(``beside``) are measured apart from those in the other subtask (``others``). The ratios are to the run without the hot key.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Producer

from benchmarks import jobs, kafka_jobs
from benchmarks.latency import child
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedProcessFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.state.keys.key_groups import key_group
from holdfast.testing.kafka import KafkaBroker

HOT = "hot"
KEYS = 1000
PARALLELISM = 2
BESIDE = OutputTag("beside", Types.STRING())
VARIANTS = {"without skew": (False, False), "skew": (True, False), "skew, unaligned": (True, True)}
"""By name: with the hot key, and with unaligned checkpoints."""


def owner(key: str) -> int:
    """The subtask of a key."""
    return key_group(key, 128) * PARALLELISM // 128


class Wait(KeyedProcessFunction):
    """Waits for each record, ten times as long for the hot key; emits the input timestamps of all others."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: Any) -> Iterator[Any]:
        key, sent = value.split()
        self.count.update((self.count.value() or 0) + 1)
        time.sleep(self.seconds * 10 if key == HOT else self.seconds)
        if key == HOT:
            return
        if owner(key) == owner(HOT):
            yield BESIDE, sent
        else:
            yield sent


def generate(servers: str, rate: int, seconds: float, hot: bool) -> None:
    """The generator's process: ``rate`` records a second, half of them with the hot key."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 2})
    number, began = 0, time.time()
    while (passed := time.time() - began) < seconds:
        while number < passed * rate:
            key = HOT if hot and number % 2 else f"k{number * 7919 % KEYS}"
            producer.produce("input", f"{key} {time.time_ns() // 1_000_000}")
            number += 1
        producer.poll(0.002)
    producer.flush()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--rate", type=int, default=500, help="records per second")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--warm-up", type=float, default=15, help="seconds before latencies are measured")
    parser.add_argument("--wait-ms", type=float, default=0.2, help="the function's time for a record of another key")
    parser.add_argument("--backend", default="hashmap", choices=("rocksdb", "hashmap"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job in each variant; returns the latencies."""
    found = {name: _run(options, *variant) for name, variant in VARIANTS.items()}
    plain = found["without skew"]
    ratios = {
        which: {name: _ratios(figures[which], plain[which]) for name, figures in found.items()}
        for which in ("others", "beside")
    }
    return {"variants": found, "ratios": ratios, "rate": options.rate, "wait_ms": options.wait_ms, "workload": "skew"}


def _run(options: argparse.Namespace, hot: bool, unaligned: bool) -> dict[str, Any]:
    work = jobs.scratch()
    children: list[subprocess.Popen[str]] = []
    try:
        with KafkaBroker(work / "kafka") as broker:
            servers = broker.bootstrap_servers
            for topic in ("input", "others", "beside"):
                broker.create_topic(topic, partitions=kafka_jobs.PARTITIONS)
            env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, options.backend, options.set))
            env.set_parallelism(PARALLELISM)
            env.get_checkpoint_config().enable_unaligned_checkpoints(unaligned)
            source = kafka_jobs.kafka_source(servers, "input", bounded=False)
            records = env.from_source(source, WatermarkStrategy.no_watermarks(), "input")
            others = records.key_by(lambda record: record.split()[0]).process(Wait(options.wait_ms / 1000), Types.STRING())
            others.sink_to(kafka_jobs.kafka_sink(servers, "others"))
            others.get_side_output(BESIDE).sink_to(kafka_jobs.kafka_sink(servers, "beside"))
            client, outcome = jobs.start(env, "skew")
            while client.get_job_status().result().name != "RUNNING":
                time.sleep(0.05)
            begins = time.time()
            loaded, warm = begins + options.seconds, begins + options.warm_up
            children.append(
                child("generate", servers, str(options.rate), str(options.seconds), "hot" * hot, module="benchmarks.skew")
            )
            for topic in ("others", "beside"):
                children.append(child("read", servers, str(loaded + 3), str(warm), topic))
            latencies = [sorted(json.loads(each.communicate()[0])) for each in children[1:]]
            client.cancel().result()
    finally:
        for each in children:
            each.kill()
        jobs.tidy(work)
    epochs = [stats for when, stats in outcome.epochs if warm < when < loaded]
    waiting = [sum(s.channel_state for vertex in stats.vertices for s in vertex.subtasks) for stats in epochs]
    return {
        "others": _quantiles(latencies[0]),
        "beside": _quantiles(latencies[1]),
        "epoch_ms": round(statistics.median(stats.duration_ms for stats in epochs)),
        "channel_state_bytes": max(waiting, default=0),
    }


def _ratios(these: dict[str, int], those: dict[str, int]) -> dict[str, float]:
    return {name.removesuffix("_ms"): round(these[name] / those[name], 2) for name in ("p50_ms", "p99_ms")}


def _quantiles(latencies: list[float]) -> dict[str, int]:
    at = {f"p{100 * share:.0f}_ms": round(latencies[int(len(latencies) * share)]) for share in (0.5, 0.9, 0.99)}
    return {"samples": len(latencies), **at}


if __name__ == "__main__":
    generate(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), bool(sys.argv[5]))
