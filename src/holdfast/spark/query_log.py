"""QueryLog, the checkpoint location of a query of Structured Streaming: which batches it has planned and completed.

<prefix>/offsets/<batch>     the batch is planned: a replay has the same offsets
<prefix>/commits/<batch>     the batch is completed, and never replayed
<prefix>/state/<operator>/<partition>/.../<batch + 1>.<kind>    the state after it
<prefix>/sources/            what the sources remember; a source goes on from the offsets of the last batch
"""

from __future__ import annotations

import json
import re
import uuid

from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import InputLost

__all__ = ["QueryLog"]

_STATE = re.compile(r"(\d+)(_[^.]*)?\.(delta|snapshot|zip|changelog)")
"""A file of a state store: the version, the number of batches that it has seen."""


class QueryLog:
    """A query's checkpoint location.

    Args:
        storage: Where it is. It must sign nothing, as Spark writes the files.
        prefix: Its directory, ending in ``/``.
    """

    def __init__(self, storage: Storage, prefix: str) -> None:
        self.storage = storage
        self.prefix = prefix

    def planned(self) -> set[int]:
        """The batches whose offsets are there; Spark keeps the last 100."""
        return self._numbers("offsets/")

    def completed(self) -> set[int]:
        """The batches that are completed; Spark keeps the last 100."""
        return self._numbers("commits/")

    def _numbers(self, directory: str) -> set[int]:
        names = (path.rpartition("/")[2] for path in self.storage.list(self.prefix + directory))
        return {int(name) for name in names if name.isdecimal()}

    def is_at(self, last: int) -> bool:
        """Whether the query goes on with, or replays, the batch after ``last`` at most.

        Raises:
            InputLost: it does not know batch ``last``.
        """
        completed = self.completed()
        ahead = max(completed, default=-1) > last
        if last >= 0 and last not in (completed if ahead else self.planned()):
            raise InputLost(
                f"Spark's checkpoint {self.storage.locate(self.prefix)} does not have batch {last}, with which the job goes "
                "on: it is gone, or older than the batches that Spark keeps (spark.sql.streaming.minBatchesToRetain). "
                "Restore a later checkpoint, or start afresh"
            )
        return not ahead

    def copy_until(self, last: int, to: QueryLog) -> None:
        """Copy the log as it was when batch ``last`` was completed; the query that goes on there gets an id of its own."""
        for path in self.storage.list(self.prefix):
            name = path[len(self.prefix) :]
            if name != "metadata" and _is_before(name, last):
                to.storage.put(to.prefix + name, self.storage.get(path))
        to.storage.put(f"{to.prefix}metadata", json.dumps({"id": str(uuid.uuid4())}).encode())


def _is_before(name: str, last: int) -> bool:
    """Whether a file of the log has been there when batch ``last`` was completed."""
    top, _, rest = name.partition("/")
    file = name.rpartition("/")[2]
    if file.startswith("."):  # checksums, which are made anew, and files that were being written
        return False
    if top in ("offsets", "commits"):
        return rest.isdecimal() and int(rest) <= last
    version = _STATE.fullmatch(file) if top == "state" else None
    return version is None or int(version[1]) <= last + 1
