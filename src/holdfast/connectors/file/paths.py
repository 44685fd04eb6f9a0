"""Resolution of the user's paths to the list of files that a source reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConfigurationError

__all__ = ["find_files", "local_path"]

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4", ".snappy")


def local_path(uri: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local path or a ``file://`` URI.

    Raises:
        ConfigurationError: the path is empty or names another file system.

    Examples:
        >>> local_path("file:///data/a%20b")
        '/data/a b'
    """
    text = os.fspath(uri)
    if not text:
        raise ConfigurationError("the path is empty")
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{text}: a file URI has three slashes; did you mean file:///{parts.netloc}{parts.path}?"
            )
        return os.path.abspath(unquote(parts.path))
    if "://" in text:
        raise ConfigurationError(
            f"{text}: only local paths and file:// can be read and written; mount {parts.scheme}:// as a directory"
        )
    return os.path.abspath(os.path.expanduser(text))


def find_files(paths: Sequence[str], compressed: bool = False) -> dict[str, os.stat_result]:
    """List all files at and under the paths, in alphabetical order, without names that begin with ``.`` or ``_``.

    Args:
        paths: Absolute paths of files and directories. A file listed here is read under any name.
        compressed: Whether the format reads files named like ``x.gz``.

    Raises:
        ConfigurationError: a path does not exist or cannot be read, or a file is compressed and the format cannot read it.
    """
    found: dict[str, os.stat_result] = {}
    for path in paths:
        try:
            if os.path.isdir(path):
                _walk(path, found)
            else:
                found[path] = os.stat(path)
        except FileNotFoundError as e:
            raise ConfigurationError(f"{path}: no such file or directory (of the paths given to the source)") from e
        except OSError as e:
            raise ConfigurationError(f"{path}: cannot be read: {e.strerror}") from e
    if not compressed:
        for path in found:
            if path.endswith(_COMPRESSED):
                raise ConfigurationError(f"{path}: compressed files cannot be cut into ranges; decompress it first")
    return dict(sorted(found.items()))


def _walk(directory: str, found: dict[str, os.stat_result]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith((".", "_")):
                continue
            try:
                # Do not follow links to directories: they may form a cycle.
                if entry.is_dir(follow_symlinks=False):
                    _walk(entry.path, found)
                elif entry.is_file():
                    found[entry.path] = entry.stat()
            except FileNotFoundError:
                continue  # removed since the listing
