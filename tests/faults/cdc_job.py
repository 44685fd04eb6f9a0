"""The job of ``test_killed_cdc.py``: changes of a table, by key, to files and to a copy.

It kills itself in the phase it is told.

Arguments: the database's URL, a directory, and the phase (empty: none).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from deaths import Death

from holdfast.checkpoint.log import CheckpointLog
from holdfast.common import Configuration, Encoder, Types, WatermarkStrategy
from holdfast.connectors.postgres.enumerator import PostgresCdcEnumerator
from holdfast.connectors.postgres.reader import PostgresCdcReader
from holdfast.connectors.postgres.sink import _PostgresCommitter, _PostgresWriter
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
from holdfast.datastream.connectors.postgres import PostgresCdcSource, PostgresSink
from holdfast.testing import InProcessEnvironment

ORDERS = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.LONG()])
PHASES = {
    "slot: before it is made": Death(PostgresCdcEnumerator, "_create_slot", False, 1),
    "slot: after it is made": Death(PostgresCdcEnumerator, "_create_slot", True, 1),
    "snapshot: before a chunk is read": Death(PostgresCdcReader, "_in_snapshot", False, 2),
    "snapshot: before the checkpoint of a chunk": Death(CheckpointLog, "complete", False, 3),
    "snapshot: after the checkpoint of a chunk": Death(CheckpointLog, "complete", True, 3),
    "hand-over: the last chunk is complete": Death(PostgresCdcEnumerator, "_release", True, 1),
    "hand-over: before the slot is read": Death(PostgresCdcReader, "_open_log", False, 1),
    "log: amid a transaction": Death(PostgresCdcReader, "_elements", True, 7),
    "log: before the checkpoint": Death(CheckpointLog, "complete", False, 2),
    "log: after the checkpoint, before it may be confirmed": Death(PostgresCdcEnumerator, "checkpoint_completed", False, 2),
    "log: after it may be confirmed": Death(PostgresCdcEnumerator, "checkpoint_completed", True, 2),
    "sink: amid the rows": Death(_PostgresWriter, "_begin", True, 2),
    "sink: before it prepares": Death(_PostgresWriter, "prepare_commit", False, 3),
    "sink: after it has prepared": Death(_PostgresWriter, "prepare_commit", True, 3),
    "sink: before the commit": Death(_PostgresCommitter, "commit", False, 3),
    "sink: after the commit": Death(_PostgresCommitter, "commit", True, 3),
    "log: amid the range after the confirmation": Death(PostgresCdcReader, "_next", True, 9),
}


def main(url: str, directory: str, phase: str) -> None:
    if phase:
        PHASES[phase].arm()
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
