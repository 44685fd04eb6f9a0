"""The command doctor: checks what a job needs on this machine, each with its remedy."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.text import Text

from holdfast.checkpoint.ids import LogPosition
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.log_settings import LOG_TOPIC, log_in_topic
from holdfast.checkpoint.stores.storage import Storage, storage_options
from holdfast.cli.app import FAILED, AsJson, CommandFailed, command
from holdfast.cli.drivers import Driver, running_jobs
from holdfast.cli.options import Settings, parse_settings
from holdfast.cli.output import console, print_json, size, table, working
from holdfast.common.config_options import CheckpointingOptions
from holdfast.compiled import MODULES, PURE, use
from holdfast.errors import HoldfastError
from holdfast.runtime.driver.job_registry import user_directory
from holdfast.runtime.host.local_directory import state_directory
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import spark_jars
from holdfast.runtime.plan.settings import JobSettings
from holdfast.runtime.spark.spark_context import left_open, started_settings

__all__ = ["Finding", "Verdict", "findings"]

_MEMORY_OF_SPARK = 1 << 30
_MEMORY_OF_SUBTASK = 700 << 20
_LEAST_DISK = 2 << 30
_KAFKA_TIMEOUT_S = 5.0
_ROUNDS = 10
"""Requests of each kind that the storage is asked."""
_CHECKPOINT = 20 << 10
"""Bytes of a small checkpoint."""


class Verdict(str, Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    """Jobs run, but something to know."""
    FAILED = "failed"
    """Jobs that need it do not run."""


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


@command(interrupted="Interrupted; nothing was changed.")
def doctor(
    kafka: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Check that these brokers answer.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Check that checkpoints can be stored here, e.g. s3://bucket/checkpoints."),
    ] = None,
    settings: Settings = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", "-p", min=1, help="Subtasks to plan memory for; default: the cores.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Check this machine: Python, Java, Spark, memory, disk, ports, Kafka and storage, with a remedy for each fault."""
    config = parse_settings(settings)
    with working("looking", json):
        found = list(findings(config, kafka, storage, parallelism or os.cpu_count() or 1))
    if json:
        print_json([asdict(finding) for finding in found])
    else:
        styles = {Verdict.OK: ("✓", "green"), Verdict.WARNING: ("!", "yellow"), Verdict.FAILED: ("✗", "red")}
        rows = []
        for finding in found:
            mark, style = styles[finding.verdict]
            rows.append((Text(mark, style), Text(finding.check), Text(finding.found)))
            if finding.remedy:
                rows.append((Text(""), Text(""), Text(f"→ {finding.remedy}", style)))
        console.print(table(["", "", ""], rows))
    if any(finding.verdict is Verdict.FAILED for finding in found):
        raise typer.Exit(FAILED)


def findings(config: dict[str, str], kafka: str | None, storage: str | None, parallelism: int) -> Iterator[Finding]:
    """The results of all checks.

    Args:
        config: Settings under Flink's keys.
        kafka: Brokers to look for.
        storage: A checkpoint storage to try.
        parallelism: The number of subtasks to have memory for.
    """
    directories = (Path(state_directory(config.get("io.tmp.dirs", ""), "doctor").trusted), Path(tempfile.gettempdir()))
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("Python", _python),
        ("Compiled modules", _compiled),
        ("Java", _java),
        ("Spark", lambda: _spark(config)),
        ("Memory", lambda: _memory(parallelism)),
        *((f"Disk {path}", lambda path=path: _disk(path)) for path in dict.fromkeys(directories)),
        ("User directory", _user_directory),
        ("Port", lambda: _port(config.get("rest.port", "8081"))),
        ("Kafka", lambda: _kafka(kafka)),
        ("Storage", lambda: _storage(storage or config.get("execution.checkpointing.dir"), config)),
    ]
    for name, check in checks:
        try:
            yield check()
        except (HoldfastError, OSError, ValueError) as error:
            yield Finding(name, Verdict.FAILED, str(error))


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if (3, 10) <= sys.version_info[:2] < (3, 14) and sys.platform == "linux":
        return Finding("Python", Verdict.OK, f"{found}, {sys.executable}")
    return Finding("Python", Verdict.FAILED, f"{found} on {sys.platform}", "Use Python 3.10 to 3.13 on Linux")


