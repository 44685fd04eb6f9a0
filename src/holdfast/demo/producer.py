"""Writes generated payments to the input topic of ``--kafka``, in a separate process."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from dataclasses import replace

import orjson
from confluent_kafka import Producer

from holdfast.connectors.base import JobInfo, ReaderContext
from holdfast.connectors.datagen import SPLITS
from holdfast.demo.outputs import end_offsets
from holdfast.demo.pipeline import generator

__all__ = ["produce"]

_BATCH = 10_000


def produce(bootstrap_servers: str, topic: str, rate: float, stop: threading.Event) -> None:
    """Write payments until ``stop`` is set, one split to each of the topic's partitions.

    A split's offset in the topic is its position in the generator, so production continues there after any end.
    """
    done = end_offsets(bootstrap_servers, topic, SPLITS)
    source = generator(rate)
    job = JobInfo("producer", "producer", 1, None)
    enumerator = source.create_enumerator(job, "producer")
    first = min(offset * SPLITS + split for split, offset in done.items())
    enumerator.start({"next": first, "seed": source.seed, "customers": source.customers} if first else None)
    reader = source.create_reader(ReaderContext(job, "producer", 0, 1))
    settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 20, "log_level": 2}
    producer = Producer(settings)
    while not stop.is_set():
        planned = enumerator.plan(_BATCH)
        for part in planned.ranges:
            split = int(part.split.rpartition("-")[2])
            part = replace(part, start=max(part.start, done[split]))
            for batch in reader.read(part, _BATCH) if part.start < part.end else ():
                for payment in batch.values:
                    while True:
                        try:
                            key, value = payment["customer_id"], orjson.dumps(payment)
                            producer.produce(topic, value, key, split, timestamp=payment["ts_ms"])
                            break
                        except BufferError:
                            producer.poll(0.1)
        producer.poll(0)
        if not planned.backlog:
            enumerator.wait(0.05)
    producer.flush(10)


def main() -> None:
    """Produce until stdin closes (at the end of the parent process) or a signal arrives."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.demo.producer", description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("topic")
    parser.add_argument("rate", type=float)
    arguments = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo handles Ctrl-C, and then closes our stdin
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    produce(arguments.bootstrap_servers, arguments.topic, arguments.rate, stop)


if __name__ == "__main__":
    main()
