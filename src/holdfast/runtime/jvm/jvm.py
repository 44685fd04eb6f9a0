"""Starts Spark's JVM directly, without the second JVM that Spark's scripts start to compute the command.

Only the scripts resolve packages, read Spark's configuration directory and support YARN; such programs still use them.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import os
import shlex
import shutil
import signal
import site
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.jvm.java import Java, home_for_scripts
from holdfast.runtime.jvm.pyspark_internals import launch_gateway

__all__ = ["Jvm", "must_use_scripts", "scripts_environment", "spark_home", "spark_jars", "start_jvm", "workers_find"]

log = logging.getLogger(__name__)

_START_S = 180.0
_POLL_S = 0.005
_MAIN = "org.apache.spark.api.python.PythonGatewayServer"
_OF_SCRIPTS = {"spark.app.name": "pyspark-shell", "spark.master": "local[*]"}
"""Spark's scripts set these for a program without them, and a session created later needs them."""
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip
"""Packages of java.base that Spark accesses by reflection, as in its own scripts."""
_SCRIPTS_KEYS = (
    "spark.jars", "spark.driver.extraClassPath", "spark.driver.extraLibraryPath", "spark.submit.", "spark.files",
    "spark.archives", "spark.kerberos.", "spark.yarn.", "spark.kubernetes.",
)  # fmt: skip
_SCRIPTS_VARIABLES = (
    "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH",
    "SPARK_DRIVER_MEMORY", "SPARK_MEM", "SPARK_TESTING",
)  # fmt: skip
_NOISE = (
    b"WARNING: Using incubator modules",
    b"WARNING: package sun.security.action not in java.base",
    b"NOTE: Picked up JDK_JAVA_OPTIONS",
)


def spark_home() -> str:
    """The directory of the Spark that PySpark starts."""
    if home := os.environ.get("SPARK_HOME"):
        return home
    package = find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    return os.path.dirname(package.origin)


def spark_jars() -> list[str]:
    """Spark's jars, in a stable order."""
    return sorted(map(str, Path(spark_home(), "jars").glob("*.jar")))


