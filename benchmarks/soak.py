"""Whether anything grows over hours: ``python -m benchmarks.soak --hours 2``.

A job whose state and timers come and go, with checkpoints in an emulated object store. Samples the driver, its JVM, the
task slots, Spark's workers, the local disk and the requests of an epoch, and prints the growth of each from the first third
of the samples to the last; exits with 1 if any is more than its allowance.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.leaks import ALLOWED, growth, measure
from benchmarks.object_store import ObjectStore, asked_between, object_store
from holdfast.common import Configuration, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueState
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.runtime.driver.job import Job

_FORGOTTEN_MS = 20_000
_GROWTH = {
    **ALLOWED,
    "slots_rss_mb": 24.0,  # RocksDB's caches fill up
    "local_mb": 24.0,
    "writes_per_epoch": 0.5,
    "reads_per_epoch": 0.5,
}


class Recent(KeyedProcessFunction):
    """Counts the payments of a customer, and forgets one who is silent."""

    count = ValueState("count", Types.LONG())

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        """Count a payment, and set a timer."""
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + _FORGOTTEN_MS)
        return ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        """Forget the customer."""
        self.count.clear()
        return ()


def run(directory: Path, store: ObjectStore, rate: int, seconds: float, samples: int) -> Iterator[dict[str, float]]:
    """Run the job; yields a sample time after time."""
    from pyspark import SparkContext

    config = {
        "spark.master": "local[2]",
        "spark.local.dir": str(directory / "spark"),
        "spark.driver.memory": "512m",
        "io.tmp.dirs": str(directory / "disk"),
        "state.backend.type": "rocksdb",
        "rest.port": "0",
        **dict(each.split("=", 1) for each in store.settings(priced=False)),
        "execution.checkpointing.interval": "1 s",
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config)).set_parallelism(2)
    source = PaymentsSource(rate_per_second=rate)
    payments = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "payments")
    payments.key_by(lambda payment: payment["customer_id"]).process(Recent())
    client = env.execute_async("soak")
    assert isinstance(client, Job)
    began = time.monotonic()
    epochs, asked = 0, store.counts()
    for number in range(1, samples + 1):
        time.sleep(max(began + seconds * number / samples - time.monotonic(), 0))
        sample = measure(SparkContext._active_spark_context, directory)
        done, now = int(client.metrics.snapshot().values["numEpochs"]), store.counts()
        requests, many = asked_between(asked, now), max(done - epochs, 1)
        sample["writes_per_epoch"] = (requests.put + requests.list) / many
        sample["reads_per_epoch"] = (requests.get + requests.head) / many
        yield {"epochs": done, **sample}
        epochs, asked = done, now
    client.cancel().result(120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=50, help="payments a second")
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--delay-ms", type=float, default=30, help="of each request")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hfl-"))
    samples = []
    try:
        with object_store(options.delay_ms) as store:
            for sample in run(directory, store, options.rate, options.hours * 3600, options.samples):
                print(json.dumps({name: round(value, 2) for name, value in sample.items()}), flush=True)
                samples.append(sample)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    # During the first samples, pools and caches are still filling.
    grown = growth(samples[2:])
    too_much = [name for name, value in grown.items() if value > _GROWTH.get(name, sys.maxsize)]
    print(json.dumps({"growth": {name: round(value, 2) for name, value in grown.items()}, "too_much": too_much}))
    sys.exit(1 if too_much else 0)


if __name__ == "__main__":
    main()
