"""The suite's command line: every sub-command runs one measurement and prints its figures as a line of JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

COMMANDS = {
    "stateful": "fraud, window or pass on CSV files",
    "plain_loop": "the functions of fraud or window in a plain loop: the limit of such a program",
    "operators": "sessions, interval join, deduplication, enrichment, top-N, CEP or async I/O on CSV files",
    "nexmark": "Nexmark's queries beside Flink in Java, in interleaved rounds, as a table",
    "nexmark_query": "one of Nexmark's queries on one engine",
    "kafka": "FraudCounter or upi_per_minute from Kafka to Kafka, exactly once",
    "latency": "latency from Kafka's input to a read_committed reader, at a constant rate",
    "micro_batch": "the latency of Spark's own micro-batches: transformWithState in Python",
    "processors": "a StatefulProcessor in PySpark's transformWithState and in Holdfast's; or rows of a DataFrame into a job",
    "skew": "latency of the other keys while one key has half of the load and a function ten times slower",
    "start": "time from a program's start to its first result, cold and warm, compared with plain PySpark and Flink",
    "lone": "a nearly empty epoch, compared with a plain PySpark job of as many stages",
    "flat": "cost per event, memory, threads and files over many epochs",
    "growth": "cost per event while the state grows to 10 GB, on Holdfast or Flink",
    "largestate": "cost per event in the local store alone while it grows, and RocksDB's compaction",
    "restart": "time to the first new result after kill -9, with a large state",
    "savepoints": "savepoints of N GB written and read through the State Processor API: time and memory",
    "recovery": "time to restore the state of a subtask: from files, from its changelog, from a local copy",
    "alive": "processor time to restore 40,000 keys with timers after 1.2 million changes",
    "arriving": "recovery from an object store: time to the first result while files are being fetched, or after it",
    "volume": "a state of N GB: bytes written by an epoch, bytes and time of a recovery and of another parallelism",
    "rescale": "the pause of a running job when its parallelism changes",
    "live_rescale": "latency of the results while a running job with 100 MB of state changes its parallelism",
    "watched": "throughput with ten open dashboards, compared with none",
    "width": "an epoch's cost in driver, tasks and Spark as the subtasks grow: 8, 32, 128, 512",
    "requests": "requests to an object store that a checkpoint takes, counted there, and what a month costs",
    "metadata": "metadata bytes per checkpoint of 1,000 keyed subtasks",
    "large": "cost of changing a map of a million entries and a long list",
    "timers": "20 million timers a day ahead: registered, restored after kill -9, fired; and the memory they need",
    "cdc": "rows of PostgreSQL: snapshot, log, lag, one large transaction and its memory; rows written to a table",
    "clipped": "bytes read to restore one eighth of another subtask's key groups",
    "sliding": "windows of an hour that slide by a minute, beside windows of a minute",
    "async_io": "async I/O with answers after 10 ms, beside plain asyncio",
    "patterns": "probing payments before a large one: as a pattern, and written by hand with state and timers",
    "costs": "CPU time per event, by activity",
    "micro": "state operations, encodings, timers, frames and merge, compared with the stored baseline",
    "pairs": "this tree against another one in interleaved pairs: parts of micro, or stateful jobs",
    "peer": "one run of another engine",
    "suite": "a whole session in interleaved rounds, recorded, with a report",
    "report": "write docs/benchmarks.md from the recorded results",
}


def main(arguments: list[str]) -> int:
    """Run a sub-command; without one, the suite."""
    if not arguments or (arguments[0].startswith("--") and arguments[0] != "--help"):
        arguments = ["suite", *arguments]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    chosen = arguments[0]
    for name, help_text in COMMANDS.items():
        sub = commands.add_parser(name, help=help_text)
        if name == chosen:
            module = importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")
            module.add_arguments(sub)
    options = parser.parse_args(arguments)
    figures = module.run(options)
    if figures is not None:
        print(json.dumps({"command": chosen, **figures}), flush=True)
    return 0


MODULES = {"kafka": "kafka_jobs", "peer": "peers.run", "nexmark": "nexmark.session", "nexmark_query": "nexmark.one"}
"""Modules of sub-commands whose name differs."""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
