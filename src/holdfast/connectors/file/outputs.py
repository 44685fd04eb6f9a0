"""Outputs: where a file sink writes, on the local file system, in an object store or in HDFS.

A part file in progress is invisible until it is *published* under its final name. The name in progress is unique to the
attempt, and so is the final name: whoever publishes twice, or after another driver, does the same again.

- `LocalOutput`: a hidden file beside the final one, ``.<final name>.inprogress.<owner>-<generation>``; published by a
  rename.
- `StoreOutput`: an object ``.inprogress/<owner>/<generation>-<random>`` under the base path; published by a copy within the
  store (in HDFS by a rename), after which it is deleted. See ADR 23.
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Protocol

from holdfast.checkpoint.stores.in_parallel import in_parallel
from holdfast.checkpoint.stores.object_store import ObjectWriter
from holdfast.checkpoint.stores.storage import FileStorage, NotFound, refused
from holdfast.common.system.os_errors import reason
from holdfast.connectors.file.paths import split_uri
from holdfast.connectors.file.refusals import writing
from holdfast.errors import ConfigurationError, StorageError

__all__ = ["LocalOutput", "Output", "PartFile", "StoreOutput", "open_output"]

_IN_PROGRESS = ".inprogress."
_STAGING = ".inprogress"
_LONGEST_PART = 1 << 30
"""Bytes from which a part file in a store is finished: S3 copies objects of up to 5 GB at once."""
_log = logging.getLogger(__name__)


class PartFile(Protocol):
    """A part file in progress."""

    stream: BinaryIO

    @property
    def size(self) -> int:
        """The bytes written so far."""

    def finish(self) -> dict[str, Any] | None:
        """Make the file durable; returns what `Output.publish` needs, or None if the file was empty and is gone."""

    def drop(self, abandon: Callable[[], None]) -> None:
        """Delete the file. ``abandon`` may still write into the stream."""


class Output(Protocol):
    """The directory of a file sink."""

    uri: str
    longest_part: int | None
    """The size from which a part file is finished; None: there is no limit."""

    def check(self, owner: str) -> None:
        """Probe the directory; raises `ConfigurationError`. ``owner`` ends with the driver's generation."""

    def create(self, bucket: str, final: str, owner: str) -> PartFile:
        """Begin a part file. ``owner`` ends with the driver's generation."""

    def publish(self, parts: Sequence[Any]) -> Iterable[bool]:
        """Make part files visible, in order. Repeatable; returns which of them are visible now."""

    def discard(self, parts: Sequence[Any]) -> None:
        """Delete finished part files that will not be published."""

    def flush(self, buckets: Iterable[str]) -> None:
        """Make the names in these buckets durable."""

    def sweep(self, owner: str, generation: int) -> None:
        """Delete the part files in progress of earlier drivers."""

    def pending(self, data: Any) -> str:
        """The name of a part file in progress."""

    def final(self, data: Any) -> str:
        """The name of a published file."""

    def told(self, what: str, name: str) -> str:
        """What failed, for errors."""


def open_output(base_path: str, config: Mapping[str, str], uid: str = "") -> Output:
    """Open the directory of a file sink.

    Args:
        base_path: An absolute path or a URI.
        config: The settings of the stores, such as ``s3.*``.
        uid: The sink's uid, for errors.

    Raises:
        ConfigurationError: a setting of the store is invalid.
    """
    root, directory = split_uri(base_path)
    if not root:
        return LocalOutput(base_path, uid)
    return StoreOutput(base_path, FileStorage.open(f"{root}/", config), directory, uid)


