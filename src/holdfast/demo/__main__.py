"""``python -m holdfast.demo``: runs the demo's job and shows it live. Ctrl-C stops it; the next start resumes."""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.common import Configuration, JobClient
from holdfast.connectors.datagen import SPLITS
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.demo import pipeline
from holdfast.demo.interrupt import Interrupt
from holdfast.demo.outputs import Tail, TopicTail, get_metrics, tail_files
from holdfast.demo.rules import RULES
from holdfast.demo.view import METRICS, Figures, view_for
from holdfast.errors import HoldfastError
from holdfast.rest.server import RestServer

if TYPE_CHECKING:
    from holdfast.demo.view import PlainView, RichView

__all__ = ["main"]

_INPUT, _ALERTS, _TOTALS = "demo-payments", "demo-alerts", "demo-totals"
_PARTITIONS = SPLITS
_OF_RULES = ("planted", "plantedInBursts", "caught", "falseAlerts", *(f"alerts.{rule}" for rule in RULES))
_REFRESH_S = 0.5
_BURST = 8
"""Payments in a planted burst."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Returns the exit status."""
    options = _options(arguments)
    directory = options.state_dir / ("cdc" if options.cdc else "kafka" if options.kafka else "embedded")
    directory.mkdir(parents=True, exist_ok=True)
    interrupt = Interrupt()
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        with view_for(sys.stdout) as view, contextlib.ExitStack() as stack:
            if options.cdc:
                from holdfast.demo import changes

                return changes.run(view, directory, options, interrupt)
            if options.kafka:
                client, alerts, totals = _start_on_kafka(stack, view, directory, options.rate)
            else:
                client, alerts, totals = _start_embedded(directory, options.rate)
            figures = _watch(client, view, alerts, totals, options.seconds, interrupt)
            view.note(_summary(figures, directory))
    except HoldfastError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m holdfast.demo", description="Live fraud alerts and payment totals.")
    add = parser.add_argument
    add("--kafka", action="store_true", help="from a Kafka topic to Kafka topics, on a broker that it starts")
    add(
        "--cdc",
        action="store_true",
        help="from a table to tables, in a PostgreSQL that it starts, while processes are killed",
    )
    add("--kill-every", type=float, default=10.0, help="cdc: seconds between two kills, about; 0: none (default 10)")
    add("--seconds", type=_positive, help="seconds after which the demo stops")
    add("--rate", type=_positive, help="payments a second (default 5000); cdc: changes a second (default 500)")
    add("--state-dir", type=Path, default=Path(".demo"), help="directory of checkpoints, logs and output (default .demo)")
    options = parser.parse_args(arguments)
    options.rate = options.rate or (500.0 if options.cdc else 5_000.0)
    return options


def _positive(text: str) -> float:
    number = float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be positive")
    return number


def _environment(directory: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(Configuration())
    pipeline.configure(env, directory)
    return env


def _start_embedded(directory: Path, rate: float) -> tuple[JobClient, Tail, Tail]:
    env = _environment(directory)
    alerts, totals = directory / "alerts", directory / "totals"
    payments = pipeline.generated_payments(env, rate)
    pipeline.build(env, payments, pipeline.file_sink(totals), pipeline.file_sink(alerts))
    tails = tail_files(alerts), tail_files(totals)
    return env.execute_async(pipeline.JOB_NAME), *tails


def _start_on_kafka(
    stack: contextlib.ExitStack, view: PlainView | RichView, directory: Path, rate: float
) -> tuple[JobClient, Tail, Tail]:
    from holdfast.testing.kafka import KafkaBroker

    env = _environment(directory)  # reports a missing Java before anything starts
    view.note("starting Kafka ...")
    broker = stack.enter_context(KafkaBroker(directory / "broker"))
    where = broker.bootstrap_servers
    for topic in {_INPUT, _ALERTS, _TOTALS} - set(broker.admin().list_topics(timeout=30).topics):
        broker.create_topic(topic, _PARTITIONS, retention_bytes=str(256 << 20), segment_bytes=str(32 << 20))
    view.note(f"Kafka is on {where}: {_INPUT} -> {_ALERTS}, {_TOTALS}")
    payments = pipeline.kafka_payments(env, where, _INPUT)
    pipeline.build(env, payments, pipeline.kafka_sink(where, _TOTALS), pipeline.kafka_sink(where, _ALERTS))
    tails = TopicTail(where, _ALERTS, _PARTITIONS), TopicTail(where, _TOTALS, _PARTITIONS)
    for tail in tails:
        stack.callback(tail.close)
    stack.enter_context(_producer(where, rate))
    return env.execute_async(pipeline.JOB_NAME), *tails


@contextlib.contextmanager
def _producer(bootstrap_servers: str, rate: float) -> Iterator[None]:
    command = [sys.executable, "-m", "holdfast.demo.producer", bootstrap_servers, _INPUT, str(rate)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _watch(
    client: JobClient, view: PlainView | RichView, alerts: Tail, totals: Tail, seconds: float | None, interrupt: Interrupt
) -> Figures:
    """Show the job until it ends, Ctrl-C or the time limit, then stop it."""
    figures = Figures()
    result = client.get_job_execution_result()
    deadline: float | None = None
    try:
        while not result.done() and not interrupt.seen:
            _update(figures, client)
            if deadline is None and seconds is not None and figures.metrics.get("numRecordsIn"):
                deadline = time.monotonic() + seconds
            figures.take_totals(totals())
            view.show(figures, figures.take_alerts(alerts()))
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(_REFRESH_S)
    except KeyboardInterrupt:
        pass
    if result.done():
        result.result()  # raises the job's error
        return figures
    view.note("stopping: the epoch in progress is completed ...")
    client.cancel().result()
    figures.status = "CANCELED"
    figures.take_totals(totals())
    view.show(figures, figures.take_alerts(alerts()))
    return figures


def _update(figures: Figures, client: JobClient) -> None:
    """Update the figures from the REST API over HTTP, as any client could."""
    figures.status = client.get_job_status().result().name
    server = RestServer.running()
    if server is None:
        return
    figures.url = f"{server.url}/jobs/{client.get_job_id()}/metrics"
    of_rules = [f"{pipeline.RULES_OPERATOR}.{name}" for name in _OF_RULES]
    values = get_metrics(figures.url, [*METRICS, *of_rules])
    if values is None:
        return
    figures.metrics = values
    rules = {name: int(values.get(f"{pipeline.RULES_OPERATOR}.{name}", 0)) for name in _OF_RULES}
    figures.planted = rules["planted"] + rules["plantedInBursts"] // _BURST
    figures.caught = rules["caught"]
    figures.false_alerts = rules["falseAlerts"]
    figures.by_rule = {rule: rules[f"alerts.{rule}"] for rule in RULES}


def _summary(figures: Figures, directory: Path) -> str:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    return (
        f"{int(figures.metrics.get('numRecordsIn', 0)):,} payments, {figures.alerts:,} alerts "
        f"(precision {share(figures.precision)}, recall {share(figures.recall)}), "
        f"{figures.total_lines:,} totals. Everything is kept in {directory}: start again to resume."
    )


if __name__ == "__main__":
    sys.exit(main())
