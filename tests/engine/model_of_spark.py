"""Structured Streaming, as far as a source sees it: a query in a thread, with its checkpoint location."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.spark.stored_rows import PartsWriter, WrittenPart

COLUMNS = pa.schema([("shop", pa.string()), ("n", pa.int64())])
Batch = Sequence[tuple[str, int]]


class ModelOfSpark:
    """A table, and the queries that read it: batch i has the rows ``batches[i]``, each time in another order and partition.

    A driver that dies leaves its query; the next start ends it, as the death of the process does.
    """

    def __init__(self, batches: Sequence[Batch], partitions: int = 2, stamps: bool = False) -> None:
        self.batches = batches
        self.partitions = partitions
        self.stamps = stamps
        self.queries: list[Query] = []
        self.completing: Callable[[int], object] = lambda number: None
        """Called before a batch is completed."""
        self.computing: Callable[[int], object] = lambda number: None
        """Called before the rows of a batch are computed."""

    def __call__(self, location: str, take: Any, ended: Any) -> Query:
        for query in self.queries:
            query.kill()
        made = Query(self, Path(urlsplit(location).path), take, ended)
        self.queries.append(made)
        made.thread.start()
        return made

    def locations(self) -> list[Path]:
        return [query.location for query in self.queries]


class Query:
    def __init__(self, spark: ModelOfSpark, location: Path, take: Any, ended: Any) -> None:
        self.spark = spark
        self.location = location
        self.thread = threading.Thread(target=self.run, daemon=True)
        self._take, self._ended = take, ended
        self._lock = threading.Lock()
        self._dead = False

    def run(self) -> None:
        error = None
        try:
            planned, completed = self.numbers("offsets"), self.numbers("commits")
            first = max(planned, default=-1)
            for number in range(max(0, first + (first in completed)), len(self.spark.batches)):
                self.note("offsets", number)
                attempt = len(self.spark.queries)
                self._take(functools.partial(self.written, number, attempt), number)
                self.note("commits", number)
        except Exception as failure:
            error = failure
        self._ended(error)

    def numbers(self, directory: str) -> set[int]:
        found = self.location / directory
        return {int(each.name) for each in found.iterdir()} if found.exists() else set()

    def note(self, directory: str, number: int) -> None:
        with self._lock:
            if self._dead:
                raise RuntimeError("the process is dead")
            if directory == "commits":
                self.spark.completing(number)
            path = self.location / directory / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def written(self, number: int, attempt: int, writer: PartsWriter) -> Iterable[WrittenPart]:
        self.spark.computing(number)
        rows = self.spark.batches[number]
        if not self.spark.stamps:
            rows = rows[attempt % 3 :] + rows[: attempt % 3]
        for partition in range(self.spark.partitions):
            own = rows[partition :: self.spark.partitions]
            if own:
                yield from writer.write(partition, [self.columns(own)])

    def columns(self, rows: Batch) -> Any:
        shops, numbers = zip(*rows, strict=True)
        columns = [pa.array(shops), pa.array(numbers, pa.int64())]
        return pa.RecordBatch.from_arrays(
            columns + columns[1:] * self.spark.stamps, names=["shop", "n", "time"][: 2 + self.spark.stamps]
        )

    def kill(self) -> None:
        with self._lock:
            self._dead = True

    def stop(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive(), "the query waits for a batch although it is stopped"
