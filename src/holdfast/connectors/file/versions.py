"""Detection of changed files by version, and a hash of the file's end."""

from __future__ import annotations

import xxhash

from holdfast.connectors.file.files import FileVersion, Found, InputFile
from holdfast.connectors.file.refusals import lost
from holdfast.errors import InputLost

__all__ = ["check_same", "end_of", "restoring", "version_of"]

_END = 4096
"""Number of bytes before the end that identify a file after it has grown."""


def restoring(path: str, version: FileVersion) -> str:
    """The command that gives a local file back its time of modification; empty for files elsewhere."""
    if isinstance(version.mark, str) or "://" in path:
        return ""
    seconds, rest = divmod(version.mark, 1_000_000_000)
    return f"touch -d @{seconds}.{rest:09d} {path}"


def version_of(file: InputFile) -> FileVersion:
    """Return the file's version now.

    Raises:
        InputLost: the file is gone.
    """
    return _look_up(file).version


def _look_up(file: InputFile) -> Found:
    try:
        return file.files.look_up(file.path)
    except FileNotFoundError as e:
        raise lost(file.path) from e


def end_of(file: InputFile) -> int:
    """Hash the last bytes of the file, up to the size of the version."""
    size = file.version.size
    opened = file.open()
    try:
        return xxhash.xxh3_64_intdigest(opened.read_at(max(0, size - _END), min(size, _END)))
    finally:
        opened.close()


def check_same(file: InputFile, end: int) -> None:
    """Check that the file is unchanged since its discovery, or only appended to.

    Args:
        file: The file, with its version at its discovery.
        end: Its `end_of` at its discovery.

    Raises:
        InputLost: the file is gone, or was replaced or changed.
    """
    now, version = version_of(file), file.version
    if now != version and (now.size <= version.size or end_of(file) != end):
        touch = restoring(file.path, version)
        put_back = "Restore the original file"
        if touch:
            put_back = f"Put the original file back, with its time of modification ({touch}),"
        raise InputLost(
            f"{file.path}: was replaced or changed while it was read (it had {version.size} bytes, now {now.size}): what "
            f"was read and what is left may not belong together. {put_back} and give the new one a name of its own"
        )
