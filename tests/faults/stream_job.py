"""The job of ``test_killed_spark_stream.py``: the rows of a streaming DataFrame, by key, to files.

It kills itself in the phase it is told. Arguments: the URI of a directory, the phase (empty: none), and whether Spark itself
runs the query (``spark``) or a model of it (``model``). `SETTINGS` names the variable with more settings of the job, and
`SESSION` the one with those of Spark's session, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from deaths import Death

from holdfast.checkpoint.log import CheckpointLog
from holdfast.common import Configuration, Encoder, Types, WatermarkStrategy
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink
from holdfast.spark import stream_source
from holdfast.spark.stream_source import SparkStreamEnumerator, SparkStreamSource
from holdfast.testing import InProcessEnvironment

sys.path.append(str(Path(__file__).parents[1]))
from engine.model_of_spark import COLUMNS, ModelOfSpark
from started_programs import QUICK_JVM

SETTINGS, SESSION = "STREAM_JOB_SETTINGS", "STREAM_JOB_SESSION"
BATCHES = {"model": 16, "spark": 4}
"""Three epochs each: more than the phases count, and few with Spark, which takes long for a batch."""
SIZE = 60
PHASES = {
    "before the rows of the first batch are stored": Death(SparkStreamEnumerator, "_store", False, 1),
    "the rows are stored, their list is not": Death(stream_source, "write_manifest", False, 1),
    "before the first checkpoint": Death(CheckpointLog, "complete", False, 1),
    "after the first checkpoint, amid the batch": Death(CheckpointLog, "complete", True, 1),
    "the list is stored": Death(stream_source, "write_manifest", True, 2),
    "before a checkpoint": Death(CheckpointLog, "complete", False, 4),
    "after a checkpoint": Death(CheckpointLog, "complete", True, 5),
    "before Spark may complete the batch": Death(SparkStreamEnumerator, "checkpoint_completed", False, 6),
    "after the rows are deleted": Death(SparkStreamEnumerator, "checkpoint_completed", True, 6),
    "before the function returns": Death(SparkStreamEnumerator, "take", True, 1),
    "before the rows of a later batch are stored": Death(SparkStreamEnumerator, "_store", False, 2),
    "before the end": Death(SparkStreamEnumerator, "close", False, 1),
}


def model(env: Any) -> Any:
    batches = [[(f"shop {n % 7}", n) for n in range(i * SIZE, (i + 1) * SIZE)] for i in range(BATCHES["model"])]
    source = SparkStreamSource(COLUMNS, ModelOfSpark(batches))
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "rows")


def on_spark(env: Any, directory: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.driver.extraJavaOptions", QUICK_JVM)
    spark = builder.config(map=json.loads(os.environ.get(SESSION, "{}"))).getOrCreate()
    reader = spark.readStream.schema("shop string, n long").option("maxFilesPerTrigger", 1)
    return env.from_spark_stream(
        reader.json(f"{directory}/in".replace("s3://", "s3a://")), trigger={"availableNow": True}, source_name="rows"
    )


def main(directory: str, phase: str, by: str) -> None:
    if phase:
        PHASES[phase].arm()
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", f"{directory}/checkpoints")
    configuration.set_string("holdfast.epoch.max-records", "25")
    for key, value in json.loads(os.environ.get(SETTINGS, "{}")).items():
        configuration.set_string(key, value)
    env = InProcessEnvironment(configuration).set_parallelism(2)
    rows = model(env) if by == "model" else on_spark(env, directory)
    lines = rows.key_by(lambda row: row.shop).map(lambda row: str(row.n), Types.STRING())
    sink = FileSink.for_row_format(f"{directory}/out", Encoder.simple_string_encoder())
    lines.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    env.execute("rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
