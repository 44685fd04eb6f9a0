"""A session: every measurement in its own process, engines in interleaved rounds, all results recorded.

Without ``--peers``, only Holdfast is measured. At the end, the report is written (`benchmarks.report`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from benchmarks import measure, processors, report
from benchmarks.nexmark.digest import MEASURES as NEXMARK
from benchmarks.nexmark.one import FLINK, number
from benchmarks.operators import WORKLOADS as OPERATORS

ROCKSDB, HASHMAP = "rocksdb", "hashmap"
ONE_EPOCH = ["--set", "holdfast.epoch.target-duration=1 h", "--set", "holdfast.epoch.max-records=100000000"]
LONG = "u10k-8m"
"""Enough events that the first, short epochs do not matter."""
OPERATOR_DATA = {"async": "u10k-200k", "pattern": "u1k-50k"}
"""Async I/O waits, and Flink's CEP operator does some 1,500 events a second: both get less data."""
SMALL_CACHE = ["--set", "state.backend.cache.size=20mb"]
KNOBS: dict[str, tuple[str, ...]] = {
    "holdfast.epoch.target-duration": ("500 ms", "1 s", "5 s"),
    "holdfast.batch.records": ("256", "1024", "16384"),
    "holdfast.frame.records": ("256", "1024", "16384"),
}
"""Settings with an effect on every job, measured with 10,000 keys."""
STORE_KNOBS: dict[str, tuple[str, ...]] = {
    "state.backend.rocksdb.block.cache-size": ("64mb", "256mb"),
    "state.backend.rocksdb.writebuffer.size": ("8mb", "256mb"),
    "state.backend.rocksdb.use-bloom-filter": ("false",),
    "state.backend.rocksdb.thread.num": ("1", "4"),
    "state.backend.cache.size": ("60mb", "256mb"),
}
"""Settings with an effect on state larger than memory, measured with a million keys and a small cache."""
MOST_OF_NEXMARK = 1_000_000
"""The models hold all events in memory."""
SCENARIOS = (
    "stateful",
    "operators",
    "nexmark",
    "processors",
    "sliding",
    "async_io",
    "cdc",
    "kafka",
    "latency",
    "far",
    "start",
    "lone",
    "checkpointing",
    "memory",
    "zipf",
    "rough",
    "flat",
    "growth",
    "tuning",
    "restart",
    "metadata",
    "clipped",
    "large",
    "timers",
    "costs",
    "micro",
)
SLOW = ["--rate", "1000", "--users", "50000", "--emit-every", "1"]
THROTTLED = ["--store-ms", "30", "--throttled", "0.05"]
PRICED = ["--store-ms", "30", "--priced", "--at-least-once"]
LOG_IN_KAFKA = ["--store-ms", "30", "--log-in-kafka"]
LONG_ONES = ("flat", "growth", "restart", "timers")
REPEATED = ("stateful", "operators", "nexmark", "processors", "kafka", "far", "checkpointing", "memory", "zipf", "tuning")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--peers", action="store_true", help="also run Flink, PyFlink and Bytewax")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each throughput measurement")
    parser.add_argument("--events", default="2m", help="events of the stateful workloads, e.g. 200k for a quick look")
    parser.add_argument(
        "--short", action="store_true", help="far: one rate and three stores, for 15 s each; processors: 10,000 keys"
    )
    parser.add_argument("--only", nargs="*", choices=SCENARIOS, default=None, help="run only these measurements")
    parser.add_argument(
        "--session", default=time.strftime("%Y-%m-%d %H:%M"), help="the session's name; an existing session is extended"
    )
    parser.add_argument("--cap", type=float, default=300, help="seconds after which a run is stopped")


def run(options: argparse.Namespace) -> None:
    """Run a session and write the report."""
    chosen = options.only or SCENARIOS
    for scenario in chosen:
        rounds = options.rounds if scenario in REPEATED else 1
        for turn in range(rounds):
            for arguments in _runs(scenario, options):
                _say(f"[{scenario} {turn + 1}/{rounds}] {' '.join(arguments)}")
                figures = measure.holdfast(
                    arguments, options.cap * (4 if scenario in ("flat", "growth", "restart", "timers") else 1)
                )
                measure.record({"scenario": scenario, **figures}, options.session)
                _say("    " + json.dumps(_brief(figures)))
    report.write(options.session)