def must_use_scripts(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The key, variable or directory that requires Spark's scripts; empty if the JVM can be started directly."""
    master = settings.get("spark.master", "")
    if not master.startswith(("local[", "spark://")) and master != "local":
        return f"spark.master={master}"
    for name in _SCRIPTS_VARIABLES:
        if environ.get(name):
            return name
    configuration = Path(spark_home(), "conf")
    if configuration.is_dir() and any(not path.name.endswith(".template") for path in configuration.iterdir()):
        return str(configuration)
    return next((key for key in settings if key.startswith(_SCRIPTS_KEYS)), "")


def scripts_environment(java: Java) -> dict[str, str]:
    """The environment variables with which Spark's scripts run on this Java."""
    directory = tempfile.mkdtemp(prefix="holdfast-java-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return {"JAVA_HOME": str(home_for_scripts(java, Path(directory)))}


class Jvm:
    """A JVM that is starting or running; it ends with this process."""

    def __init__(self, java: Java, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._java = java
        self._directory = tempfile.mkdtemp(prefix="holdfast-jvm-")
        self._address = os.path.join(self._directory, "gateway")
        environment = {
            **environ,
            "SPARK_CONNECT_MODE": "0",
            "PYTHONHASHSEED": environ.get("PYTHONHASHSEED", "0"),  # the same for all workers, as in Spark's scripts
            "_PYSPARK_DRIVER_CONN_INFO_PATH": self._address,
        }
        reading, writing = os.pipe()
        self.said: collections.deque[bytes] = collections.deque(maxlen=20)
        """The last lines of its standard error."""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closing it ends the JVM
                stderr=writing,
                env=environment,
                preexec_fn=_ignore_interrupts,
            )
        except OSError as error:
            os.close(reading)
            shutil.rmtree(self._directory, ignore_errors=True)
            raise ConfigurationError(self._in_vain(error.strerror or str(error))) from error
        finally:
            os.close(writing)
        self._passing = threading.Thread(target=pass_on, args=(reading, self.said), name="holdfast-java-output", daemon=True)
        self._passing.start()
        self._answered = False
        atexit.register(self._discard)

    def _discard(self) -> None:
        """Kill a JVM that has no address yet: without its directory it could not report one, and would live on."""
        if not self._answered:
            self._process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        return self._process.pid

    def connect(self) -> Any:
        """Wait until the JVM answers; returns PySpark's gateway to it.

        Raises:
            ConfigurationError: it ended or does not answer.
        """
        port, secret = self._await_address()
        found = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        os.environ.update(found)  # PySpark finds a running JVM by this variable
        try:
            gateway = launch_gateway()
        finally:
            for name in found:
                del os.environ[name]
        gateway.proc = self._process
        return gateway

    def end(self, seconds: float) -> None:
        """End the JVM gracefully; kill it after a timeout in seconds."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _await_address(self) -> tuple[int, str]:
        until = time.monotonic() + _START_S
        try:
            while not os.path.exists(self._address):
                if self._process.poll() is not None:
                    self._passing.join(1.0)
                    said = next((line.decode(errors="replace").strip() for line in self.said if line.strip()), "no output")
                    raise ConfigurationError(self._in_vain(f"exit code {self._process.returncode}, {said}"))
                if time.monotonic() > until:
                    self._process.kill()
                    raise ConfigurationError(self._in_vain(f"no answer within {_START_S:g} s"))
                time.sleep(_POLL_S)  # the file is the only sign
            with open(self._address, "rb") as file:
                port, length = struct.unpack("!ii", file.read(8))
                self._answered = True
                return port, file.read(length).decode()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _in_vain(self, why: str) -> str:
        java = self._java
        remedy = "Set JAVA_HOME to another Java" + (", or unset it" if java.origin == "JAVA_HOME" else "")
        return f"Spark's JVM does not start on Java {java.version} ({java.origin}: {java.executable}): {why}. {remedy}"


def start_jvm(java: Java, settings: Mapping[str, str], options: Sequence[str] = ()) -> Jvm:
    """Start a JVM for Spark directly; returns at once.

    Args:
        java: The Java runtime.
        settings: Spark's settings; those about the JVM itself take effect here.
        options: Further options of the JVM.

    Raises:
        ConfigurationError: the executable does not run.
    """
    command = [
        str(java.executable),
        "-cp",
        os.pathsep.join(spark_jars()),
        f"-Xmx{settings.get('spark.driver.memory', '1g')}",
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "--enable-native-access=ALL-UNNAMED",
        *(["--sun-misc-unsafe-memory-access=allow"] if java.major >= 23 else []),
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        *(f"-D{key}={value}" for key, value in _OF_SCRIPTS.items()),
        *shlex.split(settings.get("spark.driver.defaultJavaOptions", "")),
        *shlex.split(settings.get("spark.driver.extraJavaOptions", "")),
        *options,
        _MAIN,
    ]
    local = settings.get("spark.master", "").startswith("local")
    home = {} if local and _workers_find_pyspark() else {"SPARK_HOME": spark_home()}
    return Jvm(java, command, {**os.environ, **home})


def _workers_find_pyspark() -> bool:
    """Whether Spark's workers can import the PySpark of this process.

    If Spark knows its home, they import it from an archive of sources there, and compile it each time: 1.3 s against 0.2 s.
    """
    return "SPARK_HOME" not in os.environ and workers_find(os.path.dirname(spark_home()))


def workers_find(directory: str) -> bool:
    """Whether the workers of a local Spark can import the packages in this directory."""
    path = [*site.getsitepackages(), site.getusersitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ.get("PYSPARK_PYTHON") == sys.executable and directory in path


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver


def pass_on(reading: int, said: collections.deque[bytes]) -> None:
    """Copy the JVM's standard error to ours, line by line, until it ends; keep the last lines in ``said``."""
    with open(reading, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                said.append(line)
                with contextlib.suppress(OSError):  # this process has no standard error
                    os.write(2, line)  # not sys.stderr, which a thread must not hold when the interpreter ends
