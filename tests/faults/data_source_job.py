"""The job of ``test_killed_data_sources.py``: orders from one of PySpark's data sources by key to another one.

It kills itself in the phase it is told. Arguments: a directory, the phase (empty: none), and whether the job runs on Spark
(``spark``) or in this process (``here``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from deaths import Death
from orders_service import SHARDS, OrdersReader, OrdersService, OrdersWriter

from holdfast.checkpoint.log import CheckpointLog
from holdfast.common import Configuration, Types
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.spark import DataSourceSink
from holdfast.datastream.operations.batches import col
from holdfast.spark.python_source import OffsetsEnumerator
from holdfast.testing import InProcessEnvironment

sys.path.append(str(Path(__file__).parents[1]))
from awaiting import until

ORDERS = {"here": 2400, "spark": 600}
"""Of each shard."""
STEP = {"here": 20, "spark": 10}
ORDER = Types.ROW_NAMED(["shard", "n"], [Types.LONG(), Types.LONG()])
IN_DRIVER = {
    "before the first offset is told": Death(OffsetsEnumerator, "start", False, 1),
    "the first offsets are planned": Death(OffsetsEnumerator, "plan", True, 1),
    "before the first checkpoint": Death(CheckpointLog, "complete", False, 1),
    "after the first checkpoint": Death(CheckpointLog, "complete", True, 1),
    "before a checkpoint": Death(CheckpointLog, "complete", False, 3),
    "after a checkpoint": Death(CheckpointLog, "complete", True, 3),
    "before the sink commits": Death(OrdersWriter, "commit", False, 2),
    "amid the sink's commit": Death(OrdersWriter, "publish", False, 2),
    "after the sink's commit": Death(OrdersWriter, "commit", True, 2),
    "before the source commits": Death(OffsetsEnumerator, "checkpoint_completed", False, 2),
    "amid the source's commit": Death(OrdersReader, "forget", False, 1),
    "the source has committed": Death(OrdersReader, "commit", True, 2),
    "before the end": Death(OffsetsEnumerator, "close", False, 1),
}
IN_SUBTASKS = {
    "before an epoch is read": Death(OrdersReader, "read", False, 5),
    "before an epoch is written": Death(OrdersWriter, "write", False, 3),
    "an epoch is written": Death(OrdersWriter, "write", True, 3),
}
"""Of a job in one process, they are also deaths of its driver."""
PHASES = {**IN_DRIVER, **IN_SUBTASKS}


def main(directory: str, phase: str, by: str) -> None:
    if phase:
        PHASES[phase].arm()
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", f"file://{directory}/checkpoints")
    options = {"directory": directory, "orders": str(ORDERS[by]), "step": str(STEP[by])}
    made: Any = InProcessEnvironment if by == "here" else StreamExecutionEnvironment.get_execution_environment
    env = made(configuration).set_parallelism(2)
    orders = env.from_data_source(OrdersService(options)).uid("orders")
    keyed = orders.key_by(col("n")).map(lambda row: row, ORDER).uid("keyed")
    keyed.sink_to(DataSourceSink(OrdersService(options))).uid("stored")
    client = env.execute_async("orders")
    reader = OrdersReader(directory, ORDERS[by], STEP[by])
    everything = {str(shard): ORDERS[by] for shard in range(SHARDS)}
    until(lambda: reader.committed() == everything or client.get_job_status().result().is_terminal_state())
    client.cancel().result()


if __name__ == "__main__":
    main(*sys.argv[1:])
