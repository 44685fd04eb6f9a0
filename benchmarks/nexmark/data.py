"""Nexmark's events as lines of JSON, in files or in a Kafka topic.

Run ``python -m benchmarks.nexmark.data --events 1000000 --directory nexmark`` or ``--kafka localhost:9092 --topic nexmark``.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.measure import BENCH
from benchmarks.nexmark.events import Event
from benchmarks.nexmark.generator import Settings, events, part_of

SIDE_INPUT = "side_input.csv"
SIDE_ROWS = 10_000
_encode = msgspec.json.Encoder().encode


def part_paths(directory: Path, parts: int) -> list[Path]:
    """The files of a data set."""
    return [directory / f"events-{part}.json" for part in range(parts)]


def read_events(directory: Path, parts: int) -> Iterator[Event]:
    """The events of a data set, one file after the other: those of an auction in the order of the stream."""
    decode = msgspec.json.Decoder(Event).decode
    for path in part_paths(directory, parts):
        with open(path, "rb") as lines:
            yield from map(decode, lines)


def write_files(made: Iterable[Event], directory: Path, parts: int) -> None:
    """Write events to files, and the side input of q13 beside them."""
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(open(path, "wb", buffering=1 << 20)) for path in part_paths(directory, parts)]
        for event in made:
            files[part_of(event, parts)].write(_encode(event) + b"\n")
    write_side_input(directory / SIDE_INPUT)


def write_side_input(path: Path) -> None:
    """Write the side input: lines of key and value."""
    path.write_text("".join(f"{key},{key}\n" for key in range(SIDE_ROWS)))


def write_topic(made: Iterable[Event], bootstrap_servers: str, topic: str, **config: Any) -> None:
    """Write events to all partitions of an existing topic, with their times as the records' timestamps."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 20, **config})
    parts = len(producer.list_topics(topic, 30).topics[topic].partitions)
    failed: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)

    for event in made:
        record = {"value": _encode(event), "partition": part_of(event, parts), "timestamp": event.date_time}
        while True:
            try:
                producer.produce(topic, **record, on_delivery=delivered)
                break
            except BufferError:  # the producer's queue is full
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(60)
    if failed or left:
        raise SystemExit(f"{left + len(failed)} events were not written to {topic}: {failed[:1]}")


def data_set(count: int, parts: int = 2) -> Path:
    """The directory of so many events with the default settings; generates a missing one, once."""
    directory = BENCH / "data" / f"nexmark-{count}-{parts}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        try:
            write_files(events(Settings(), 0, count), made, parts)
            made.rename(directory)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return directory


def main() -> None:
    """Generate events to files or to Kafka."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark.data", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first event, to generate in several processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=int, default=10_000, help="events per second of event time")
    parser.add_argument("--out-of-order", type=int, default=1, help="events come out of order within groups of this size")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--parts", type=int, default=2, help="number of files")
    parser.add_argument("--kafka", metavar="BOOTSTRAP_SERVERS")
    parser.add_argument("--topic", default="nexmark")
    options = parser.parse_args()
    settings = Settings(options.seed, events_per_second=options.rate, out_of_order=options.out_of_order)
    made = events(settings, options.first, options.first + options.events)
    if options.directory is not None:
        write_files(made, options.directory, options.parts)
    elif options.kafka is not None:
        write_topic(made, options.kafka, options.topic)
    else:
        parser.error("give --directory or --kafka")


if __name__ == "__main__":
    main()
