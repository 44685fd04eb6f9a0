"""Objects as files in HDFS, by hdfs-native (``pip install 'holdfast[hdfs]'``), which needs no Java.

``hdfs://namenode:8020/directory``; with a name service or without a host (``hdfs:///directory``), the cluster is that of
``core-site.xml`` and ``hdfs-site.xml`` in ``HADOOP_CONF_DIR``. Kerberos tickets come from the usual cache. Keys ``hdfs.*``
of the configuration are options of the HDFS client, without this prefix (``hdfs.dfs.client.use.datanode.hostname``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.checked_writer import CheckedWriter
from holdfast.checkpoint.stores.object_store import AlreadyExists, Data, NotFound, ObjectInfo, Unavailable
from holdfast.common.system.optional_library import optional_library
from holdfast.errors import ConfigurationError, StorageError

__all__ = ["HDFSStore"]

_MODE = 0o755
_WRITE = 8 << 20
"""Bytes per write; files may have any size."""
_REFUSED = ("AccessControlException", "Permission denied", "UnsupportedOperation")


class HDFSStore:
    """A directory: a `FileStore`. A file appears under its name complete, by a rename, or not at all.

    Args:
        authority: The name node, or the name service; empty: the default file system of the Hadoop configuration.
        directory: The directory.
        config: The settings.

    Raises:
        ConfigurationError: hdfs-native is not installed, or the name node is unknown.
    """

    def __init__(self, authority: str, directory: str, config: Mapping[str, str]) -> None:
        hdfs = optional_library("hdfs_native", "hdfs:// needs hdfs-native", "'holdfast[hdfs]'")
        self._root = "/" + directory.strip("/")
        self._uri = f"hdfs://{authority}{self._root}"
        self._options: Callable[[], Any] = lambda: hdfs.WriteOptions(overwrite=True, create_parent=True)
        options = {key.removeprefix("hdfs."): value for key, value in config.items() if key.startswith("hdfs.")}
        try:
            self._client = hdfs.Client(f"hdfs://{authority}" if authority else None, options)
        except Exception as error:  # hdfs-native raises plain exceptions for any unusable configuration
            raise ConfigurationError(
                f"{self._uri}: {error}; set HADOOP_CONF_DIR, or give hdfs://namenode:8020/path"
            ) from error

    @property
    def uri(self) -> str:
        """The directory as a URI."""
        return self._uri

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")

    def put(self, path: str, data: Data) -> None:
        """Put an object; an existing one is replaced."""
        with self._errors("put", path):
            self._client.rename(self._write_part(path, data), self._at(path), overwrite=True)

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free; otherwise the name node does not rename the file."""
        with self._errors("put", path):
            part = self._write_part(path, data)
            try:
                self._client.rename(part, self._at(path), overwrite=False)
            except BaseException:  # not even Ctrl-C may leave a part file behind
                self._client.delete(part, recursive=False)
                raise

    def _write_part(self, path: str, data: Data) -> str:
        part = self._at(JobPaths.part_file(path))
        with memoryview(data) as view:
            writer = self._client.create(part, self._options())
            for start in range(0, len(view), _WRITE):
                writer.write(bytes(view[start : start + _WRITE]))
            writer.close()
        return part

    def get(self, path: str) -> bytes:
        """Read an object."""
        with self._errors("get", path):
            return bytes(self._client.read(self._at(path)).read())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        with self._errors("get", path):
            reader = self._client.read(self._at(path))
            left = min(length, len(reader) - start)
            return bytes(reader.read_range(start, left)) if left > 0 else b""

    def size(self, path: str) -> int:
        """The size of an object in bytes."""
        with self._errors("look up", path):
            status = self._client.get_file_info(self._at(path))
            if status.isdir:
                raise FileNotFoundError(path)
            return int(status.length)

    def list(self, prefix: str) -> list[str]:
        """The paths under ``prefix``, including unfinished part files."""
        start = len(self._at("")) + 1
        try:
            with self._errors("list", prefix):
                statuses = self._client.list_status(self._at(prefix.rstrip("/")), recursive=True)
                return [status.path[start:] for status in statuses if not status.isdir]
        except NotFound:
            return []

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""
        for path in paths:
            with self._errors("delete", path):
                try:
                    self._client.delete(self._at(path), recursive=False)
                except FileNotFoundError:
                    continue

    appear_whole = False
    """A file grows while it is written."""

    def look_up(self, path: str) -> ObjectInfo:
        """Describe a file."""
        with self._errors("look up", path):
            status = self._client.get_file_info(self._at(path))
            if status.isdir:
                raise FileNotFoundError(path)
            return self._info(status)

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """Describe the files under a directory."""
        try:
            with self._errors("list", directory):
                statuses = self._client.list_status(self._at(directory) or "/", recursive=True)
                return [self._info(status) for status in statuses if not status.isdir]
        except NotFound:
            return []

    def _info(self, status: Any) -> ObjectInfo:
        changed = int(status.modification_time)
        return ObjectInfo(status.path[len(self._at("").rstrip("/")) + 1 :], int(status.length), changed, changed)

    def create(self, path: str) -> CheckedWriter:
        """Start a file."""
        with self._errors("write", path):
            return CheckedWriter(self._client.create(self._at(path), self._options()), lambda: self._errors("write", path))

    def move(self, source: str, target: str) -> None:
        """Rename a file."""
        with self._errors("rename", source):
            self._client.mkdirs(self._at(target).rpartition("/")[0], _MODE, create_parent=True)
            self._client.rename(self._at(source), self._at(target), overwrite=False)

    @contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        where = f"{self._uri}/{path}"
        try:
            yield
        except StorageError:
            raise
        except FileExistsError as error:
            raise AlreadyExists(f"{where}: exists already") from error
        except (OSError, RuntimeError) as error:  # only the texts of hdfs-native's errors distinguish them
            text = " ".join(str(error).split())
            if "FileAlreadyExists" in text or "already exists" in text:
                raise AlreadyExists(f"{where}: exists already") from error
            missing = isinstance(error, FileNotFoundError) or "FileNotFound" in text or "not found" in text.lower()
            if missing and what != "put":  # a driver that takes the job over deletes part files, so the put may be repeated
                raise NotFound(f"{where}: no such file") from error
            told = f"cannot {what} {where}: {text}"
            raise (StorageError if any(each in text for each in _REFUSED) else Unavailable)(told) from error
