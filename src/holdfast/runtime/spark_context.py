"""The Spark that a job runs on: the active one, or one that is started."""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from holdfast.errors import ConfigurationError
from holdfast.runtime.aot_cache import AotCache
from holdfast.runtime.java import find_java
from holdfast.runtime.jvm import must_use_scripts, pass_on, scripts_environment, spark_jars, start_jvm
from holdfast.runtime.shipping import is_local

__all__ = ["advise", "local_settings", "spark_context"]

log = logging.getLogger(__name__)

_LONGEST_BASE = 40
_LOG_SETTINGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
_OWN_ARCHIVE = ("-XX:SharedArchiveFile", "-XX:AOT", "-Xshare", "-XX:ArchiveClassesAtExit")
"""Options of a user who has a class archive of his own."""


_QUICK: dict[str, tuple[str, tuple[int, int]]] = {
    "spark.python.unix.domain.socket.enabled": ("true", (4, 1)),
    "spark.ui.enabled": ("false", (4, 0)),
    "spark.broadcast.compress": ("false", (4, 0)),
    "spark.shuffle.compress": ("false", (4, 0)),
}
"""Settings that short epochs gain from, and the release of Spark that has them."""
_known: weakref.WeakSet[SparkContext] = weakref.WeakSet()
"""Sparks that were started here, or of whose settings was told."""


def spark_context(name: str, config: Mapping[str, str]) -> SparkContext:
    """The active Spark, or a new one: local, with as many cores as the machine has, unless ``spark.master`` is set.

    All ``spark.*`` keys of the configuration reach a new one, before those of spark-submit. It has no SQL session, which
    takes seconds to start.
    """
    active = SparkContext._active_spark_context
    if active is not None:
        return active
    given = _submitted() | {key: value for key, value in config.items() if key.startswith("spark.")}
    master = given.get("spark.master", "local[*,4]")
    # The workers are this Python, with its packages, unless the user says otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", config.get("python.executable", sys.executable))
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {**(local_settings() if is_local(master) else _common_settings()), **given}
    settings |= {"spark.app.name": name, "spark.master": master}
    with _interrupts_later():
        if SparkContext._gateway is None:
            SparkContext._ensure_initialized(gateway=_gateway(settings))
        context = SparkContext.getOrCreate(_conf(settings))
    _known.add(context)
    return context


def advise(context: SparkContext) -> None:
    """Log once which settings would make short epochs quicker on a Spark that Holdfast has not started."""
    if context in _known:
        return
    _known.add(context)
    settings = dict(context.getConf().getAll())
    missing = [
        f"{key}={value}"
        for key, (value, since) in _QUICK.items()
        if settings.get(key, "").lower() != value and _release(context.version) >= since
    ]
    if missing:
        log.info(
            "This Spark would run short epochs quicker with %s. Set that where the session is made; docs/deployment.md says "
            "what it is worth",
            ", ".join(missing),
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _common_settings() -> dict[str, str]:
    return {
        "spark.ui.showConsoleProgress": "false",
        # One job an epoch for months: the past must go away by itself.
        "spark.cleaner.periodicGC.interval": "2min",
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "2000",
        # Frames and tasks are small, and mostly stay on their host.
        "spark.shuffle.compress": "false",
        "spark.broadcast.compress": "false",
    }


def local_settings() -> dict[str, str]:
    """The settings of a Spark on this machine alone."""
    return {
        **_common_settings(),
        "spark.locality.wait": "0s",
        # The job has its REST API; what Spark gathers for its own pages costs every epoch, and the start.
        "spark.ui.enabled": "false",
        # Spark 4.1 and later: between the JVM and its workers, instead of TCP.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": _socket_directory(),
        # Java only passes frames on. Its optimising compiler would take a core for the first half minute to save little.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=file:{_LOG_SETTINGS}",
    }


def _socket_directory() -> str:
    """A new directory that nobody else can enter, with a path that leaves room in a socket's address for Spark's names."""
    base = tempfile.gettempdir()
    directory = tempfile.mkdtemp(prefix="holdfast-", dir=base if len(os.fsencode(base)) <= _LONGEST_BASE else "/tmp")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _submitted() -> dict[str, str]:
    """What spark-submit was told, by options and files; nothing if it did not start this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _conf(settings: Mapping[str, str]) -> SparkConf:
    return SparkConf().setAll(list(settings.items()))


def _gateway(settings: Mapping[str, str]) -> Any:
    """A new JVM, and PySpark's gateway to it."""
    reason = must_use_scripts(settings, os.environ)
    local = is_local(settings["spark.master"])
    java = find_java(own_first=bool(reason) or not local)
    if reason:
        log.debug("Spark is started by its own scripts, because of %s", reason)
        with _environment(scripts_environment(java)):
            return _by_scripts(settings)
    cache = AotCache.of(java, spark_jars())
    archived = any(option in settings.get("spark.driver.extraJavaOptions", "") for option in _OWN_ARCHIVE)
    options = [] if archived else cache.to_use()
    try:
        gateway = start_jvm(java, settings, options).connect()
    except ConfigurationError:
        if not options:
            raise
        gateway = start_jvm(java, settings).connect()
        log.warning("Spark's JVM does not start with the AOT cache %s, which is deleted", cache.path)
        cache.delete()
    if not options and not archived:
        cache.make_later()
    return gateway


def _by_scripts(settings: Mapping[str, str]) -> Any:
    reading, writing = os.pipe()
    said: collections.deque[bytes] = collections.deque(maxlen=20)
    threading.Thread(target=pass_on, args=(reading, said), name="holdfast-java-output", daemon=True).start()
    try:
        return launch_gateway(_conf(settings), {"stderr": writing})
    finally:
        os.close(writing)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: a JVM left alone in its start would live on by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def later(number: int, frame: Any) -> None:
        came.append(number)

    before = signal.signal(signal.SIGINT, later)
    try:
        yield
    finally:
        # Not PySpark's handler, which would cancel the epoch: it is completed before the job ends.
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
