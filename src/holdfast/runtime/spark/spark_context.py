"""The SparkContext of a job: the active one, or a new one."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.common.secrets import names_secret
from holdfast.errors import ConfigurationError
from holdfast.runtime.host.local_directory import spark_directory
from holdfast.runtime.host.shipping import is_local, portable
from holdfast.runtime.jvm.aot_cache import AotCache
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import Jvm, must_use_scripts, pass_on, scripts_environment, spark_jars, start_jvm, workers_find
from holdfast.runtime.jvm.pyspark_internals import active_context, ensure_initialized, has_gateway, launch_gateway
from holdfast.runtime.spark.numpy_arguments import convert_only_if_numpy_is_loaded

if TYPE_CHECKING:  # Java starts while Python imports PySpark
    from pyspark import SparkConf, SparkContext

__all__ = [
    "advise",
    "begin_spark",
    "jvm_process",
    "left_open",
    "local_settings",
    "refuse_connect",
    "spark_context",
    "started_settings",
    "without_bound",
]

log = logging.getLogger(__name__)

_LOG_SETTINGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
_OWN_ARCHIVE = ("-XX:SharedArchiveFile", "-XX:AOT", "-Xshare", "-XX:ArchiveClassesAtExit")
"""Options with which users configure a class archive of their own."""


_OPTIONS = "spark.driver.extraJavaOptions"
_COLLECTOR = "-XX:+UseParallelGC"
"""The garbage collector. Java's own choice, G1, takes a third more processor time to pass frames on."""
_ANY_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
PYTHON_DAEMON = "holdfast.runtime.spark.pyspark_daemon"
TEMPORARY_DIRECTORIES = "io.tmp.dirs"
_AUTHENTICATE, _SECRET, _SECRET_FILE = "spark.authenticate", "spark.authenticate.secret", "spark.authenticate.secret.file"
_EVENT_LOG = "spark.eventLog.enabled"
_QUICK: dict[str, tuple[str, tuple[int, int]]] = {
    "spark.ui.enabled": ("false", (4, 0)),
    "spark.broadcast.compress": ("false", (4, 0)),
    "spark.shuffle.compress": ("false", (4, 0)),
    "spark.shuffle.sort.bypassMergeThreshold": ("1", (4, 0)),
}
"""Settings that speed up short epochs, and the Spark release that introduced them."""
_FIRST_WORKERS = 2
"""Workers to start early. Few, because each takes a core that the start also needs."""
_known: weakref.WeakSet[SparkContext] = weakref.WeakSet()
"""Contexts that were started here."""
_advised: weakref.WeakSet[SparkContext] = weakref.WeakSet()
"""Contexts whose settings have been logged."""


@dataclass
class _Start:
    """A directly started JVM, with its AOT cache and Spark's settings."""

    settings: dict[str, str]
    jvm: Jvm
    cache: AotCache
    cached: bool
    """Whether it was started with the cache."""


_begun: _Start | None = None
"""The JVM that was started early."""


def refuse_connect(given: object, call: str) -> None:
    """Refuse a session of Spark Connect, or a DataFrame of such a session.

    Raises:
        ConfigurationError: it belongs to Spark Connect.
    """
    if ".connect." in type(given).__module__:
        what = "a session" if type(given).__name__ == "SparkSession" else "a DataFrame of a session"
        raise ConfigurationError(
            f"{call} got {what} of Spark Connect, which has no SparkContext for Holdfast to run on; take a session of "
            "SparkSession.builder.master(...), or let Spark Connect and a job exchange files: Parquet for a FileSource, and "
            "those of a FileSink"
        )


def _is_remote_client() -> bool:
    """Whether PySpark refuses to start a SparkContext because this process has a session of a remote Connect server."""
    return "SPARK_CONNECT_MODE_ENABLED" in os.environ and "SPARK_LOCAL_REMOTE" not in os.environ