class LocalOutput:
    """A directory of the local file system."""

    longest_part: int | None = None

    def __init__(self, base_path: str, uid: str = "") -> None:
        self.uri = base_path
        self._name = _sink_name(uid)

    def check(self, owner: str) -> None:
        """Create the directory, and probe it with a file."""
        probe = os.path.join(self.uri, f".check-{secrets.token_hex(8)}")
        try:
            os.makedirs(self.uri, exist_ok=True)
            os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(probe)
        except OSError as e:
            raise ConfigurationError(f"{self._name}: cannot write to {self.uri}: {reason(e)}") from e

    def create(self, bucket: str, final: str, owner: str) -> PartFile:
        """Begin a hidden file."""
        directory = os.path.join(self.uri, bucket)
        os.makedirs(directory, exist_ok=True)
        pending = f".{final}{_IN_PROGRESS}{owner}"
        file = open(os.path.join(directory, pending), "xb", buffering=1 << 20)  # noqa: SIM115  (closed at the barrier)
        return _LocalPart(file, {"bucket": bucket, "pending": pending, "final": final})

    def publish(self, parts: Sequence[Any]) -> Iterable[bool]:
        """Rename the files."""
        return map(self._publish, parts)

    def _publish(self, data: Any) -> bool:
        final = self.final(data)
        with writing(self.told("finish", final)):
            try:
                os.rename(self.pending(data), final)
            except FileNotFoundError:
                return os.path.exists(final)
        return True

    def discard(self, parts: Sequence[Any]) -> None:
        """Delete hidden files."""
        for data in parts:
            _remove(self.pending(data))

    def flush(self, buckets: Iterable[str]) -> None:
        """Sync the directories, so that file and bucket names survive a power failure."""
        for directory in sorted({"", *buckets}):
            path = os.path.join(self.uri, directory)
            with writing(self.told("flush", directory)):
                if os.path.isdir(path):
                    descriptor = os.open(path, os.O_RDONLY)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)

    def sweep(self, owner: str, generation: int) -> None:
        """Delete hidden files of earlier drivers, in any bucket."""
        in_progress = re.compile(rf"\..+{re.escape(_IN_PROGRESS + owner)}(?:-(\d+))?")
        for directory, _, names in os.walk(self.uri):
            for name in names:
                found = in_progress.fullmatch(name)
                if found and int(found[1] or 0) < generation:
                    _remove(os.path.join(directory, name))

    def pending(self, data: Any) -> str:
        """The name of the hidden file."""
        return os.path.join(self.uri, data["bucket"], data["pending"])

    def final(self, data: Any) -> str:
        """The name of the finished file."""
        return os.path.join(self.uri, data["bucket"], data["final"])

    def told(self, what: str, name: str) -> str:
        """What failed, for errors."""
        return f"{self._name}: cannot {what} {os.path.join(self.uri, name)}"


class _LocalPart:
    def __init__(self, file: BinaryIO, data: dict[str, Any]) -> None:
        self.stream = file
        self._data = data

    @property
    def size(self) -> int:
        return self.stream.tell()

    def finish(self) -> dict[str, Any] | None:
        file = self.stream
        file.flush()
        if file.tell() == 0:  # no record has bytes
            _remove(file.name)
            file.close()
            return None
        os.fsync(file.fileno())
        file.close()
        return self._data

    def drop(self, abandon: Callable[[], None]) -> None:
        _remove(self.stream.name)
        # Close last: it may flush, and fail on a full disk.
        try:
            abandon()
            self.stream.close()
        except OSError as e:
            _log.warning("%s of an abandoned epoch: %s", self.stream.name, e)


