"""A streaming DataFrame whose files, checkpoints of Spark and of the job, and output are in S3: each row counts once.

`make smoke-s3a` runs it with the environment of the tests, an emulated S3 and Spark's `hadoop-aws`, which the first run
downloads (700 MB). The driver is killed in some phases of a batch, all of them by ``EFFORT=12``.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyspark
from moto.server import ThreadedMotoServer

from holdfast.testing.kafka_distribution import spark_jars

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "faults")]
import stream_job
from stream_job import BATCHES, PHASES, SESSION, SETTINGS, SIZE
from with_packages import environment

from effort import examples

BUCKET = "shop"


def hadoop_aws() -> str:
    """The package that fits PySpark's Hadoop."""
    (jar,) = spark_jars().glob("hadoop-client-api-*.jar")
    return f"org.apache.hadoop:hadoop-aws:{jar.stem.removeprefix('hadoop-client-api-')}"


def settings(endpoint: str) -> dict[str, str]:
    """The variables with the settings of the job and of its session."""
    keys = {"access-key": "access", "secret-key": "secret", "endpoint": endpoint, "path.style.access": "true"}
    names = {"access-key": "access.key", "secret-key": "secret.key"}
    session = {f"spark.hadoop.fs.s3a.{names.get(key, key)}": value for key, value in keys.items()}
    session |= {"spark.jars.packages": hadoop_aws(), "spark.hadoop.fs.s3a.endpoint.region": "us-east-1"}
    return {SESSION: json.dumps(session), SETTINGS: json.dumps({f"s3.{key}": value for key, value in keys.items()})}


def objects(s3: Any, prefix: str) -> Iterator[str]:
    """The keys below a prefix."""
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
        yield from (each["Key"] for each in page.get("Contents", []))


def main() -> None:
    """Kill the job in the phases, let it end, and count."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    s3 = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="access", aws_secret_access_key="secret"
    )
    s3.create_bucket(Bucket=BUCKET)
    for number in range(BATCHES["spark"]):
        rows = [{"shop": f"shop {n % 7}", "n": n} for n in range(number * SIZE, (number + 1) * SIZE)]
        s3.put_object(Bucket=BUCKET, Key=f"in/{number}.json", Body="\n".join(map(json.dumps, rows)))
    chosen = random.Random(os.environ.get("FAULT_SEED")).sample(sorted(PHASES), min(examples(3), len(PHASES)))
    variables = {**environment(), **settings(endpoint)}
    for phase in [*(each for each in PHASES if each in chosen), ""]:
        print(phase or "to the end", flush=True)
        command = [sys.executable, stream_job.__file__, f"s3://{BUCKET}", phase, "spark"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == (-signal.SIGKILL if phase else 0), done.stderr
    parts = [s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in objects(s3, "out/") if "/part-" in key]
    assert Counter(int(line) for part in parts for line in part.split()) == Counter(range(BATCHES["spark"] * SIZE))
    left = list(objects(s3, "checkpoints/rows/sources/"))
    kinds = {key.split("/")[4].partition("-")[0] for key in left}
    assert kinds == {"spark"}, f"Spark's checkpoints stay, stored rows do not: {left}"
    print(f"PySpark {pyspark.__version__}, {hadoop_aws()}: {BATCHES['spark'] * SIZE} rows, each once")


if __name__ == "__main__":
    main()