def begin_spark(name: str, config: Mapping[str, str]) -> None:
    """Start the JVM early, for a later call of `spark_context`; returns at once.

    Does nothing if a JVM exists, if Spark's own scripts must start it, or if it cannot be started; `spark_context` will
    raise the error.
    """
    if _submitted_program() or _begun is not None or has_gateway() or _is_remote_client():
        return
    with contextlib.suppress(ConfigurationError), _interrupts_later():
        settings = _settings(name, config)
        if not must_use_scripts(settings, os.environ):
            _begin(settings)


def spark_context(name: str, config: Mapping[str, str]) -> SparkContext:
    """The active SparkContext, or a new one: local with all cores of the machine, unless ``spark.master`` is set.

    A new one gets all ``spark.*`` keys of the configuration, which override those of spark-submit. It has no SQL session,
    which takes seconds to start.

    Raises:
        ConfigurationError: this process has a session of Spark Connect, or Spark cannot be started.
    """
    from pyspark import SparkContext

    active = active_context()
    if active is not None:
        return active
    if _is_remote_client():
        raise ConfigurationError(
            "this process has a session of Spark Connect, beside which PySpark starts no SparkContext for the job to run "
            "on; run the job in a process of its own"
        )
    settings = _settings(name, config)
    convert_only_if_numpy_is_loaded()
    with _interrupts_later():
        if not has_gateway():
            ensure_initialized(_gateway(settings))
        context = SparkContext.getOrCreate(_conf(settings))
    _known.add(context)
    if jvm_process() is not None:
        threading.Thread(target=_start_workers, args=(context,), name="holdfast-workers", daemon=True).start()
    return context


def _start_workers(context: SparkContext) -> None:
    """Let a local Spark start its Python daemon and workers while the driver takes over the job."""
    from holdfast.runtime.spark.level_task import quicken  # after the start of Java

    def task(partition: int, items: Iterable[Any]) -> Iterator[Any]:
        quicken()
        return iter(())

    try:
        width = min(context.defaultParallelism, _FIRST_WORKERS)
        context.parallelize(range(width), width).mapPartitionsWithIndex(portable(task)).count()
    except Exception:  # the first epoch will meet the error again, and report it
        log.debug("Spark's workers could not be started early", exc_info=True)


def jvm_process() -> int | None:
    """The id of the JVM's process if it was started directly and runs all of Spark."""
    return _begun.jvm.pid if _begun is not None and is_local(_begun.settings["spark.master"]) else None


def _settings(name: str, config: Mapping[str, str]) -> dict[str, str]:
    given = _submitted() | {key: value for key, value in config.items() if key.startswith("spark.")}
    master = given.get("spark.master", "local[*,4]")
    # Workers run this Python, with its packages, unless the user configures another one.
    os.environ.setdefault("PYSPARK_PYTHON", config.get("python.executable", sys.executable))
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if workers_find(str(Path(__file__).parents[3])):
            given = {"spark.python.daemon.module": PYTHON_DAEMON, **given}
    settings = started_settings(master, config.get(TEMPORARY_DIRECTORIES, ""))
    if is_local(master) and _chooses_collector(given):
        settings[_OPTIONS] = settings[_OPTIONS].removeprefix(_COLLECTOR)  # a JVM refuses two collectors
    return {**settings, **given, "spark.app.name": name, "spark.master": master}


def _chooses_collector(given: Mapping[str, str]) -> bool:
    """Whether the user's own options of the JVM choose a garbage collector."""
    options = [given.get("spark.driver.defaultJavaOptions"), *map(os.environ.get, ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))]
    return any(_ANY_COLLECTOR.search(each) for each in options if each)


def left_open(settings: Mapping[str, str]) -> str:
    """What a Spark with these settings leaves open to other users, with the remedy; empty if nothing."""
    found = [each for each in (_open_ports(settings), _open_interface(settings), _open_events(settings)) if each]
    if not found:
        return ""
    remedies = ", and ".join(remedy for _, remedy in found)
    return f"{'; '.join(what for what, _ in found)}. {remedies[0].upper()}{remedies[1:]} (docs/security.md)"


