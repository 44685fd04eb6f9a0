"""Whether a file is still the one that was picked up: size and time of modification, and the end it had then."""

from __future__ import annotations

import os
from dataclasses import dataclass

import xxhash

from holdfast.errors import InputLost

__all__ = ["FileVersion", "check_same", "end_of", "stat_of"]

_END = 4096
"""Bytes before its end by which a file that has grown is told from another one."""


@dataclass(frozen=True)
class FileVersion:
    """What tells a file from one that was put in its place."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileVersion:
        """The version that a listing shows."""
        return cls(stat.st_size, stat.st_mtime_ns)

    @property
    def touch(self) -> str:
        """The command (before the path) that gives a file this time of modification."""
        seconds, rest = divmod(self.mtime_ns, 1_000_000_000)
        return f"touch -d @{seconds}.{rest:09d}"


def stat_of(path: str) -> os.stat_result:
    """The file's stat.

    Raises:
        InputLost: it is gone.
    """
    try:
        return os.stat(path)
    except FileNotFoundError as e:
        raise InputLost(f"{path}: the file was removed before it was read to the end; put it back") from e


def end_of(path: str, size: int) -> int:
    """A hash of the last bytes of the first ``size`` of a file."""
    with open(path, "rb") as file:
        file.seek(max(0, size - _END))
        return xxhash.xxh3_64_intdigest(file.read(min(size, _END)))


def check_same(path: str, version: FileVersion, end: int) -> None:
    """Make sure that the file is as it was, or has only been appended to.

    Args:
        path: The file.
        version: As it was picked up.
        end: Its `end_of` then.

    Raises:
        InputLost: it was replaced or changed.
    """
    now = FileVersion.of(stat_of(path))
    if now != version and (now.size <= version.size or end_of(path, version.size) != end):
        raise InputLost(
            f"{path}: was replaced or changed while it was read (it had {version.size} bytes, now {now.size}): what was "
            "read and what is left may not belong together. Put the original file back, with its time of modification "
            f"({version.touch} {path}), and give the new one a name of its own"
        )
