"""Faults of a Spark cluster's hosts: loss, lag, and return with an old disk."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.stage import Stage
from holdfast.testing.cluster import LocalCluster

__all__ = ["kill_executor", "kill_slot", "lag", "lose_host", "return_with_old_disk"]

_START_S = 240.0


def kill_executor(stage: Stage, cluster: LocalCluster) -> str:
    """``kill -9`` for a host's executors, possibly with their disk; Spark starts new ones."""
    host, wiped = stage.random.choice(cluster.hosts), stage.random.random() < 0.5
    with suppress(HoldfastError):  # no executor: the last one was killed a moment ago
        stage.report.kills["executor"] += len(cluster.executors(host))
        cluster.kill_executor(host, wipe_disk=wiped)
    return f"executors of {host} killed{', with their disk' if wiped else ''}"


def kill_slot(stage: Stage, cluster: LocalCluster) -> str:
    """``kill -9`` for the task slots of a host."""
    host = stage.random.choice(cluster.hosts)
    slots = cluster.slots(host)
    for pid in slots:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            stage.report.kills["slot"] += 1
    return f"slots {slots} of {host} killed"


def lag(stage: Stage, cluster: LocalCluster) -> str:
    """Pause a host's task slots; Spark starts speculative copies of their tasks; then the slots resume."""
    host = stage.random.choice(cluster.hosts)
    slots = cluster.slots(host)
    for pid in slots:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        stage.pause(2.0, 8.0)
    finally:
        for pid in slots:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return f"slots {slots} of {host} stood still"


def lose_host(stage: Stage, cluster: LocalCluster) -> str:
    """A host is lost with its disk; later it returns empty."""
    host = _kill_host(stage, cluster)
    cluster.lose_host(host)
    stage.pause(0.0, 6.0)
    cluster.add_worker(host)
    return f"host {host} was gone with its disk, and came back empty"


def return_with_old_disk(stage: Stage, cluster: LocalCluster) -> str:
    """A host is lost, and returns with an older copy of its disk."""
    host = stage.random.choice(cluster.hosts)
    old = stage.directory / "old-disk"
    parts = [path for path in cluster.local_disks.rglob(host) if path.is_dir()]
    for number, path in enumerate(parts):
        shutil.copytree(path, old / str(number), ignore=_ignored, ignore_dangling_symlinks=True)
    stage.pause(2.0, 5.0)
    _kill_host(stage, cluster, host)
    cluster.kill_worker(host)
    stage.pause(0.0, 4.0)
    cluster.wipe_disk(host)
    for number, path in enumerate(parts):
        shutil.copytree(old / str(number), path, dirs_exist_ok=True)
    shutil.rmtree(old, ignore_errors=True)
    cluster.add_worker(host)
    return f"host {host} was gone, and came back with an old disk"


def _kill_host(stage: Stage, cluster: LocalCluster, host: str = "") -> str:
    """Kill a host, and count its processes."""
    host = host or stage.random.choice(cluster.hosts)
    stage.report.kills["executor"] += len(cluster.executors(host))
    stage.report.kills["slot"] += len(cluster.slots(host))
    stage.report.kills["cluster worker"] += 1
    return host


def _ignored(directory: str, names: list[str]) -> list[str]:
    """Ignore sockets and vanished files, which cannot be copied."""
    return [name for name in names if not _plain(Path(directory, name))]


def _plain(path: Path) -> bool:
    return path.is_dir() or path.is_file()