def _open_interface(settings: Mapping[str, str]) -> tuple[str, str] | None:
    if settings.get("spark.ui.enabled", "true").lower() != "true" or settings.get("spark.ui.filters"):
        return None
    if "true" in (settings.get("spark.acls.enable", "").lower(), settings.get("spark.ui.acls.enable", "").lower()):
        return None  # a filter decides who is admitted; Spark's own platforms add one
    return "its web interface shows its settings and stack traces to whoever reaches it", "set spark.ui.enabled=false"


def _open_events(settings: Mapping[str, str]) -> tuple[str, str] | None:
    if not _logs_events(settings):
        return None
    directory = settings.get("spark.eventLog.dir", "file:///tmp/spark-events").removeprefix("file://")
    with contextlib.suppress(OSError):  # in an object store, or missing yet: its permissions are unknown
        if os.stat(directory).st_mode & 0o005:
            return f"other users can read its event log in {directory}", f"give {directory} mode 0700"
    return None


def _logs_events(settings: Mapping[str, str]) -> bool:
    return settings.get(_EVENT_LOG, "").lower() == "true"


def _open_ports(settings: Mapping[str, str]) -> tuple[str, str] | None:
    if settings.get(_AUTHENTICATE, "").lower() != "true":
        return (
            "its ports answer whoever reaches them: the job's plan with its secrets, and shuffle files, can be read, and "
            "code can be put in their place",
            f"set {_AUTHENTICATE}=true where Spark is started",
        )
    encrypted = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
    if is_local(settings.get("spark.master", "")) or any(settings.get(key, "").lower() == "true" for key in encrypted):
        return None
    return "its traffic can be read in the network", f"set {encrypted[0]}=true where Spark is started"


def without_bound(settings: Mapping[str, str]) -> str:
    """What a Spark with these settings writes without limit while a job runs, with the remedy; empty if nothing."""
    if not _logs_events(settings):
        return ""
    return (
        f"it writes an event log of about 5 KB for each subtask and epoch, without an end. Set {_EVENT_LOG}=false, "
        "or let the history server compact it (docs/deployment.md)"
    )


def advise(context: SparkContext) -> None:
    """Log once what a Spark leaves open, what it writes without limit, and how a given one would run short epochs faster."""
    if context in _advised:
        return
    _advised.add(context)
    settings = dict(context.getConf().getAll())
    if opening := left_open(settings):
        log.warning("This Spark is open: %s", opening)
    if growing := without_bound(settings):
        log.warning("This Spark fills its disk: %s", growing)
    if context in _known:
        return
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


def started_settings(master: str, temporary_directories: str) -> dict[str, str]:
    """The settings for a Spark that a job starts; see `local_settings`."""
    return local_settings(temporary_directories) if is_local(master) else _common_settings()


def _common_settings() -> dict[str, str]:
    return {
        "spark.ui.showConsoleProgress": "false",
        # The job has its REST API; Spark's UI would cost time in every epoch, and authenticates nobody.
        "spark.ui.enabled": "false",
        # One job per epoch, for months: old jobs must be cleaned up.
        "spark.cleaner.periodicGC.interval": "2min",
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "2000",
        # Frames and tasks are small and mostly stay on their host.
        "spark.shuffle.compress": "false",
        "spark.broadcast.compress": "false",
        # Spark reads them only to explain why a compressed or encrypted block is damaged.
        "spark.shuffle.checksum.enabled": "false",
        # Otherwise each shuffle task opens a file and creates a serializer per receiver: 3 ms per pair of subtasks.
        "spark.shuffle.sort.bypassMergeThreshold": "1",
    }