def _compiled() -> Finding:
    if not use.reason:
        return Finding("Compiled modules", Verdict.OK, f"{len(MODULES)} modules of the hot path are used")
    found = f"not used, so jobs need more processor time: {use.reason}"
    remedy = f"In the repository: make setup. Elsewhere: unset {PURE}, install a C compiler, and reinstall Holdfast"
    return Finding("Compiled modules", Verdict.WARNING, found, remedy)


def _java() -> Finding:
    java = find_java()
    return Finding("Java", Verdict.OK, f"{java.version} of {java.origin}, {java.executable}")


def _spark(config: Mapping[str, str]) -> Finding:
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return Finding("Spark", Verdict.FAILED, "PySpark is not installed", "pip install 'pyspark>=4.0,<4.4'")
    if not (4, 0) <= tuple(map(int, found.split(".")[:2])) < (4, 4):
        return Finding("Spark", Verdict.FAILED, f"PySpark {found}", "pip install 'pyspark>=4.0,<4.4'")
    core = next((Path(jar) for jar in spark_jars() if Path(jar).name.startswith("spark-core_")), None)
    if core is None:
        return Finding("Spark", Verdict.FAILED, "PySpark has no jars", "pip install --force-reinstall pyspark")
    master = config.get("spark.master", "local")
    own = started_settings(master, config.get("io.tmp.dirs", ""))
    if opening := left_open({**own, **config, "spark.master": master}):
        problem, _, remedy = opening.partition(". ")
        return Finding("Spark", Verdict.WARNING, f"{found}, {core.parent}; {master}: {problem}", remedy)
    return Finding("Spark", Verdict.OK, f"{found}, {core.parent}")


def _memory(parallelism: int) -> Finding:
    available = _available_memory()
    wanted = _MEMORY_OF_SPARK + parallelism * _MEMORY_OF_SUBTASK
    found = f"{size(available)} free; a job with {parallelism} subtasks may take {size(wanted)}"
    if available >= wanted:
        return Finding("Memory", Verdict.OK, found)
    return Finding(
        "Memory", Verdict.WARNING, found, "Lower the parallelism or state.backend.cache.size (default 256mb a subtask)"
    )


