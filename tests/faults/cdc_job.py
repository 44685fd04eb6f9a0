"""The job of ``test_killed_cdc.py``: changes of a table, by key, to files and to a copy.

It kills itself in the phase it is told.

Arguments: the database's URL, a directory, and the phase (empty: none).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from holdfast.checkpoint.log import CheckpointLog
from holdfast.common import Configuration, Encoder, Types, WatermarkStrategy
from holdfast.connectors.postgres.enumerator import PostgresCdcEnumerator
from holdfast.connectors.postgres.reader import PostgresCdcReader
from holdfast.connectors.postgres.sink import _PostgresCommitter, _PostgresWriter
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
from holdfast.datastream.connectors.postgres import PostgresCdcSource, PostgresSink
from holdfast.testing import InProcessEnvironment

ORDERS = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.LONG()])
PHASES: dict[str, tuple[type, str, bool, int]] = {
    "slot: before it is made": (PostgresCdcEnumerator, "_create_slot", False, 1),
    "slot: after it is made": (PostgresCdcEnumerator, "_create_slot", True, 1),
    "snapshot: before a chunk is read": (PostgresCdcReader, "_in_snapshot", False, 2),
    "snapshot: before the checkpoint of a chunk": (CheckpointLog, "complete", False, 3),
    "snapshot: after the checkpoint of a chunk": (CheckpointLog, "complete", True, 3),
    "hand-over: the last chunk is complete": (PostgresCdcEnumerator, "_release", True, 1),
    "hand-over: before the slot is read": (PostgresCdcReader, "_open_log", False, 1),
    "log: amid a transaction": (PostgresCdcReader, "_elements", True, 7),
    "log: before the checkpoint": (CheckpointLog, "complete", False, 2),
    "log: after the checkpoint, before it may be confirmed": (PostgresCdcEnumerator, "checkpoint_completed", False, 2),
    "log: after it may be confirmed": (PostgresCdcEnumerator, "checkpoint_completed", True, 2),
    "sink: amid the rows": (_PostgresWriter, "_begin", True, 2),
    "sink: before it prepares": (_PostgresWriter, "prepare_commit", False, 3),
    "sink: after it has prepared": (_PostgresWriter, "prepare_commit", True, 3),
    "sink: before the commit": (_PostgresCommitter, "commit", False, 3),
    "sink: after the commit": (_PostgresCommitter, "commit", True, 3),
    "log: amid the range after the confirmation": (PostgresCdcReader, "_next", True, 9),
}
"""A function, whether the process dies after it, and in which call."""


def arm(phase: str) -> None:
    owner, name, after, calls = PHASES[phase]
    original: Callable[..., Any] = getattr(owner, name)
    made = 0

    def hooked(*arguments: Any, **named: Any) -> Any:
        nonlocal made
        made += 1
        if made == calls and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if made == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, hooked)


def main(url: str, directory: str, phase: str) -> None:
    if phase:
        arm(phase)
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", f"file://{directory}/checkpoints")
    env = InProcessEnvironment(configuration).set_parallelism(2)
    source: Any = PostgresCdcSource(url, {"public.orders": ORDERS}, "killed", chunk_size=20)
    changes = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders")
    lines = changes.key_by(lambda row: row.id).map(
        lambda row: json.dumps([row.get_row_kind().name, row.id, row.amount]), Types.STRING()
    )
    sink = FileSink.for_row_format(f"{directory}/out", Encoder.simple_string_encoder())
    lines.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    copy: Any = PostgresSink(url, "public.copy", ORDERS, primary_key=["id"])
    changes.key_by(lambda row: row.id).map(lambda row: row, ORDERS).sink_to(copy)
    env.execute("orders")


if __name__ == "__main__":
    main(*sys.argv[1:])
