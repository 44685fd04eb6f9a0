"""The file source: a fixed set of files, or directories watched for new files.

Files are on the local file system, in object stores or in HDFS. Every file is a split, read from its start to the size that
it has when its turn comes; an epoch reads a range of it. Up to 16 files are read in parallel and advance in proportion to
the rest of each, so that files covering the same time stay aligned. The watermark waits for files in progress, but not for
files that have not begun.

A file that is replaced or changed while it is read stops the job with a message. Data appended meanwhile is ignored.

In a watched directory, a file is read once its size is unchanged for a discovery interval; in an object store, where files
appear complete, at once. It must not change after that,
even when it is fully read: new content stops the job, because ignoring it would lose records silently.
Files should appear complete: write them under a name that begins with ``.`` or ``_``, or elsewhere on the same file
system, then rename them. A path counts as read while the directory has it: a file that is removed, and returns after a
check of the directory, is read again.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any, Generic, NoReturn

from holdfast.checkpoint.ids import CheckpointId
from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import R, T
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange, check_form, produced_type
from holdfast.connectors.file.files import FileSystems, FileVersion, Found, InputFile
from holdfast.connectors.file.formats import FileFormat
from holdfast.connectors.file.paths import absolute_path, canonical, is_below
from holdfast.connectors.file.refusals import failure, reading
from holdfast.connectors.file.versions import check_same, end_of, restoring, version_of
from holdfast.errors import ConfigurationError, IncompatibleState, InputLost, StorageError

__all__ = ["FileSource", "FileSourceBuilder"]

_SIDE_BY_SIDE = 16
"""Number of files read in parallel: enough to keep subtasks busy, few enough to open in every epoch."""
_RECORD_SIZE = 100.0
"""Assumed bytes per record in files not opened yet."""
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4", ".snappy")


class FileSource(Generic[T]):
    """A source of records in files.

    Args:
        format: The format of the files, one of `StreamFormat`.
        paths: Files and directories: local paths, or URIs (``file://``, ``s3://``, ``gs://``, ``abfss://``, ``hdfs://``).
            They are read recursively; names that begin with ``.`` or ``_`` are left out.
        discovery_interval: The time between checks for new files: the source never ends. A file is read once its size is
            unchanged for this time. None: read only the files found at the start.

    Raises:
        ConfigurationError: no path is given, or one is on a file system that is not known, or the interval is shorter than a
            millisecond.
    """

    timestamped = False
    """Records have no timestamps of their own."""

    def __init__(
        self,
        format: FileFormat[T],
        paths: str | Sequence[str],
        *,
        discovery_interval: Duration | Time | datetime.timedelta | None = None,
    ) -> None:
        if not paths:
            raise ConfigurationError("a file source needs at least one path")
        interval = None if discovery_interval is None else to_milliseconds(discovery_interval)
        if interval is not None and interval <= 0:
            raise ConfigurationError("the discovery interval must be at least a millisecond")
        self.format = format
        self.paths = tuple(absolute_path(path) for path in ([paths] if isinstance(paths, str) else paths))
        self.discovery_interval = interval

    @staticmethod
    def for_record_stream_format(stream_format: FileFormat[R], *paths: str) -> FileSourceBuilder[R]:
        """Return a builder of a source that reads these files, and all files under these directories.

        Args:
            stream_format: One of `StreamFormat`.
            paths: Local paths, or URIs of files (``file://``, ``s3://``, ``gs://``, ``abfss://``, ``hdfs://``).
        """
        return FileSourceBuilder(stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: FileFormat[R], *paths: str) -> FileSourceBuilder[R]:
        """Return a builder of a source of Parquet, Arrow or Avro files; the same as `for_record_stream_format`."""
        return FileSourceBuilder(bulk_format, paths)

    @property
    def bounded(self) -> bool:
        """Whether the source is bounded: True unless it watches directories."""
        return self.discovery_interval is None

    def get_produced_type(self) -> TypeInformation | None:
        """The records' type, if the format has a schema that declares it."""
        return produced_type(self.format)

    def create_enumerator(self, job: JobInfo, uid: str) -> FileEnumerator:
        """Create the enumerator."""
        return FileEnumerator(self.format, self.paths, self.discovery_interval, job.storage_config, uid)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in files."""
        check_form(state, ("waiting", "done", "active"), "FileSource")
        for path in (*state["waiting"], *state["active"]):
            if not any(is_below(canonical(path), each) for each in self.paths):
                raise IncompatibleState(
                    f"it goes on with {path}, which is not under the paths of the FileSource, {', '.join(self.paths)}: give "
                    "the source that path, too, until it has read the file"
                )

    def create_reader(self, context: ReaderContext) -> FileReader[T]:
        """Create a reader."""
        return FileReader(self.format, context.job.storage_config, context.uid)


class FileSourceBuilder(Generic[T]):
    """Collects the arguments of a `FileSource`."""

    def __init__(self, stream_format: FileFormat[T], paths: Sequence[str]) -> None:
        self._format = stream_format
        self._paths = paths
        self._interval: Duration | Time | datetime.timedelta | None = None

    def monitor_continuously(self, discovery_interval: Duration | Time | datetime.timedelta) -> FileSourceBuilder[T]:
        """Check for new files periodically; the source never ends.

        Args:
            discovery_interval: The time between checks. A file is read once its size is unchanged for this time.

        Raises:
            ConfigurationError: the interval is shorter than a millisecond.
        """
        FileSource(self._format, self._paths, discovery_interval=discovery_interval)  # refuses it here, not in build()
        self._interval = discovery_interval
        return self

    def process_static_file_set(self) -> FileSourceBuilder[T]:
        """Read the files that exist at the start, then end (the default)."""
        self._interval = None
        return self

    def set_file_enumerator(self, file_enumerator: object) -> NoReturn:
        """Refuse another enumerator of files.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a file enumerator is an object of the JVM; FileSource finds the files below its paths")

    def set_split_assigner(self, split_assigner: object) -> NoReturn:
        """Refuse another assigner of splits.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a split assigner is an object of the JVM; FileSource shares the files out itself")

    def build(self) -> FileSource[T]:
        """Build the source.

        Raises:
            ConfigurationError: no path was given, or one is on a file system that is not known.
        """
        return FileSource(self._format, self._paths, discovery_interval=self._interval)


@dataclass
class _InProgress:
    file: InputFile
    position: int
    length: int
    per_record: float
    """Approximate number of positions per record."""
    end: int
    """Hash of the file's end at its discovery (`end_of`)."""

    @property
    def records_left(self) -> float:
        return (self.length - self.position) / self.per_record


class FileEnumerator:
    """Finds the files and cuts them into epochs."""

    def __init__(
        self,
        format: FileFormat,
        paths: Sequence[str],
        interval_ms: int | None,
        config: Mapping[str, str] = MappingProxyType({}),
        uid: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._format = format
        self._systems = FileSystems(config)
        self._uid = uid
        self._paths = paths
        self._interval = None if interval_ms is None else interval_ms / 1000
        self._clock = clock
        self._next_scan = 0.0
        self._waiting: dict[str, FileVersion] = {}
        """Files found but not begun, in order."""
        self._active: dict[str, _InProgress] = {}
        self._done: dict[str, FileVersion] = {}
        """Fully read files; while watching, as long as the file exists. Without, for a later program that watches."""
        self._unsettled: dict[str, FileVersion] = {}
        """Files seen once that may still be written."""
        self._closed = threading.Event()

    def start(self, state: Any | None) -> None:
        """Find the files, or continue with those of the checkpoint.

        Raises:
            ConfigurationError: a path does not exist or cannot be read.
            InputLost: a file in progress is gone.
            StorageError: a file system or store does not answer.
        """
        with _named(self._uid):
            if state is None:
                self._start_anew()
            else:
                self._go_on(state)

    def _start_anew(self) -> None:
        if self._interval is None:
            self._waiting = {found.path: found.version for found in self._find()}
        else:
            self._scan(self._clock())

    def _go_on(self, state: Any) -> None:
        # A URI may have been stored as it was spelled then (s3a://).
        self._waiting = {canonical(path): FileVersion(*version) for path, version in state["waiting"].items()}
        self._done = {canonical(path): FileVersion(*version) for path, version in state["done"].items()}
        for stored, (position, end, *version) in state["active"].items():
            path = canonical(stored)
            with reading(path):
                file = self._systems.file(path, FileVersion(*version))
                check_same(file, end)
                self._begin(file).position = position
        if self._interval is not None:
            self._scan(self._clock())

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next range of every file in progress, in proportion to the rest of each.

        Raises:
            InputLost: a file is gone, or was changed.
            ConfigurationError: a file cannot be read.
            StorageError: a file system or store does not answer.
        """
        with _named(self._uid):
            return self._plan(max_records)

    def _plan(self, max_records: int) -> EpochInput:
        if self._interval is not None and self._clock() >= self._next_scan:
            self._scan(self._clock())
        ranges: list[SplitRange] = []
        budget = float(max(1, max_records))
        while True:
            while self._waiting and len(self._active) < _SIDE_BY_SIDE:
                path = next(iter(self._waiting))
                with reading(path):
                    self._begin(self._now(self._systems.file(path, self._waiting.pop(path))))
            left = sum(file.records_left for file in self._active.values())
            share = min(1.0, budget / left) if left else 1.0
            for path, file in list(self._active.items()):
                with reading(path):
                    part = self._take(path, file, share)
                if part is not None:
                    ranges.append(part)
                    budget -= part.weight
            if budget < 1 or self._active or not self._waiting:
                break
        finished = self._interval is None and not (self._active or self._waiting)
        return EpochInput(tuple(ranges), self._backlog(), finished)

    def snapshot(self) -> Any:
        """Return the position in every file in progress, the files not begun, and the finished files."""
        return {
            "waiting": {path: astuple(version) for path, version in self._waiting.items()},
            "active": {path: [file.position, file.end, *astuple(file.file.version)] for path, file in self._active.items()},
            "done": {path: astuple(version) for path, version in self._done.items()},
        }

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Nothing to free."""

    def wait(self, timeout: float) -> None:
        """Return at once while there is input, otherwise at the next check for new files."""
        if self._active or self._waiting:
            return
        if self._interval is not None:
            timeout = min(timeout, max(0.0, self._next_scan - self._clock()))
        self._closed.wait(timeout)

    def close(self) -> None:
        """End a wait."""
        self._closed.set()

    def _now(self, file: InputFile) -> InputFile:
        """The version that a file has when its turn comes."""
        version = version_of(file)
        if self._interval is not None and version != file.version:
            raise InputLost(_changed(file.path, file.version, version))
        return InputFile(file.path, file.files, version)

    def _begin(self, file: InputFile) -> _InProgress:
        length, per_record = self._format.measure(file)
        begun = self._active[file.path] = _InProgress(file, 0, length, per_record, end_of(file))
        return begun

    def _take(self, path: str, file: _InProgress, share: float) -> SplitRange | None:
        start, length = file.position, file.length
        end = min(length, start + max(1, round((length - start) * share)))
        if start < end < length:
            end = min(length, max(start + 1, self._format.cut(file.file, start, end)))
        file.position = end
        last = end == length
        if last:
            del self._active[path]
            self._done[path] = file.file.version
        if start == end:  # an empty file
            return None
        payload = (length, file.end, *astuple(file.file.version))
        return SplitRange(path, start, end, max(1, round((end - start) / file.per_record)), payload, last)

    def _backlog(self) -> int:
        begun = sum(file.records_left for file in self._active.values())
        return round(begun + sum(version.size for version in self._waiting.values()) / _RECORD_SIZE)

    def _find(self) -> list[Found]:
        """List all files at and under the paths, in alphabetical order.

        Raises:
            ConfigurationError: a path does not exist or cannot be read, or a file is compressed and the format does not read
                it.
            StorageError: a file system or store does not answer.
        """
        found: dict[str, Found] = {}
        for path in self._paths:
            files = self._systems.of(path)
            try:
                found.update((each.path, each) for each in files.find(path))
            except FileNotFoundError as e:
                if self._interval is None or not files.appear_whole:  # an object store has no empty directories
                    raise ConfigurationError(f"{path}: no such file or directory (of the paths given to the source)") from e
            except (OSError, StorageError) as e:
                raise failure(f"{path}: cannot be read", e) from e
        if not self._format.reads_compressed:
            for path in found:
                if path.endswith(_COMPRESSED):
                    raise ConfigurationError(f"{path}: compressed files cannot be cut into ranges; decompress it first")
        return sorted(found.values())

    def _scan(self, now: float) -> None:
        """Add new files, and check that known files are unchanged."""
        assert self._interval is not None
        self._next_scan = now + self._interval
        found = {each.path: each for each in self._find()}
        known = {**self._done, **self._waiting, **{path: file.file.version for path, file in self._active.items()}}
        settled: list[tuple[int, str, FileVersion]] = []
        unsettled = {}
        for path, each in found.items():
            seen, age = each.version, now - each.changed_ns / 1e9
            if path in known:
                if seen != known[path]:
                    raise InputLost(_changed(path, known[path], seen))
            elif self._unsettled.get(path) == seen or age >= self._interval or self._systems.of(path).appear_whole:
                settled.append((each.changed_ns, path, seen))
            else:
                unsettled[path] = seen
        self._unsettled = unsettled
        self._done = {path: version for path, version in self._done.items() if path in found}
        for _, path, version in sorted(settled, key=lambda file: file[:2]):
            self._waiting[path] = version


def _changed(path: str, picked_up: FileVersion, now: FileVersion) -> str:
    """Describe a changed file in a watched directory."""
    advice = (
        "files in a watched directory must be complete when they appear (write them under a name that begins with '.', then "
        "rename)"
    )
    touch = restoring(path, picked_up)
    if not touch:
        advice = "files in a watched directory must not change"
    elif now.size > picked_up.size:
        return (
            f"{path}: grew from {picked_up.size} to {now.size} bytes after it was picked up; {advice}. To go on, move what "
            f"was appended into a file of its own (tail -c +{picked_up.size + 1}) and cut this one back (truncate -s "
            f"{picked_up.size} {path}; {touch})"
        )
    original = f"; if it is the original, give it back its time of modification ({touch})" if touch else ""
    return (
        f"{path}: was replaced or changed after it was picked up (it had {picked_up.size} bytes, now {now.size}); {advice}. "
        "To go on, give the new content a name of its own, and remove this file if it was read to its end, or put the "
        f"original back{original}"
    )


@contextmanager
def _named(uid: str) -> Iterator[None]:
    """Name the source in errors of its files."""
    try:
        yield
    except (ConfigurationError, InputLost, StorageError) as error:
        kind = next(each for each in (ConfigurationError, InputLost, StorageError) if isinstance(error, each))
        raise kind(f"{error} [file source, uid {uid!r}]") from error


class FileReader(Generic[T]):
    """Reads ranges of files. Opens the file for each range: this is cheap, and never reads a replaced file."""

    def __init__(self, format: FileFormat[T], config: Mapping[str, str], uid: str) -> None:
        self._format = format
        self._systems = FileSystems(config)
        self._uid = uid

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch[T]]:
        """Read the records of the range.

        Raises:
            UserCodeError: a record does not parse; ``record`` is its file and line.
            InputLost: the file is gone or was replaced.
            ConfigurationError: the file cannot be read.
            StorageError: a file system or store does not answer.
        """
        length, end, *version = part.payload
        with _named(self._uid), reading(part.split):
            file = self._systems.file(part.split, FileVersion(*version))
            check_same(file, end)
            yield from self._format.read(file, part.start, part.end, length, max_batch)
            check_same(file, end)  # it may have been replaced before the open, or changed since

    def close(self) -> None:
        """Do nothing: no file is open between ranges."""
