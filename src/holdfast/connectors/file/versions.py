"""Detection of changed files by size, modification time, and a hash of the file's end."""

from __future__ import annotations

import os
from dataclasses import dataclass

import xxhash

from holdfast.errors import InputLost

__all__ = ["FileVersion", "check_same", "end_of", "stat_of"]

_END = 4096
"""Number of bytes before the end that identify a file after it has grown."""


@dataclass(frozen=True)
class FileVersion:
    """Size and modification time of a file, which distinguish it from a replacement."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileVersion:
        """Return the version from a directory listing."""
        return cls(stat.st_size, stat.st_mtime_ns)

    @property
    def touch(self) -> str:
        """Return the command (before the path) that sets a file's modification time to this version's."""
        seconds, rest = divmod(self.mtime_ns, 1_000_000_000)
        return f"touch -d @{seconds}.{rest:09d}"


def stat_of(path: str) -> os.stat_result:
    """Return the file's stat.

    Raises:
        InputLost: the file is gone.
    """
    try:
        return os.stat(path)
    except FileNotFoundError as e:
        raise InputLost(f"{path}: the file was removed before it was read to the end; put it back") from e


def end_of(path: str, size: int) -> int:
    """Hash the last bytes before position ``size`` of a file."""
    with open(path, "rb") as file:
        file.seek(max(0, size - _END))
        return xxhash.xxh3_64_intdigest(file.read(min(size, _END)))


def check_same(path: str, version: FileVersion, end: int) -> None:
    """Check that the file is unchanged, or only appended to.

    Args:
        path: The file.
        version: The version at its discovery.
        end: Its `end_of` at its discovery.

    Raises:
        InputLost: the file was replaced or changed.
    """
    now = FileVersion.of(stat_of(path))
    if now != version and (now.size <= version.size or end_of(path, version.size) != end):
        raise InputLost(
            f"{path}: was replaced or changed while it was read (it had {version.size} bytes, now {now.size}): what was "
            "read and what is left may not belong together. Put the original file back, with its time of modification "
            f"({version.touch} {path}), and give the new one a name of its own"
        )
