"""The suite's command line: every sub-command measures one thing and prints its figures as a line of JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

COMMANDS = {
    "stateful": "fraud, window or pass on CSV files",
    "kafka": "FraudCounter or upi_per_minute from Kafka to Kafka, exactly once",
    "latency": "from Kafka's input to a read_committed reader at a constant rate",
    "start": "from a program's start to its first result, cold and warm, beside plain PySpark and Flink",
    "lone": "an epoch that has next to nothing to do, beside a plain PySpark job of as many stages",
    "flat": "cost per event, memory, threads and files over many epochs",
    "growth": "cost per event while the state grows to 10 GB",
    "restart": "kill -9 with a large state, and the time to the first new result",
    "metadata": "bytes that the checkpoints of 1,000 keyed subtasks write beside their state",
    "timers": "20 million timers a day ahead: registered, restored after kill -9, and fired, and in how much memory",
    "clipped": "bytes that a subtask reads to restore one eighth of another's key groups",
    "costs": "where a microsecond per event goes",
    "micro": "state operations, encodings, timers, framing, merge, against the stored baseline",
    "peer": "one run of another engine",
    "suite": "a whole session in interleaved rounds, recorded; then the report",
    "report": "docs/benchmarks.md from the recorded results",
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


MODULES = {"kafka": "kafka_jobs", "peer": "peers.run"}
"""Where a sub-command is not in the module of its name."""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
