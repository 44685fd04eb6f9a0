"""Runs one query of Nexmark on one engine, from files to a digest of the result, which is compared with the model's.

The rate is per core: events divided by the processor time of all the engine's processes, from half of the input on, when JIT
compilers and caches are warm.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import jobs, measure
from benchmarks.nexmark.catalog import QUERIES
from benchmarks.nexmark.data import data_set, part_paths, read_events
from benchmarks.nexmark.digest import MEASURES, TOTALS, DigestSink, expected
from benchmarks.nexmark.streams import EventSchema, times
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat

HOLDFAST, FLINK = "holdfast-rocksdb", "flink-java-rocksdb"
PARTS = 2
_UNITS = {"k": 1_000, "m": 1_000_000}


def number(text: str) -> int:
    """A number of events such as ``500k``."""
    unit = _UNITS.get(text[-1:].lower())
    return int(text) if unit is None else int(float(text[:-1]) * unit)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one run."""
    parser.add_argument("query", choices=MEASURES)
    parser.add_argument("--engine", choices=(HOLDFAST, FLINK), default=HOLDFAST)
    parser.add_argument("--events", default="1m", help="number of events, e.g. 500k")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--cap", type=float, default=300, help="seconds after which Flink is stopped")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run one query on one engine; returns its figures."""
    count = number(options.events)
    directory = data_set(count, PARTS)
    if options.engine == FLINK:
        figures = _on_flink(options.query, directory, count, options.cap)
    else:
        figures = _on_holdfast(options.query, directory, count, options.set)
    want = _expected(options.query, directory)
    got = figures.pop("digest", None)
    ok = got == want and figures["events"] == count
    return {
        "label": options.engine,
        "workload": options.query,
        "data": f"nexmark-{count}",
        **figures,
        "rows": want[0],
        "ok": ok,
        **({} if ok else {"got": got, "want": want}),
    }


def _expected(query: str, directory: Path) -> list[int]:
    """The model's digest, computed once for a data set."""
    path = directory / f"expected-{query}.json"
    if not path.exists():
        path.write_text(json.dumps(expected(query, list(read_events(directory, PARTS)))))
    want: list[int] = json.loads(path.read_text())
    return want


def _on_holdfast(query: str, directory: Path, count: int, extra: Sequence[str]) -> dict[str, Any]:
    work = jobs.scratch()
    usage = measure.Usage()
    spent: list[tuple[int, dict[str, float]]] = []

    def each(stats: Any) -> None:
        usage.sample(measure.this_process())
        spent.append(((spent[-1][0] if spent else 0) + stats.records_in, usage.by_role()))

    try:
        settings = ["pipeline.object-reuse=true", f"holdfast.epoch.max-records={count // 5}", *extra]
        env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, "rocksdb", settings))
        env.set_parallelism(PARTS)
        paths = [str(path) for path in part_paths(directory, PARTS)]
        source = FileSource.for_record_stream_format(StreamFormat.json_lines(EventSchema()), *paths).build()
        QUERIES[query].program(env.from_source(source, times(), "events")).sink_to(DigestSink(query))
        outcome = jobs.run(env, f"nexmark-{query}", each)
    finally:
        jobs.tidy(work)
    read, cpu = measure.second_half(spent)
    return {**outcome.summary(), "events_per_cpu_s": round(read / sum(cpu.values())), "digest": list(TOTALS[query])}


def _on_flink(query: str, directory: Path, count: int, cap_s: float) -> dict[str, Any]:
    from benchmarks.peers.run import rates, run_flink_java

    done, got = run_flink_java("FlinkNexmark", query, "rocksdb", directory, count, cap_s)
    if got is None:
        raise SystemExit(f"Flink failed: {done.output[-2000:]}")
    return {
        **rates(got),
        "digest": [got["rows"], got["checksum"]],
    }
