"""What a session of Spark Connect gets: one sentence, before a job starts."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import scripts_environment
from spark.test_scripts import SOURCES, start
from started_programs import output_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="pip install grpcio grpcio-status"),
]

PROGRAM = """
import os, subprocess, sys
from pyspark.sql import SparkSession
from holdfast.datastream.connectors.file_system import FileSource
from holdfast.datastream.operations.grouped_rows import group_by
from holdfast.errors import ConfigurationError
from holdfast.state_api import SavepointReader, SavepointWriter

def told(call):
    try:
        call()
        print("nothing")
    except ConfigurationError as error:
        print(error)

if len(sys.argv) > 1:
    SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    env.from_collection([1]).print()
    told(lambda: env.execute("beside a client"))
    raise SystemExit

spark = SparkSession.builder.remote("local[1]").getOrCreate()
frame, stream = spark.range(3), spark.readStream.format("rate").load()
told(lambda: StreamExecutionEnvironment.get_execution_environment(spark=spark))
told(lambda: env.from_spark(frame))
told(lambda: env.from_spark_stream(stream))
told(lambda: group_by(frame, "id"))
told(lambda: SavepointReader.read(spark, "file:///none"))
told(lambda: SavepointWriter.new_savepoint(spark))
sys.stdout.flush()
client = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_REMOTE"}
subprocess.run([sys.executable, "program.py", f"sc://{spark.client._builder.endpoint}"], env=client, check=True)
spark.stop()
"""
CALLS = (
    ("get_execution_environment()", "a session"),
    ("from_spark()", "a DataFrame of a session"),
    ("from_spark_stream()", "a DataFrame of a session"),
    ("from_spark()", "a DataFrame of a session"),  # of group_by
    ("SavepointReader.read()", "a session"),
    ("SavepointWriter.new_savepoint()", "a session"),
)


def a_session_of_spark_connect_is_refused_in_one_sentence_that_says_what_works(tmp_path: Path) -> None:
    java = {**scripts_environment(find_java()), "SPARK_TESTING": "1"}  # any free port
    path = os.pathsep.join([str(SOURCES), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    running = start(tmp_path, PROGRAM, PYTHONPATH=path, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", **java)
    out, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    *told, last = out.splitlines()
    assert len(told) == len(CALLS), out
    for sentence, (call, what) in zip(told, CALLS):
        assert sentence.startswith(
            f"{call} got {what} of Spark Connect, which has no SparkContext for Holdfast to run on; take a"
        )
        assert sentence.endswith("exchange files: Parquet for a FileSource, and those of a FileSink")
    assert last.startswith("this process has a session of Spark Connect, beside which PySpark starts no SparkContext")
