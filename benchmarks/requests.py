"""Requests of a job to an object store, counted at the store: what a checkpoint takes, and what a month costs."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from benchmarks import jobs, measure
from benchmarks.object_store import asked_between, dollars_a_month, object_store
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.metrics.requests import KINDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--subtasks", type=int, default=2)
    parser.add_argument("--rate", type=int, default=1_000, help="records a second")
    parser.add_argument("--seconds", type=float, default=60, help="of the measurement")
    parser.add_argument("--delay-ms", type=float, default=30, help="of each request")
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


class Counted(KeyedProcessFunction):
    """Counts the payments of a merchant."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        """Count a payment."""
        self.count.update((self.count.value() or 0) + 1)
        return []


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job for some seconds; returns its requests by kind, for a checkpoint and a month."""
    os.environ["PYTHONPATH"] = measure.environment()["PYTHONPATH"]  # of Spark's workers
    work = jobs.scratch()
    try:
        with object_store(options.delay_ms) as store:
            settings = [*store.settings(priced=True), *options.set]
            env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, options.backend, settings))
            env.set_parallelism(options.subtasks)
            source = PaymentsSource(rate_per_second=options.rate)
            payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments")
            payments.key_by(lambda payment: payment["merchant_id"]).process(Counted()).sink_to(jobs.Discard())
            job = jobs.RunningJob(env, "requests")
            job.until(lambda: job.records > 5 * options.rate)
            before, first, began = store.counts(), _epochs(job), time.perf_counter()
            time.sleep(options.seconds)
            after, last, seconds = store.counts(), _epochs(job), time.perf_counter() - began
            told = job.client.metrics.snapshot().values["storageCostPerMonth"]
            job.client.cancel().result(120)
    finally:
        jobs.tidy(work)
    epochs = last - first
    asked = asked_between(before, after)
    return {
        "subtasks": options.subtasks,
        "rate": options.rate,
        "delay_ms": options.delay_ms,
        "checkpoints_s": round(epochs / seconds, 2),
        "of_a_checkpoint": {kind: round(getattr(asked, kind) / max(epochs, 1), 2) for kind in KINDS},
        "dollars_a_month": round(dollars_a_month(asked, seconds), 2),
        "dollars_a_month_told": round(told, 2),
        "load": round(os.getloadavg()[0], 1),
        "ok": True,
    }


def _epochs(job: jobs.RunningJob) -> int:
    return int(job.client.metrics.snapshot().values["numEpochs"])
