"""Apache Kafka's jars: fetched once by the Ivy that PySpark ships, kept under ``~/.cache/holdfast``."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import ConfigurationError
from holdfast.runtime.java import Java

__all__ = ["KAFKA_VERSION", "class_path", "fetch_kafka"]

KAFKA_VERSION = "4.1.0"
_FETCH_TIMEOUT_S = 600.0


def cache_directory() -> Path:
    """Where downloaded distributions are kept (``XDG_CACHE_HOME`` is honoured)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def spark_jars() -> Path:
    """Where PySpark keeps its jars."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise ConfigurationError("Kafka's jars are fetched by the Ivy in PySpark, which is missing: pip install pyspark")
    return Path(pyspark.origin).parent / "jars"


def class_path(java: Java, version: str = KAFKA_VERSION) -> str:
    """The class path to run that Kafka version with.

    Kafka's own dependencies bring the logging API but nothing that writes a log; PySpark has the missing part.
    """
    logging = sorted(p for pattern in ("slf4j-api-*.jar", "log4j-*.jar") for p in spark_jars().glob(pattern))
    return os.pathsep.join([*map(str, logging), f"{fetch_kafka(java, version)}/*"])


def fetch_kafka(java: Java, version: str = KAFKA_VERSION) -> Path:
    """The directory with the jars of that Kafka version, downloaded (about 43 MB, half a minute) if it is not there.

    Raises:
        ConfigurationError: the download failed; ends with Ivy's own words.
    """
    target = cache_directory() / f"kafka-{version}"
    if (target / f"kafka_2.13-{version}.jar").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"kafka-{version}-", dir=target.parent) as scratch:
        jars = Path(scratch, "jars")
        command = [
            str(java.executable), "-cp", str(spark_jars() / "*"), "org.apache.ivy.Main",
            "-cache", str(Path(scratch, "ivy")), "-dependency", "org.apache.kafka", "kafka_2.13", version,
            "-confs", "default", "-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_FETCH_TIMEOUT_S,
                check=False,
            )
            said = done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired:
            said = f"no end within {_FETCH_TIMEOUT_S:g} s"
        if not (jars / f"kafka_2.13-{version}.jar").exists():
            raise ConfigurationError(
                f"Kafka {version} could not be downloaded (a Maven repository must be reachable, or put its jars into "
                f"{target} yourself). Ivy's last words:\n" + "\n".join(said.splitlines()[-15:])
            )
        try:
            jars.rename(target)
        except OSError:  # somebody else was quicker; or a half-made directory is in the way
            if not (target / f"kafka_2.13-{version}.jar").exists():
                shutil.rmtree(target, ignore_errors=True)
                jars.rename(target)
    return target