def local_settings(temporary_directories: str = "") -> dict[str, str]:
    """The settings of a local Spark, which serves no other user of the machine.

    Args:
        temporary_directories: The setting ``io.tmp.dirs``.

    Raises:
        ConfigurationError: another user could read or change the directory of Spark's files.
    """
    return {
        **_common_settings(),
        # Its ports on the loopback interface, which lead to the plan, broadcasts and shuffle files, are open to every user.
        # Spark creates the secret at each start; nobody else learns it.
        _AUTHENTICATE: "true",
        "spark.local.dir": spark_directory(temporary_directories).make(),
        "spark.locality.wait": "0s",
        # Unix sockets (spark.python.unix.domain.socket.enabled) are not used: a daemon that dies during its start may leave
        # Spark 4.3 without its path, and every later task of the JVM then fails. Java only moves frames: its optimising
        # compiler would occupy a core for half a minute and save little. Code that runs once per epoch would be interpreted
        # for the first 200 epochs; this compiles it after 60.
        _OPTIONS: (
            f"{_COLLECTOR} -XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.3 "
            f"-Dlog4j2.configurationFile=file:{_LOG_SETTINGS}"
        ),
    }


def _submitted_program() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted() -> dict[str, str]:
    """The options and files given to spark-submit; empty if it did not start this program."""
    if not _submitted_program():
        return {}
    from pyspark import SparkConf

    ensure_initialized()
    return dict(SparkConf().getAll())


def _conf(settings: Mapping[str, str]) -> SparkConf:
    from pyspark import SparkConf

    return SparkConf().setAll(list(_with_secret(settings).items()))


def _with_secret(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with the secret of a standalone cluster; Spark itself reads it from a file only on Kubernetes.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    path = settings.get(_SECRET_FILE)
    if path is None or not settings["spark.master"].startswith("spark://"):
        return dict(settings)
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"{_SECRET_FILE}: {path} cannot be read: {error.strerror}") from error
    return {key: value for key, value in settings.items() if key != _SECRET_FILE} | {_SECRET: secret}


def _gateway(settings: dict[str, str]) -> Any:
    """PySpark's gateway to a JVM: the one started early if it has the right settings."""
    global _begun
    reason = must_use_scripts(settings, os.environ)
    if reason:
        log.debug("Spark's own scripts start it, because of %s", reason)
        with _environment(scripts_environment(find_java(own_first=True))):
            return _by_scripts(settings)
    start, _begun = _begun, None
    if start is not None and not _same_jvm(start.settings, settings):
        start.jvm.end(0.0)
        start = None
    start = start or _begin(settings)
    try:
        gateway = start.jvm.connect()
    except ConfigurationError:
        if not start.cached:
            raise
        _begun = None
        cache, start = start.cache, _begin(settings, use_cache=False)
        gateway = start.jvm.connect()
        log.warning("Spark's JVM does not start with the AOT cache %s; deleting it", cache.path)
        cache.delete()
    _begun = start
    if not start.cached and not _has_own_archive(settings):
        start.cache.make_later()
    return gateway


def _begin(settings: dict[str, str], *, use_cache: bool = True) -> _Start:
    global _begun
    java = find_java(own_first=not is_local(settings["spark.master"]))
    cache = AotCache.of(java, spark_jars())
    options = cache.to_use() if use_cache and not _has_own_archive(settings) else []
    _begun = _Start(settings, start_jvm(java, settings, options), cache, bool(options))
    return _begun


def _same_jvm(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return all(one.get(key) == other.get(key) for key in {*one, *other} if key.startswith("spark.driver."))


def _has_own_archive(settings: Mapping[str, str]) -> bool:
    return any(option in settings.get("spark.driver.extraJavaOptions", "") for option in _OWN_ARCHIVE)


def _by_scripts(settings: Mapping[str, str]) -> Any:
    from pyspark import SparkConf

    # The command line, which every user of the machine can read, gets no secrets: they come with the context.
    shown = SparkConf().setAll([(key, value) for key, value in settings.items() if not names_secret(key)])
    reading, writing = os.pipe()
    said: collections.deque[bytes] = collections.deque(maxlen=20)
    threading.Thread(target=pass_on, args=(reading, said), name="holdfast-java-output", daemon=True).start()
    try:
        return launch_gateway(shown, {"stderr": writing})
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
    """Defer Ctrl-C to the end of the block: a JVM abandoned during its start would not end."""
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
        # PySpark's handler would cancel the running epoch; the job completes it first.
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
