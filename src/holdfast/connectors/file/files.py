"""The files that a source reads: on the local file system, in object stores and in HDFS."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol

from holdfast.checkpoint.stores.object_store import ObjectInfo
from holdfast.checkpoint.stores.storage import FileStorage, NotFound
from holdfast.connectors.file.paths import split_uri
from holdfast.connectors.file.refusals import lost
from holdfast.connectors.file.spark_output import LOG, committed_files, is_committed
from holdfast.errors import ConfigurationError

__all__ = ["FileSystems", "FileVersion", "Files", "Found", "InputFile", "LocalFiles", "OpenFile", "StoreFiles"]

_FIRST_READ = 256 << 10
_LONGEST_READ = 8 << 20
"""Bytes of the first and of the longest request; each request after another, without a gap, is twice as long."""
_STREAM_BUFFER = 64 << 10


@dataclass(frozen=True)
class FileVersion:
    """Size and modification time, or ETag, of a file, which distinguish it from a replacement."""

    size: int
    mark: int | str
    """The time of the modification in ns (local) or ms (HDFS), or the ETag."""


class Found(NamedTuple):
    """A file in a listing."""

    path: str
    version: FileVersion
    changed_ns: int
    """The time of the last change, in ns since 1970."""


class OpenFile(Protocol):
    """A file that is read at any offset."""

    def read_at(self, start: int, length: int) -> bytes:
        """Read up to ``length`` bytes from ``start`` on; fewer only at the end."""

    def close(self) -> None:
        """Close the file."""


class Files(Protocol):
    """The files of a file system or store."""

    appear_whole: bool
    """Whether a file appears complete, or while it is written."""

    def look_up(self, path: str) -> Found:
        """Describe a file; raises `FileNotFoundError`."""

    def find(self, path: str) -> Iterator[Found]:
        """The file, or all files under the directory, without names that begin with ``.`` or ``_``.

        Of a directory that Spark's Structured Streaming has written, the files in its log.

        Raises:
            FileNotFoundError: there is no such file or directory.
            ConfigurationError: the log cannot be read.
        """

    def open(self, path: str) -> OpenFile:
        """Open a file for reads at any offset.

        Raises:
            InputLost: the file is gone.
        """

    def stream(self, path: str, size: int) -> BinaryIO:
        """Open a file for a library that reads streams; the same errors."""


@dataclass(frozen=True)
class InputFile:
    """A version of a file."""

    path: str
    files: Files
    version: FileVersion

    @property
    def local_path(self) -> str | None:
        """The path, if the file is on the local file system."""
        return self.path if isinstance(self.files, LocalFiles) else None

    def open(self) -> OpenFile:
        """Open the file for reads at any offset."""
        return self.files.open(self.path)

    def stream(self) -> BinaryIO:
        """Open the file as a stream."""
        return self.files.stream(self.path, self.version.size)


class LocalFiles:
    """The local file system."""

    appear_whole = False

    def look_up(self, path: str) -> Found:
        """Describe a file."""
        return _found(path, os.stat(path))

    def find(self, path: str) -> Iterator[Found]:
        """The file, or the files under the directory."""
        if os.path.isdir(path):
            return self._walk(path)
        if not stat.S_ISREG(os.stat(path).st_mode):  # an open of a pipe waits for ever
            raise ConfigurationError(f"{path}: is neither a file nor a directory")
        return iter((self.look_up(path),))

    def _walk(self, directory: str) -> Iterator[Found]:
        log = os.path.join(directory, LOG)
        # The log first: what it has is there. In it are all files below the directory.
        logs = [(directory, self._committed(log))] if os.path.isdir(log) else []
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                try:
                    # Do not follow links to directories: they may form a cycle.
                    if entry.is_dir(follow_symlinks=False):
                        yield from (each for each in self._walk(entry.path) if is_committed(each.path, logs))
                    elif entry.is_file() and is_committed(entry.path, logs):
                        yield _found(entry.path, entry.stat())
                except FileNotFoundError:
                    continue  # removed since the listing

    def _committed(self, log: str) -> frozenset[str]:
        def read(path: str) -> bytes:
            with open(path, "rb") as file:
                return file.read()

        return committed_files({name: os.path.join(log, name) for name in os.listdir(log)}, read)

    def open(self, path: str) -> OpenFile:
        """Open a file."""
        return _LocalFile(path)

    def stream(self, path: str, size: int) -> BinaryIO:
        """Open a file as a stream."""
        try:
            return open(path, "rb")
        except FileNotFoundError as error:
            raise lost(path) from error


class _LocalFile:
    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError as error:
            raise lost(path) from error

    def read_at(self, start: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, start)
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), start + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        os.close(self._descriptor)


class StoreFiles:
    """The files of an object store or HDFS, under URIs.

    Args:
        root: The bucket, container or name node as a URI.
        storage: The storage there.
    """

    def __init__(self, root: str, storage: FileStorage) -> None:
        self._root = root
        self._storage = storage
        self.appear_whole = storage.appear_whole

    def _found(self, info: ObjectInfo) -> Found:
        return Found(f"{self._root}/{info.path}", FileVersion(info.size, info.version), info.changed_ms * 1_000_000)

    def look_up(self, path: str) -> Found:
        """Describe a file."""
        try:
            return self._found(self._storage.look_up(split_uri(path)[1]))
        except NotFound as error:
            raise FileNotFoundError(path) from error

    def find(self, path: str) -> Iterator[Found]:
        """The file, or the files under the directory; empty objects are left out, as they stand for directories."""
        directory = split_uri(path)[1]
        try:
            if directory:
                yield self.look_up(path)
                return
        except FileNotFoundError:
            pass  # not a file
        infos = self._storage.walk(directory)
        if not infos:
            raise FileNotFoundError(path)
        above = len(directory) + 1 if directory else 0
        by_directory: dict[str, dict[str, str]] = {}
        for info in infos:
            before, found, name = f"/{info.path[above:]}".partition(f"/{LOG}/")
            if found and "/" not in name:
                by_directory.setdefault(before, {})[name] = info.path
        logs = [(before, committed_files(log, self._storage.get)) for before, log in by_directory.items()]
        for info in infos:
            if self.appear_whole and not info.size:
                continue
            below = info.path[above:]
            if not any(name.startswith((".", "_")) for name in below.split("/")) and is_committed(f"/{below}", logs):
                yield self._found(info)

    def open(self, path: str) -> OpenFile:
        """Open a file."""
        return _StoreFile(self._storage, path)

    def stream(self, path: str, size: int) -> BinaryIO:
        """Open a file as a stream."""
        return io.BufferedReader(_Stream(_StoreFile(self._storage, path), size), _STREAM_BUFFER)


class _StoreFile:
    """Reads a file by ranges, ahead of a reader that goes on where it stopped."""

    def __init__(self, storage: FileStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._start = 0
        self._data = b""
        """What was read last, from ``_start`` on."""
        self._ahead = _FIRST_READ

    def read_at(self, start: int, length: int) -> bytes:
        end = self._start + len(self._data)
        if not self._start <= start <= start + length <= end:
            goes_on = bool(self._data) and self._start <= start <= end
            self._ahead = min(2 * self._ahead, _LONGEST_READ) if goes_on else _FIRST_READ
            kept = self._data[start - self._start :] if goes_on else b""
            try:
                read = self._storage.get_range(
                    split_uri(self._path)[1], start + len(kept), max(length - len(kept), self._ahead)
                )
            except NotFound as error:
                raise lost(self._path) from error
            self._start, self._data = start, kept + read
        return self._data[start - self._start : start - self._start + length]

    def close(self) -> None:
        self._data = b""


class _Stream(io.RawIOBase):
    def __init__(self, file: OpenFile, size: int) -> None:
        self._file = file
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read_at(self._position, min(len(buffer), max(0, self._size - self._position)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class FileSystems:
    """All file systems and stores, each opened on first use.

    Args:
        config: The settings of the stores, such as ``s3.*``.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._local = LocalFiles()
        self._stores: dict[str, StoreFiles] = {}

    def of(self, path: str) -> Files:
        """The file system of a path.

        Raises:
            ConfigurationError: a setting of the store is invalid.
        """
        root, _ = split_uri(path)
        if not root:
            return self._local
        if root not in self._stores:
            self._stores[root] = StoreFiles(root, FileStorage.open(f"{root}/", self._config))
        return self._stores[root]

    def file(self, path: str, version: FileVersion) -> InputFile:
        """A version of a file."""
        return InputFile(path, self.of(path), version)


def _found(path: str, status: os.stat_result) -> Found:
    shown = path.encode(errors="backslashreplace").decode()
    if shown != path:  # a checkpoint could not have it
        raise ConfigurationError(f"{shown}: the name of this file is not in UTF-8; rename it")
    return Found(path, FileVersion(status.st_size, status.st_mtime_ns), status.st_mtime_ns)
