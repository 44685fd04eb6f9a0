"""AotCache: classes as the JVM holds them after loading and linking, for a faster start of the next JVM.

One file of about 100 MB per Java and Spark (or Kafka, in tests), in the user's cache directory. It holds code, so it is used
only if its directory is closed to other users and its digest matches the stored one. A program without a cache starts
normally; after its end, or after a minute, a low-priority process creates one (`aot_training`).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from holdfast.common.system.directories import make_directories
from holdfast.runtime.host.background import leave_running
from holdfast.runtime.jvm.java import Java

__all__ = ["AotCache"]

log = logging.getLogger(__name__)

_FORMAT = 3
"""Part of each cache's name; incremented when the options or the training change."""
_SPACE = 600 << 20
"""Required free bytes on the disk: two caches and a reserve."""
_RETRY_AFTER_S = 86400.0
"""Pause after a failed creation, in seconds."""
_UNUSED_S = 30 * 86400.0
"""Caches unused for this time (seconds) are deleted when a new one is created."""


@dataclass(frozen=True)
class AotCache:
    """The cache for one Java and the jars of one program.

    Attributes:
        java: The runtime.
        jars: The jars, in class path order.
        path: The cache's file; None if this user has no directory that is closed to others.
    """

    java: Java
    jars: tuple[str, ...]
    path: Path | None

    @classmethod
    def of(cls, java: Java, jars: Sequence[str], name: str = "spark") -> AotCache:
        """The cache for this Java and these jars of the program ``name``; the file may not exist yet."""
        directory = _directory()
        files = [*filter(os.path.exists, [str(java.home / "lib" / "modules")]), *jars]
        known = [(file, status.st_size, status.st_mtime_ns) for file in files for status in [os.stat(file)]]
        file_name = f"{name}-java-{java.version}-{xxhash.xxh3_64_hexdigest(repr((_FORMAT, known)).encode())}.aot"
        return cls(java, tuple(jars), None if directory is None else directory / file_name)

    @property
    def _digest(self) -> Path:
        assert self.path is not None
        return self.path.with_suffix(".xxh3")

    @property
    def log(self) -> Path:
        """The output of the creating process; kept if it failed."""
        assert self.path is not None
        return self.path.with_suffix(".log")

    def to_use(self) -> list[str]:
        """The JVM options that use the cache; empty if it is missing, damaged or open to others."""
        if self.path is None:
            return []
        try:
            if not (_is_private(self.path) and _is_private(self._digest)):
                return []
            if self._digest.read_text() != _digest_of(self.path):
                log.warning("the AOT cache %s is damaged; deleting it, it will be made again", self.path)
                self.delete()
                return []
            os.utime(self.path)
        except (OSError, ValueError):
            return []
        if self.java.major >= 25:
            return [f"-XX:AOTCache={self.path}", "-Xlog:aot*=off,cds*=off"]
        return [f"-XX:SharedArchiveFile={self.path}", "-Xlog:cds*=off"]

    def to_make(self, path: Path) -> list[str]:
        """The JVM options that write a cache to this path when the JVM ends."""
        if self.java.major >= 25:
            return [f"-XX:AOTCacheOutput={path}"]
        return [f"-XX:ArchiveClassesAtExit={path}"]

    def delete(self) -> None:
        """Remove the cache."""
        if self.path is not None:
            for path in (self.path, self._digest):
                with contextlib.suppress(OSError):
                    path.unlink()

    def store(self, made: Path) -> None:
        """Install a newly created cache, and delete caches that are no longer used."""
        assert self.path is not None
        digest = made.with_suffix(".digest")
        digest.write_text(_digest_of(made))
        self.delete()
        os.rename(digest, self._digest)
        os.rename(made, self.path)
        for old in self.path.parent.glob("*-java-*.aot"):
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > _UNUSED_S:
                    old.unlink()
                    old.with_suffix(".xxh3").unlink()

    def make_later(self) -> None:
        """Start a process that creates the cache after the end of this one, or after a minute.

        Does nothing if another program is creating it, if that failed within the last day, or if disk space is short.
        """
        if self.path is None:
            return
        try:
            failed = self.log.exists() and time.time() - self.log.stat().st_mtime < _RETRY_AFTER_S
            if failed or shutil.disk_usage(self.path.parent).free < _SPACE:
                return
            lock = self.lock()
            if lock is None:
                return
            with open(lock, "wb") as held, open(self.log, "wb") as said:
                training = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "holdfast.runtime.spark.aot_training",
                        str(os.getpid()),
                        str(self.java.executable),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                    cwd="/",
                    pass_fds=[held.fileno()],  # the process holds the lock until it ends
                    start_new_session=True,
                )
            leave_running(training)
        except OSError as error:
            log.debug("creating the AOT cache failed: %s", error)

    def lock(self) -> int | None:
        """A descriptor of the lock for creating the cache; None if another process holds it."""
        assert self.path is not None
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        return lock


def _directory() -> Path | None:
    """The directory of the caches, created if missing; None if that fails or other users can write to it."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(base).resolve() / "holdfast" / "aot"
        make_directories(str(directory), 0o700)
        return directory if os.access(directory, os.W_OK) and _is_private(directory) else None
    except (OSError, RuntimeError):
        return None


def _is_private(path: Path) -> bool:
    """Whether only this user and root can change or replace the path."""
    for place in (path, *path.parents):
        status = os.lstat(place)
        if stat.S_ISLNK(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            return False
        if status.st_mode & 0o022 and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            return False
    return True


def _digest_of(path: Path) -> str:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return xxhash.xxh3_128_hexdigest(content)
