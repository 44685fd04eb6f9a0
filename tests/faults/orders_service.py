"""Two services on files, with a data source of PySpark: one has orders and forgets what is committed, one stores orders."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

__all__ = ["SHARDS", "OrdersReader", "OrdersService", "OrdersWriter", "numbers"]

SHARDS = 3


def numbers(offset: dict[str, int]) -> list[int]:
    """The orders below an offset."""
    return [int(shard) * 1_000_000 + n for shard, end in offset.items() for n in range(end)]


def put(path: Path, content: Any) -> None:
    """Write a file as a whole."""
    fresh = path.with_name(f".{path.name}-{uuid.uuid4()}")
    fresh.write_text(json.dumps(content))
    fresh.rename(path)


class OrdersService(DataSource):
    """Orders of a directory: ``shard``, ``n``. Options: ``directory``, ``orders`` of each shard, ``step`` of an epoch."""

    @classmethod
    def name(cls) -> str:
        return "orders"

    def schema(self) -> str:
        return "shard long, n long"

    def streamReader(self, schema: Any) -> OrdersReader:
        return OrdersReader(self.options["directory"], int(self.options["orders"]), int(self.options["step"]))

    def streamWriter(self, schema: Any, overwrite: bool) -> OrdersWriter:
        return OrdersWriter(self.options["directory"])


class Shard(InputPartition):
    """Orders of a shard between two offsets."""

    def __init__(self, shard: int, start: int, end: int) -> None:
        self.shard, self.start, self.end = shard, start, end


class OrdersReader(DataSourceStreamReader):
    """Reads orders; those that are committed it has no more."""

    def __init__(self, directory: str, orders: int, step: int) -> None:
        self.directory = Path(directory)
        self.orders, self.step = orders, step

    def committed(self) -> dict[str, int]:
        """The offset up to which the service has forgotten its orders."""
        path = self.directory / "committed.json"
        return json.loads(path.read_text()) if path.exists() else {str(shard): 0 for shard in range(SHARDS)}

    def initialOffset(self) -> dict[str, int]:
        return {str(shard): 0 for shard in range(SHARDS)}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return {shard: min(at + self.step, self.orders) for shard, at in start.items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Shard(int(shard), at, end[shard]) for shard, at in start.items()]

    def read(self, partition: Any) -> Any:
        forgotten = self.committed()[str(partition.shard)]
        if partition.start < forgotten:
            raise LookupError(f"shard {partition.shard} begins at {forgotten}, and {partition.start} is asked for")
        yield from ((partition.shard, n) for n in range(partition.start, partition.end))

    def commit(self, end: dict[str, int]) -> None:
        stored = {number for path in (self.directory / "out").glob("[0-9]*.json") for number in json.loads(path.read_text())}
        missing = set(numbers(end)) - stored
        if missing:  # the checkpoint with this offset is not complete, or its output not visible
            put(self.directory / "too-early.json", sorted(missing))
            os._exit(3)
        self.forget(end)

    def forget(self, end: dict[str, int]) -> None:
        put(self.directory / "committed.json", end)


class Written(WriterCommitMessage):
    """A file that is not visible yet."""

    def __init__(self, path: str) -> None:
        self.path = path


class OrdersWriter(DataSourceStreamWriter):
    """Writes hidden files, whose orders become visible by the id of their batch."""

    def __init__(self, directory: str) -> None:
        self.out = Path(directory, "out")
        self.out.mkdir(exist_ok=True)

    def write(self, iterator: Any) -> Written:
        path = self.out / f".part-{uuid.uuid4()}"
        put(path, [row.shard * 1_000_000 + row.n for row in iterator])
        return Written(str(path))

    def commit(self, messages: Any, batchId: int) -> None:
        orders = sorted(number for each in messages for number in json.loads(Path(each.path).read_text()))
        visible = self.out / f"{batchId}.json"
        if visible.exists():
            assert json.loads(visible.read_text()) == orders, f"other rows in batch {batchId}"
        self.publish(visible, orders)

    def publish(self, path: Path, orders: list[int]) -> None:
        put(path, orders)

    def abort(self, messages: Any, batchId: int) -> None:
        pass