def _available_memory() -> int:
    """The memory that new processes may take: of the machine, or of the container if that is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return min(available, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no limit
        return available


def _disk(path: Path) -> Finding:
    name = f"Disk {path}"
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free
    if not os.access(path, os.W_OK):
        return Finding(name, Verdict.FAILED, "cannot be written", "Set io.tmp.dirs to a directory of yours on a local disk")
    if free < _LEAST_DISK:
        remedy = "Make space, or set io.tmp.dirs to a directory on another local disk"
        return Finding(name, Verdict.WARNING, f"{size(free)} free", remedy)
    return Finding(name, Verdict.OK, f"{size(free)} free")


def _user_directory() -> Finding:
    return Finding("User directory", Verdict.OK, f"{user_directory().make()}, open to this user only")


def _port(configured: str) -> Finding:
    port = int(configured) if configured.isdecimal() else 65536
    if port > 65535:
        return Finding(
            "Port", Verdict.FAILED, f"rest.port is {configured!r}", "Set it to a number from 1024 to 65535; 0: any free port"
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return Finding("Port", Verdict.OK, f"{port} is free for the dashboard and the REST API")
        except PermissionError:
            return Finding("Port", Verdict.FAILED, f"{port} is privileged", "Set rest.port to a port from 1024 on")
        except OSError:
            jobs = [job.name for job in running_jobs() if job.driver.url.endswith(f":{port}")]
    if jobs:
        return Finding(
            "Port", Verdict.OK, f"{port} is used by the driver of {', '.join(jobs)}; the next driver takes another"
        )
    try:
        Driver(f"http://localhost:{port}", "", timeout=2).get("/overview")
        owner = "another user's driver"
    except CommandFailed:
        owner = "another program"
    found = f"{port} is used by {owner}; a driver takes the next free port"
    return Finding("Port", Verdict.WARNING, found, "Set rest.port if the address must stay the same")


def _kafka(brokers: str | None) -> Finding:
    if find_spec("confluent_kafka") is None:
        verdict = Verdict.FAILED if brokers else Verdict.WARNING
        return Finding("Kafka", verdict, "the client is not installed", "pip install 'holdfast[kafka]', if you use Kafka")
    if brokers is None:
        return Finding("Kafka", Verdict.OK, f"client {version('confluent-kafka')}; --kafka HOST:PORT checks brokers")
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": brokers, "log_level": 0}, logger=None)  # the finding says what failed
    try:
        found = client.list_topics(timeout=_KAFKA_TIMEOUT_S)
    except KafkaException as error:
        said = error.args[0].str()
        remedy = "Check the address and the broker; `holdfast kafka` starts one on localhost:9092 for development"
        return Finding("Kafka", Verdict.FAILED, f"{brokers} does not answer: {said}", remedy)
    return Finding("Kafka", Verdict.OK, f"{brokers}: {len(found.brokers)} brokers, {len(found.topics)} topics")


def _storage(uri: str | None, config: dict[str, str]) -> Finding:
    if uri is None:
        return Finding(
            "Storage",
            Verdict.WARNING,
            "not checked: without execution.checkpointing.dir the state is lost with the driver",
            "Name it with --storage URI, e.g. file:///var/checkpoints or s3://bucket/checkpoints",
        )
    storage = Storage.open(uri, storage_options(config))
    paths = JobPaths.of("holdfast-doctor")
    try:
        storage.check(paths)
    except HoldfastError as error:
        remedy = "Check the address, its network, and the rights of the credentials that this machine has (AWS_*, s3.*)"
        return Finding("Storage", Verdict.FAILED, str(error), remedy)
    try:
        took = {kind: median(times) for kind, times in _request_times(storage, paths).items()}
        commit = took["put if free"]
        if log_in_topic(config):
            commit = took["record of the log in Kafka"] = median(_record_times(uri, config, paths))
    except HoldfastError as error:
        remedy = "Check the brokers (execution.checkpointing.log.kafka.*), and the right to create, write and read topics"
        return Finding("Storage", Verdict.FAILED, str(error), remedy)
    finally:
        storage.delete_job(paths)
    shown = ", ".join(f"{kind} {1000 * seconds:.0f} ms" for kind, seconds in took.items())
    pace = JobSettings.of({**config, CheckpointingOptions.DIR.key: uri}).pace
    interval = max(pace.interval(pace.first_cost), commit)
    return Finding(
        "Storage",
        Verdict.OK,
        f"{storage.uri} can be written, read, listed and put to once: {shown} (medians of {_ROUNDS}). A job of one subtask "
        f"begins with a checkpoint every {interval:.2g} s" + ("" if pace.first_cost else "; its requests are free"),
    )


def _request_times(storage: Storage, paths: JobPaths) -> dict[str, list[float]]:
    """How long requests of a checkpoint's size take, in seconds, by their kind."""
    times: dict[str, list[float]] = {"put": [], "put if free": [], "get": []}
    data = os.urandom(_CHECKPOINT)
    for n in range(_ROUNDS):
        at = f"{paths.directory}/request-{n}"
        times["put"].append(_seconds(partial(storage.put, f"{at}-a", data)))
        times["put if free"].append(_seconds(partial(storage.put_new, f"{at}-b", data)))
        times["get"].append(_seconds(partial(storage.get, f"{at}-a")))
    return times


def _record_times(uri: str, config: Mapping[str, str], paths: JobPaths) -> list[float]:
    """How long an entry of a checkpoint's size takes in a checkpoint log in Kafka; its topic is deleted again."""
    options = {key: value for key, value in storage_options(config).items() if key != LOG_TOPIC}
    storage, data = Storage.open(uri, options), os.urandom(_CHECKPOINT)
    try:
        entries = (paths.log_entry(LogPosition(n)) for n in range(1, _ROUNDS + 2))
        _, *times = [_seconds(partial(storage.put_new, entry, data)) for entry in entries]
    finally:
        storage.delete_job(paths)
    return times


def _seconds(ask: Callable[[], object]) -> float:
    began = time.perf_counter()
    ask()
    return time.perf_counter() - began