def _runs(scenario: str, options: argparse.Namespace) -> Iterator[list[str]]:
    """The commands of one round."""
    n = options.events
    if scenario == "stateful":
        for workload in ("fraud", "window"):
            for users in ("u10k", "u1m"):
                data = f"{users}-{n}"
                yield ["stateful", workload, data, "--backend", ROCKSDB]
                if options.peers:
                    yield ["peer", "flink-java-rocksdb", workload, data]
                yield ["stateful", workload, data, "--backend", HASHMAP]
                if options.peers:
                    yield ["peer", "flink-java-hashmap", workload, data]
                    # Bytewax with a million users, and PyFlink with 2,000,000 events, do not finish windows within minutes.
                    yield ["peer", "bytewax", workload, f"{users}-100k" if (workload, users) == ("window", "u1m") else data]
                    yield ["peer", "pyflink-thread-rocksdb", workload, f"{users}-50k"]
    elif scenario == "operators":
        for workload in OPERATORS:
            data = OPERATOR_DATA.get(workload, f"u10k-{n}")
            yield ["operators", workload, data]
            if options.peers:
                yield ["peer", "flink-java-rocksdb", workload, data]
    elif scenario == "nexmark":
        command = ["nexmark_query", "--events", str(min(number(n), MOST_OF_NEXMARK))]
        for query in NEXMARK:
            yield [*command, query]
            if options.peers:
                yield [*command, query, "--engine", FLINK]
    elif scenario == "processors":
        yield from processors.commands(short=options.short)
    elif scenario == "kafka":
        yield ["kafka", "fraud"]
        yield ["kafka", "upi"]
    elif scenario == "latency":
        for load in ([], SLOW):
            for shape in ([], ["--parallelism", "1"], ["--engine", "plain"]):
                yield ["latency", *load, *shape]
        yield ["latency", *SLOW, "--processor"]
        yield ["micro_batch"]
    elif scenario == "far":
        length = ["--seconds", "25" if options.short else "60", "--warm-up", "10", "--lone-records", "0"]
        stores = [[], *(["--store-ms", str(delay)] for delay in ((30,) if options.short else (10, 30, 80))), THROTTLED]
        for load in (SLOW,) if options.short else (SLOW, []):
            for store in (*stores, PRICED, LOG_IN_KAFKA):
                yield ["latency", *length, *load, *store]
    elif scenario == "start":
        yield ["start", *(["--peers"] if options.peers else [])]
    elif scenario == "checkpointing":
        yield ["stateful", "fraud", LONG]
        yield ["stateful", "fraud", LONG, *ONE_EPOCH]
    elif scenario == "memory":
        yield ["stateful", "fraud", f"u1m-{n}"]
        yield ["stateful", "fraud", f"u1m-{n}", *SMALL_CACHE]
    elif scenario == "zipf":
        for workload in ("fraud", "window"):
            yield ["stateful", workload, f"z1m-{n}"]
            if options.peers:
                yield ["peer", "flink-java-rocksdb", workload, f"z1m-{n}"]
    elif scenario == "rough":
        yield ["latency", "--rough", "--rate", "50000"]
    elif scenario == "tuning":
        for knobs, base in ((KNOBS, [LONG]), (STORE_KNOBS, [f"u1m-{n}", *SMALL_CACHE])):
            yield ["stateful", "fraud", *base]
            for key, values in knobs.items():
                for value in values:
                    yield ["stateful", "fraud", *base, "--set", f"{key}={value}"]
        for parallelism in ("4", "8"):
            yield ["stateful", "fraud", LONG, "--parallelism", parallelism]
    elif scenario == "flat":
        yield ["flat", f"u10k-{n}", "--epochs", "1000"]
    elif scenario == "growth":
        yield ["growth"]
        if options.peers:
            yield ["growth", "--engine", "flink-java"]
    elif scenario == "costs":
        yield ["costs", "stateful", "fraud", f"u10k-{n}"]
        yield ["costs", "kafka", "fraud"]
    else:
        yield [scenario]


def _brief(figures: dict[str, object]) -> dict[str, object]:
    names = ("events_per_s", "ok", "busy_s", "p50_ms", "p99_ms", "lone_epoch_ms", "warm_s", "cold_s",
             "spark_s", "flink_s", "ratio_2", "ratio_1", "local_kept_s", "local_deleted_s",
             "cpu_s", "load_before", "error")  # fmt: skip
    return {name: figures[name] for name in names if name in figures}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
