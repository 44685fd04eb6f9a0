"""SparkTableSink on Delta Lake: rows are appended and merged exactly once, also if the driver is killed behind a write.

`make smoke-delta` runs it in a fresh environment, with Delta Lake 4.0 and the PySpark that it is made for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
from with_packages import environment

from holdfast.common import Configuration, Types, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.connectors.spark import SparkTableSink
from holdfast.spark import table_sink

RECORDS = 300
KEYS = 7
PATIENCE_S = 900


def session() -> SparkSession:
    """A session with Delta's jars, which the first one fetches."""
    builder = SparkSession.builder.appName("delta").master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    builder.config("spark.sql.shuffle.partitions", "1").config("spark.databricks.delta.snapshotPartitions", "1")
    if jars := os.environ.get("DELTA_JARS"):  # they are here already
        return builder.config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar")))).getOrCreate()
    return configure_spark_with_delta_pip(builder).getOrCreate()


def killed_behind(write: str, directory: Path) -> None:
    """Let the driver kill itself once, when Delta has committed a checkpoint's rows and before the job knows it."""
    original, killed = getattr(table_sink._Write, write), directory / write

    def then_killed(self: Any, *arguments: Any) -> None:
        number = arguments[-1].checkpoint_id
        with open(directory / "calls", "a") as calls:
            calls.write(f"{write} {number}\n")
        original(self, *arguments)
        if not killed.exists() and number > 2:
            killed.write_text(str(number))
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(table_sink._Write, write, then_killed)


def run(directory: Path) -> None:
    """The job, in a driver of its own: all numbers in one table, the total of each key in another one."""
    for write in ("_append", "_merge"):
        killed_behind(write, directory)
    spark = session()
    totals = str(directory / "totals")
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{totals}` (key BIGINT, total BIGINT, rows BIGINT) USING delta")
    config = Configuration()
    for key, value in {
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "io.tmp.dirs": f"{directory}/local",
        "holdfast.epoch.max-records": "50",
        "rest.port": "0",
    }.items():
        config.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(config, spark).set_parallelism(2)
    numbers = env.from_source(NumberSequenceSource(0, RECORDS - 1), WatermarkStrategy.no_watermarks(), "numbers").uid(
        "numbers"
    )
    row = Types.ROW_NAMED(["key", "total", "rows"], [Types.LONG(), Types.LONG(), Types.LONG()])
    rows = numbers.map(lambda n: (n % KEYS, n, 1), Types.TUPLE([Types.LONG()] * 3)).uid("rows")
    one = Types.ROW_NAMED(["n"], [Types.LONG()])
    rows.map(lambda r: (r[1],), one).uid("each").sink_to(SparkTableSink(str(directory / "numbers"), "delta")).uid("appended")
    counted = (
        rows.key_by(lambda r: r[0]).reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2])).uid("totals").map(lambda r: r, row)
    )
    counted.uid("as rows").sink_to(SparkTableSink(totals, "delta", "merge", ["key"])).uid("merged")
    env.execute("delta")
    judge(spark, directory)


def judge(spark: SparkSession, directory: Path) -> None:
    """Compare the tables with a plain loop, and their histories with what was killed."""
    numbers = Counter(row.n for row in spark.read.format("delta").load(str(directory / "numbers")).collect())
    assert numbers == Counter(range(RECORDS)), sorted((numbers - Counter(range(RECORDS))).items())[:10]
    totals = {row.key: (row.total, row.rows) for row in spark.read.format("delta").load(str(directory / "totals")).collect()}
    own = {key: range(key, RECORDS, KEYS) for key in range(KEYS)}
    assert totals == {key: (sum(each), len(each)) for key, each in own.items()}, totals
    calls = Counter((directory / "calls").read_text().splitlines())
    for write, table, operation in (("_append", "numbers", "WRITE"), ("_merge", "totals", "MERGE")):
        assert calls[f"{write} {(directory / write).read_text()}"] == 2, f"delivered again: {calls}"
        history = spark.sql(f"DESCRIBE HISTORY delta.`{directory / table}`").collect()
        done, checkpoints = sum(row.operation == operation for row in history), sum(call.startswith(write) for call in calls)
        print(f"PySpark {pyspark.__version__}: {checkpoints} checkpoints, {calls.total()} calls, {done} times {operation}")
        assert done == checkpoints if write == "_append" else done > checkpoints, (
            "an append counts once, a merge is repeated"
        )


def main() -> None:
    """Run the job until it is through; two of its drivers are killed."""
    with tempfile.TemporaryDirectory(prefix="holdfast-delta-", ignore_cleanup_errors=True) as name:
        ends = []
        while not ends or ends[-1]:
            assert len(ends) < 3, f"the drivers end with {ends}"
            ends.append(subprocess.run([sys.executable, __file__, name], env=environment(), timeout=PATIENCE_S).returncode)
        assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0], ends


if __name__ == "__main__":
    run(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