class StoreOutput:
    """A directory of an object store or HDFS.

    Args:
        uri: The directory's URI.
        storage: The bucket, container or file system.
        directory: The directory in it.
        uid: The sink's uid, for errors.
    """

    longest_part: int | None = _LONGEST_PART

    def __init__(self, uri: str, storage: FileStorage, directory: str, uid: str = "") -> None:
        self.uri = uri.rstrip("/")
        self._name = _sink_name(uid)
        self._storage = storage
        self._base = f"{directory}/" if directory else ""

    def check(self, owner: str) -> None:
        """Write, move and delete an object, and list. The next driver deletes what a killed one left of that.

        Raises:
            ConfigurationError: the store refuses a call.
            StorageError: the store does not answer.
        """
        probe, moved = (self._base + _staged(owner) for _ in range(2))
        try:
            self._storage.put(probe, b"x")
            self._storage.move(probe, moved)
            self._storage.delete([moved])
            self._storage.walk(f"{self._base}{_STAGING}")
        except StorageError as error:
            if not refused(error):
                raise
            raise ConfigurationError(f"{self._name}: cannot write to {self.uri}: {error}") from error

    def create(self, bucket: str, final: str, owner: str) -> PartFile:
        """Begin an object in the staging directory."""
        pending = _staged(owner)
        return _StorePart(self._storage, self._base + pending, {"bucket": bucket, "pending": pending, "final": final})

    def publish(self, parts: Sequence[Any]) -> Iterable[bool]:
        """Move the objects to their final names, a few at a time."""
        return in_parallel(self._publish, parts)

    def _publish(self, data: Any) -> bool:
        with writing(self.told("finish", data["final"])):
            try:
                self._storage.move(self._base + data["pending"], self._final(data))
            except NotFound:
                return False
        return True

    def discard(self, parts: Sequence[Any]) -> None:
        """Delete objects in the staging directory."""
        self._storage.delete([self._base + data["pending"] for data in parts])

    def flush(self, buckets: Iterable[str]) -> None:
        """Do nothing: what a store has answered is durable."""

    def sweep(self, owner: str, generation: int) -> None:
        """Delete this sink's objects in the staging directory that belong to earlier drivers."""
        found = [info.path for info in self._storage.walk(f"{self._base}{_STAGING}/{owner}")]
        self._storage.delete([path for path in found if int(path.rpartition("/")[2].partition("-")[0]) < generation])

    def pending(self, data: Any) -> str:
        """The object in the staging directory."""
        return f"{self.uri}/{data['pending']}"

    def _final(self, data: Any) -> str:
        # As in a file system: stores have no names with empty parts or dots.
        return "/".join(each for each in f"{self._base}{data['bucket']}/{data['final']}".split("/") if each not in ("", "."))

    def final(self, data: Any) -> str:
        """The finished object."""
        return self._storage.locate(self._final(data))

    def told(self, what: str, name: str) -> str:
        """What failed, for errors."""
        return f"{self._name}: cannot {what} {self.uri}/{name}"


class _StorePart:
    """An object in progress. It is begun with the first byte, as an empty one is not written."""

    def __init__(self, storage: FileStorage, path: str, data: dict[str, Any]) -> None:
        self._storage = storage
        self._path = path
        self._data = data
        self._stream = _Sending(lambda: storage.create(path))
        self.stream: BinaryIO = io.BufferedWriter(self._stream, 1 << 20)

    @property
    def size(self) -> int:
        return self.stream.tell()

    def finish(self) -> dict[str, Any] | None:
        self.stream.close()
        return self._data if self._stream.finish() else None

    def drop(self, abandon: Callable[[], None]) -> None:
        self._stream.deaf = True
        try:
            abandon()
            self.stream.close()
            if self._stream.finish():  # an upload in parts ends only so
                self._storage.delete([self._path])
        except StorageError as e:
            _log.warning("%s of an abandoned epoch stays until the job is started again: %s", self._path, e)


class _Sending(io.RawIOBase):
    """A stream into an `ObjectWriter`."""

    def __init__(self, create: Callable[[], ObjectWriter]) -> None:
        self._create = create
        self._writer: ObjectWriter | None = None
        self._position = 0
        self._complete = False
        self.deaf = False
        """Whether further bytes are ignored."""

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        if not self.deaf:
            if self._writer is None:
                self._writer = self._create()
            self._writer.write(data)
        self._position += len(data)
        return len(data)

    def finish(self) -> bool:
        """Complete the object; returns whether there is one."""
        if self._writer is not None and not self._complete:
            self._writer.close()
            self._complete = True
        return self._complete


def _staged(owner: str) -> str:
    """A new name in the staging directory."""
    sink, _, generation = owner.rpartition("-")
    return f"{_STAGING}/{sink}/{generation}-{secrets.token_hex(16)}"


def _sink_name(uid: str) -> str:
    return f"FileSink (uid {uid!r})" if uid else "FileSink"


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # another driver, or the writer itself, deleted it first
