"""The job of `benchmarks.latency` in other engines, exactly once: the processes that run in its place."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks import kafka_jobs, measure
from benchmarks.object_store import ObjectStore
from benchmarks.peers.run import FLINK_VERSION, class_path, flink_java
from holdfast.runtime.jvm.java import find_java
from holdfast.testing.kafka_distribution import KAFKA_VERSION, fetch_jars

__all__ = ["ENGINES", "start"]

_CONNECTOR_VERSION = "4.0.1-2.0"
ENGINES = ("kafka-streams", "flink")


def start(servers: str, work: Path, options: argparse.Namespace, store: ObjectStore | None) -> subprocess.Popen[str]:
    """Start the job of ``options.engine``.

    Args:
        servers: Those of Kafka.
        work: A directory for its files.
        options: Those of `benchmarks.latency`.
        store: Where Flink's checkpoints and changelogs are; None: in a directory.
    """
    command = {"kafka-streams": _streams, "flink": _flink}[options.engine](servers, work, options, store)
    with (work / f"{options.engine}.log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, text=True, env=measure.environment(), cwd=work)


def _streams(servers: str, work: Path, options: argparse.Namespace, store: ObjectStore | None) -> Sequence[str]:
    """Its state is in topics: there is no store."""
    jars = f"{fetch_jars(find_java({}), 'org.apache.kafka', 'kafka-streams', KAFKA_VERSION)}/*"
    numbers = [options.parallelism, options.emit_every, kafka_jobs.PARTITIONS, options.pace_ms]
    path = class_path("StreamsLatency", jars)
    return ["java", "-cp", path, "StreamsLatency", servers, str(work / "state"), *map(str, numbers)]


def _flink(servers: str, work: Path, options: argparse.Namespace, store: ObjectStore | None) -> Sequence[str]:
    """On RocksDB, with its changelog."""
    java = find_java({})
    connector = fetch_jars(java, "org.apache.flink", "flink-connector-kafka", _CONNECTOR_VERSION)
    place = f"file://{work}" if store is None else "s3://checkpoints"
    settings = [
        f"execution.checkpointing.interval={options.pace_ms} ms",
        f"execution.checkpointing.dir={place}/flink",
        "execution.checkpointing.incremental=true",
        "state.backend.type=rocksdb",
        "state.changelog.enabled=true",
        "state.changelog.storage=filesystem",
        f"state.changelog.dstl.dfs.base-path={place}/changelog",
    ]
    if store is not None:
        (work / "plugins").mkdir()
        (work / "plugins" / "s3").symlink_to(fetch_jars(java, "org.apache.flink", "flink-s3-fs-hadoop", FLINK_VERSION))
        settings += [*store.settings(priced=False)[1:], "s3.path.style.access=true"]
    arguments = [servers, str(options.parallelism), str(options.emit_every), *settings]
    return flink_java("FlinkLatency", arguments, f"{connector}/*")
