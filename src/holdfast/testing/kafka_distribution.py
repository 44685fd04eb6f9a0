"""Jars of Apache Kafka, and others of Maven's: fetched once with PySpark's Ivy, cached in ``~/.cache/holdfast``."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import ConfigurationError
from holdfast.runtime.jvm.java import Java

__all__ = ["KAFKA_VERSION", "fetch_jars", "fetch_kafka", "kafka_jars", "trusted_authorities"]

KAFKA_VERSION = "4.1.0"
_FETCH_TIMEOUT_S = 600.0
_TRUSTED_BY_SYSTEM = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))
"""The authorities that this system trusts, for Java, on Debian and on Fedora: the Java that pip installs knows only its own,
not that of a company's proxy."""


def cache_directory() -> Path:
    """The directory of downloaded distributions (honours ``XDG_CACHE_HOME``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def spark_jars() -> Path:
    """The directory of PySpark's jars."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise ConfigurationError(
            "Kafka's jars are downloaded with the Ivy in PySpark, which is missing: pip install pyspark"
        )
    return Path(pyspark.origin).parent / "jars"


def kafka_jars(java: Java, version: str = KAFKA_VERSION) -> list[str]:
    """The class path for this Kafka version.

    Kafka's own dependencies contain the logging API without a backend; PySpark provides the backend.
    """
    logging = sorted(p for pattern in ("slf4j-api-*.jar", "log4j-*.jar") for p in spark_jars().glob(pattern))
    return [*map(str, logging), *sorted(map(str, fetch_kafka(java, version).glob("*.jar")))]


def trusted_authorities() -> list[str]:
    """The option with which Java trusts the authorities that this system trusts; none if they are not in a form for Java."""
    return [f"-Djavax.net.ssl.trustStore={store}" for store in _TRUSTED_BY_SYSTEM if store.exists()][:1]


def fetch_kafka(java: Java, version: str = KAFKA_VERSION) -> Path:
    """Return the directory with this Kafka version's jars; downloads them once (about 43 MB, half a minute).

    Raises:
        ConfigurationError: the download failed; the message ends with Ivy's output.
    """
    return fetch_jars(java, "org.apache.kafka", "kafka_2.13", version, f"kafka-{version}")


def fetch_jars(java: Java, organisation: str, module: str, version: str, name: str | None = None) -> Path:
    """Return the directory with the jars of a module and of what it needs; downloads them once.

    Args:
        java: Runs Ivy.
        organisation: The module's group in Maven.
        module: Its name there.
        version: Its version.
        name: That of the directory, if it is not the module's and its version.

    Raises:
        ConfigurationError: the download failed; the message ends with Ivy's output.
    """
    jar = f"{module}-{version}.jar"
    target = cache_directory() / (name or f"{module}-{version}")
    if (target / jar).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}-", dir=target.parent) as scratch:
        jars = Path(scratch, "jars")
        command = [
            str(java.executable), *trusted_authorities(), "-cp", str(spark_jars() / "*"), "org.apache.ivy.Main",
            "-cache", str(Path(scratch, "ivy")), "-dependency", organisation, module, version,
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
            said = f"not finished within {_FETCH_TIMEOUT_S:g} s"
        if not (jars / jar).exists():
            raise ConfigurationError(
                f"{module} {version} could not be downloaded (make a Maven repository reachable, or put the jars into "
                f"{target} yourself). Ivy's last output:\n" + "\n".join(said.splitlines()[-15:])
            )
        try:
            jars.rename(target)
        except OSError:  # another process was faster, or an incomplete directory is in the way
            if not (target / jar).exists():
                shutil.rmtree(target, ignore_errors=True)
                jars.rename(target)
    return target
