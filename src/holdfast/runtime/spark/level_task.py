"""LevelTask: the Spark task for one partition of a level; it passes frames to the task slot and back.

Each Spark worker imports this module before its first task, so it imports little.
"""

from __future__ import annotations

import base64
import functools
import gc
import os
import pickle
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import holdfast
from holdfast.errors import ConfigurationError
from holdfast.runtime.host.local_directory import host_name, slot_directory
from holdfast.runtime.host.slot import SlotClient
from holdfast.runtime.records.frame_header import REPORT, pack_frame, unpack_header
from holdfast.runtime.spark.slot_watch import SlotWatch

__all__ = ["LevelTask", "packed_calls", "quicken", "shuffle_key"]

_watch = SlotWatch()

shuffle_key: Callable[[int], bytes] = struct.Struct(">q").pack
"""Packs a partition as a key of Spark's shuffle; each frame follows its key."""


def packed_calls(calls: Sequence[Sequence[bytes]]) -> str:
    """Pack the calls of an epoch, by level and partition, into a property of its Spark job."""
    return base64.b64encode(pickle.dumps(calls, 5)).decode()


@dataclass(frozen=True)
class LevelTask:
    """All tasks of a level, for one epoch or for any."""

    level: int
    last: bool
    """Whether it is the last level; its frames, which are all reports, go to the driver and not into a shuffle."""
    root: str
    """The setting ``io.tmp.dirs``."""
    job_id: str
    started: str
    """The start of the job; see `JobSetup`."""
    version: str = holdfast.__version__
    """The driver's version of Holdfast."""
    modules: Sequence[str] = ()
    """Modules that the program's modules import; the slots of a host share their memory."""
    calls: Sequence[bytes] | None = None
    """The pickled (assignment, vertex, subtask) of each partition; None: they are in the property of the Spark job."""

    @property
    def calls_property(self) -> str:
        """The property of an epoch's Spark job with the packed calls of all levels."""
        return f"holdfast.calls.{self.started}"

    def __call__(self, partition: int, items: Iterable[bytes], setup: Any) -> Iterator[bytes]:
        """Run the task of a partition; yields its frames, each after its shuffle key, and finally its report.

        Args:
            partition: The partition.
            items: Its frames, and frames to forward to later levels; empty items are not frames.
            setup: Spark's broadcast of the pickled JobSetup.
        """
        quicken()
        client = SlotClient(slot_directory(self.root, self.job_id), partition, modules=self.modules)
        passing: list[tuple[int, bytes]] = []

        def mine() -> Iterator[bytes]:
            for frame in items:
                if not frame:
                    continue
                header = unpack_header(frame)
                if header.kind != REPORT and header.level == self.level:
                    yield frame
                else:
                    passing.append((header.partition, frame))

        call = self._call(partition)
        try:
            self._check_version()
            with _watch.watching(client, lambda: setup.value, call):
                for target, payload in client.run(self.started, lambda: setup.value, call, mine()):
                    yield from self._sent(target, payload) if target >= 0 else self._sent(0, _report_frame(payload))
        except ConfigurationError as error:
            from holdfast.runtime.plan.task_messages import TaskReport

            # Errors are returned in a report: Spark would only retry, and bury the error under its own.
            _, vertex, subtask = pickle.loads(call)
            yield from self._sent(0, _report_frame(pickle.dumps(TaskReport((vertex, subtask), "", error), 5)))
        for target, frame in passing:
            yield from self._sent(target, frame)

    def _check_version(self) -> None:
        if self.version != holdfast.__version__:
            raise ConfigurationError(
                f"spark.python.daemon.module lets Spark's workers on host {host_name()} use the Holdfast that is installed "
                f"there, {holdfast.__version__}, and the driver has {self.version}: install that, or remove this setting"
            )

    def _call(self, partition: int) -> bytes:
        if self.calls is not None:
            return self.calls[partition]
        from pyspark import TaskContext  # already imported in Spark's workers

        context = TaskContext.get()
        assert context is not None
        calls: Sequence[Sequence[bytes]] = pickle.loads(base64.b64decode(context.getLocalProperty(self.calls_property)))
        return calls[self.level][partition]

    def _sent(self, target: int, frame: bytes) -> tuple[bytes, ...]:
        return (frame,) if self.last else (shuffle_key(target), frame)


def _report_frame(report: bytes) -> bytes:
    return pack_frame(REPORT, 0, 0, 0, 0, 0, report)


def quicken() -> None:
    """Tune this worker for short tasks. Each task calls this first; it takes microseconds.

    Over TCP, the JVM's Nagle algorithm delays a small write until the previous one is acknowledged, which the kernel delays
    by up to 40 ms by default. The kernel resets that option, so every task sets it again.
    """
    _freeze(len(sys.modules))
    for connection in _connections():
        _acknowledge_at_once(connection)


@functools.cache
def _freeze(modules: int) -> None:
    """Exempt all loaded objects from garbage collection, which PySpark runs after every task.

    No collection precedes this: it would write to memory that the worker shares with PySpark's daemon.

    Args:
        modules: The number of loaded modules; with more modules, the objects are frozen again.
    """
    gc.freeze()


@functools.cache
def _connections() -> tuple[socket.socket, ...]:
    """The worker's TCP connections to its JVM, with TCP_NODELAY set; empty if it uses a Unix socket."""
    found = []
    for name in os.listdir("/dev/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # not a socket
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.append(connection)
        else:
            connection.close()
    return tuple(found)


def _acknowledge_at_once(connection: socket.socket) -> None:
    if hasattr(socket, "TCP_QUICKACK"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
