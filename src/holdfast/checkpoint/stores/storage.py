"""Storage: the objects under one URI, in a file system or an object store, with retries.

Correctness rests on one primitive, `Storage.put_new`: of all callers that put the same path, exactly one succeeds. No
other property of the store is needed: no rename, no ordered or complete listing, no lock.

An `ObjectStore` does plain I/O and classifies its errors. `Storage` retries, and resolves the outcome of a put whose
answer was lost. Tests inject faults between the two (`holdfast.testing`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.ids import LogPosition
from holdfast.checkpoint.paths import STORES, JobPaths, split_uri
from holdfast.checkpoint.stores.azure_store import AzureStore
from holdfast.checkpoint.stores.bucket import PART
from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.checkpoint.stores.gs_store import GSStore
from holdfast.checkpoint.stores.hdfs_store import HDFSStore
from holdfast.checkpoint.stores.log_router import LogRouter
from holdfast.checkpoint.stores.log_settings import LOG, log_in_topic, routed
from holdfast.checkpoint.stores.object_store import (
    AlreadyExists,
    Data,
    FileStore,
    NotFound,
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    Throttled,
    Unavailable,
)
from holdfast.checkpoint.stores.s3_store import S3Store
from holdfast.checkpoint.stores.signed_store import KEY_FILE, SignedStore, read_keys
from holdfast.errors import ConfigurationError, StorageError
from holdfast.metrics.requests import NONE, RequestCounter, Requests

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "AlreadyExists",
    "Data",
    "FileStorage",
    "NotFound",
    "ObjectStore",
    "RetryPolicy",
    "Storage",
    "Unavailable",
    "open_store",
    "refused",
    "storage_options",
]

T = TypeVar("T")

_SETTINGS = ("s3.", "gs.", "fs.azure.", "hdfs.", f"{LOG}.")
_URIS = (
    "file:///a/directory, s3://bucket/prefix, gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix or "
    "hdfs://namenode/directory"
)
_random = random.SystemRandom()  # forks draw different numbers, and the program's `random` is not touched
_counters: dict[str, RequestCounter] = {}
"""By URI: counts all requests of this process to a storage, however often it is opened."""
_PAGE = 1000
"""Number of objects that one request lists or deletes."""


@dataclass(frozen=True)
class RetryPolicy:
    """The limits and delays of retries, in seconds."""

    budget: float = 60.0
    """After this time since the first failure, the last error is raised. The first attempt may take any time."""
    first_delay: float = 0.1
    longest_delay: float = 5.0

    def delay(self, tries: int) -> float:
        """The pause after ``tries`` failed attempts: exponential, with jitter so that tasks do not retry in step."""
        ceiling = min(self.longest_delay, self.first_delay * 2.0 ** min(tries - 1, 30))
        return ceiling * _random.uniform(0.5, 1.0)


def refused(error: StorageError) -> bool:
    """Whether a `Storage` refused a call, so that repeating it would not help; if not, it did not answer."""
    return not isinstance(error.__cause__, Unavailable)


def storage_options(config: Mapping[str, str]) -> dict[str, str]:
    """The settings of `Storage.open` in a configuration: those of the stores, the checkpoint log, and the signing keys."""
    return {key: value for key, value in config.items() if key.startswith(_SETTINGS) or key in (KEY_FILE, LOG)}


def open_store(uri: str, config: Mapping[str, str]) -> DirectoryStore | FileStore:
    """Open the plain store at a URI; see `Storage.open`.

    Raises:
        ConfigurationError: the URI or a setting is invalid.
    """
    parts = urlsplit(uri)
    if not uri:
        raise ConfigurationError(f"the checkpoint storage's URI is empty; give {_URIS}")
    if "://" not in uri and not uri.startswith("file:"):
        if parts.scheme in STORES:  # a local directory of this name would be surprising
            raise ConfigurationError(f"{uri}: {parts.scheme}:// needs the name of a bucket or host; use {_URIS}")
        return DirectoryStore(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{uri}: a file URI has three slashes; did you mean file:///{parts.netloc}{parts.path}?"
            )
        return DirectoryStore(unquote(parts.path))
    scheme, authority, path = split_uri(uri)
    if scheme == "s3":
        return S3Store(authority, path, dict(config))
    if scheme == "gs":
        return GSStore(authority, path, dict(config))
    if scheme == "abfss":
        return AzureStore(authority, path, dict(config))
    if scheme == "hdfs":
        return HDFSStore(authority, unquote(f"/{path}"), dict(config))
    raise ConfigurationError(f"{uri}: files cannot be stored under {parts.scheme}://; use {_URIS}")


class Storage:
    """The objects under one URI. Thread-safe; open one per process."""

    def __init__(
        self,
        store: ObjectStore,
        retry: RetryPolicy = RetryPolicy(),
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        counter: RequestCounter | None = None,
    ) -> None:
        self._store = store
        self._directory = store if isinstance(store, DirectoryStore) else None
        """The store, if its objects are plain local files."""
        self._retry = retry
        self._sleep = sleep
        self._clock = clock
        self.requests = RequestCounter() if counter is None else counter
        """Counts this process's requests to the storage."""

    @classmethod
    def open(cls, uri: str, config: Mapping[str, str] | None = None) -> Self:
        """Open the storage at ``uri``.

        ``file:///dir`` or a plain local path, ``s3://bucket/prefix`` (also ``s3a``), ``gs://bucket/prefix``,
        ``abfss://container@account.dfs.core.windows.net/prefix``, ``hdfs://namenode/dir``.

        Opening does no I/O; call `check` once, in the driver, before the job starts.

        Args:
            uri: The storage's URI.
            config: The job's configuration; the keys of the storage are used (see the modules of the stores), and
                ``security.checkpoints.key-file``: the storage then signs what it writes, and reads only what is signed; and
                ``execution.checkpointing.log``, which puts the logs of jobs into topics.

        Raises:
            ConfigurationError: the URI or a setting is invalid.
        """
        config = config or {}
        key_file = config.get(KEY_FILE)
        files = open_store(uri, config)
        counter = _counters.setdefault(files.uri, RequestCounter())
        keys = read_keys(key_file) if key_file else ()

        def signed(store: ObjectStore) -> ObjectStore:
            return SignedStore(store, keys) if keys else store

        if not log_in_topic(config):
            return cls(signed(files), counter=counter)
        storage = cls(routed(signed(files), config, signed), counter=counter)
        storage._directory = files if isinstance(files, DirectoryStore) and not keys else None
        return storage

    def with_retries(self, retry: RetryPolicy) -> Storage:
        """The same objects, with other retry limits."""
        other = Storage(self._store, retry, self._sleep, self._clock, self.requests)
        other._directory = self._directory
        return other

    @property
    def uri(self) -> str:
        """The base URI of all paths."""
        return self._store.uri

    @property
    def in_file_system(self) -> bool:
        """Whether the objects are files, of this host or of HDFS; in a bucket, each request costs money."""
        return urlsplit(self.uri).scheme in ("file", "hdfs")

    def locate(self, path: str) -> str:
        """The full name of an object, for error messages."""
        return f"{self.uri}{path}" if self.uri.endswith("/") else f"{self.uri}/{path}"

    def put(self, path: str, data: Data) -> None:
        """Put an object. The path must be unique to this attempt, because a retry overwrites.

        Raises:
            StorageError: the storage refused the write, or the retry budget ran out. The object may exist nevertheless.
        """
        self._repeat(f"put {path}", lambda: self._store.put(path, data), self._putting(path, data))

    def link(self, path: str, source: str) -> bool:
        """Hard-link a local file that will not change into the storage. False: the file must be read and put instead.

        The path must be unique to this attempt.

        Raises:
            OSError: the file cannot be read.
            StorageError: the storage refused the link.
        """
        return self._directory is not None and self._directory.link(path, source)

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free; of several callers, exactly one succeeds.

        ``data`` must differ from all other callers' data (contain the writer's identity): if the answer of a put is lost,
        the object's content tells whose put succeeded.

        Raises:
            AlreadyExists: another caller's object exists.
            StorageError: the storage refused the write, or the retry budget ran out. The outcome is *unknown*: the object
                may exist now or appear later. A repeated call with the same data finds out.
        """

        def attempt() -> None:
            try:
                self._store.put_new(path, data)
            except AlreadyExists:
                self.requests.add(self._asking(path, Requests(get=1)))
                try:
                    found = self._store.get(path)
                except NotFound as gone:
                    # Some stores answer "conflict" during a competing put that later fails.
                    raise Unavailable(f"{self.locate(path)}: conflict, but no object exists") from gone
                if found != data:
                    raise

        self._repeat(f"put {path}", attempt, self._putting(path, data))

    def get(self, path: str) -> bytes:
        """Read an object.

        Raises:
            NotFound: the object does not exist.
            StorageError: the storage refused the read, or the retry budget ran out.
        """
        return self._read(path, lambda: self._store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read up to ``length`` bytes of an object from ``start`` on; fewer at its end.

        Raises:
            NotFound: the object does not exist.
            StorageError: the storage refused the read, or the retry budget ran out.
        """
        return self._read(path, lambda: self._store.get_range(path, start, length))

    def map(self, path: str) -> memoryview | None:
        """Map an object into memory, read-only; its bytes are read when used. None: it must be read with `get`.

        Raises:
            NotFound: the object does not exist.
        """
        if self._directory is None:
            return None
        try:
            return self._directory.map(path)
        except NotFound:
            raise
        except (StorageError, ValueError):  # a file system without memory maps, too many open files, or an empty file
            return None

    def local_path(self, path: str) -> str | None:
        """The path of the object's local file; None if no local file holds exactly its content."""
        return None if self._directory is None else self._directory.local_path(path)

    def size(self, path: str) -> int:
        """The size of an object in bytes.

        Raises:
            NotFound: the object does not exist.
            StorageError: the storage refused the request, or the retry budget ran out.
        """
        return self._repeat(f"look up {path}", lambda: self._store.size(path), self._asking(path, Requests(head=1)))

    def exists(self, path: str) -> bool:
        """Whether the object exists."""
        try:
            self.size(path)
        except NotFound:
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with ``prefix`` (ending in ``/``), in any order.

        The listing may be outdated: recent objects may be missing, and deleted ones included. It includes a local store's
        unfinished part files.
        """
        found = self._repeat(f"list {prefix}".strip(), lambda: self._store.list(prefix), Requests(list=1))
        self.requests.add(Requests(list=_pages(found) - 1))
        return found

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are no error.

        Raises:
            StorageError: the retry budget ran out before all objects were deleted.
        """
        every = list(paths)
        if every:
            stored = [path for path in every if not self._in_topic(path)]
            asked = Requests(delete=_pages(stored)) if stored else NONE
            self._repeat(f"delete {len(every)} objects", lambda: self._store.delete(every), asked)

    def delete_job(self, paths: JobPaths) -> None:
        """Delete all objects of a job, with its log.

        Raises:
            StorageError: the retry budget ran out before all objects were deleted.
        """
        prefix = f"{paths.directory}/"
        if isinstance(self._store, LogRouter):
            self._store.clear(paths.directory)
        self.delete(self.list(prefix))

    def trim_log(self, paths: JobPaths, oldest: LogPosition, needed: Collection[LogPosition]) -> None:
        """Delete entries of a log in a topic; in a store, entries are deleted like other objects.

        Args:
            paths: The job's paths.
            oldest: All entries from this one on stay.
            needed: Older entries that are needed, too.

        Raises:
            StorageError: the storage or the brokers do not answer.
        """
        router = self._store
        if isinstance(router, LogRouter):
            self._repeat("trim the log", lambda: router.trim(paths.directory, oldest, needed))

    def check(self, paths: JobPaths) -> None:
        """Check, before a job starts, that the storage supports every needed operation.

        Raises:
            ConfigurationError: not writable, planted, bucket missing, no conditional put, ...; the message names the remedy.
            StorageError: the storage does not answer.
        """
        if self._directory is not None:
            self._directory.refuse_planted(paths.directory)
        probe = paths.probe(time.time_ns() // 1_000_000)
        try:
            self.put_new(probe, b"first")
            try:
                self.put_new(probe, b"second")
            except AlreadyExists:
                pass
            else:
                raise ConfigurationError(
                    f"{self.uri}: the store overwrites an existing object despite put-if-absent (HTTP's If-None-Match), so "
                    "two drivers could not be told apart; use a store that supports it"
                )
            if self.get(probe) != b"first":
                raise ConfigurationError(f"{self.uri}: the store does not return the stored content")
            self.list(paths.probe_prefix)
            self.delete([probe])
        except StorageError as error:
            told = f"the checkpoint storage {self.uri} (execution.checkpointing.dir)"
            if refused(error):
                raise ConfigurationError(f"{told} cannot be used: {error}") from error
            raise StorageError(f"{told} does not answer: {error}") from error

    def _read(self, path: str, call: Callable[[], bytes]) -> bytes:
        data = self._repeat(f"get {path}", call, self._asking(path, Requests(get=1)))
        self.requests.add(self._asking(path, Requests(bytes_read=len(data))))
        return data

    def _in_topic(self, path: str) -> bool:
        return isinstance(self._store, LogRouter) and self._store.in_topic(path)

    def _asking(self, path: str, requests: Requests) -> Requests:
        """The number of requests to the store; none for an object in a topic."""
        return NONE if self._in_topic(path) else requests

    def _putting(self, path: str, data: Data) -> Requests:
        return Requests(log_records=1, log_bytes=len(data)) if self._in_topic(path) else _put(data)

    def _repeat(self, what: str, call: Callable[[], T], asked: Requests = NONE) -> T:
        deadline: float | None = None
        tries = 0
        while True:
            self.requests.add(asked)
            try:
                return call()
            except Unavailable as error:
                tries += 1
                self.requests.add(Requests(retries=1, throttled=int(isinstance(error, Throttled))))
                pause = self._retry.delay(tries)
                now = self._clock()
                deadline = now + self._retry.budget if deadline is None else deadline
                if now + pause > deadline:
                    raise StorageError(
                        f"{self.uri}: could not {what} within {self._retry.budget:g} s ({tries} tries): {error}"
                    ) from error
                self._sleep(pause)


def _pages(objects: Sequence[str]) -> int:
    return max(1, -(-len(objects) // _PAGE))


def _put(data: Data) -> Requests:
    """The requests that put an object; for one put in parts, one request per part and two more."""
    parts = -(-len(data) // PART)
    return Requests(put=1 if parts <= 1 else parts + 2, bytes_written=len(data))


class FileStorage(Storage):
    """A `Storage` for users' files, which may be large. It signs nothing."""

    def __init__(self, store: FileStore, retry: RetryPolicy = RetryPolicy()) -> None:
        super().__init__(store, retry)
        self._files = store

    @classmethod
    def open(cls, uri: str, config: Mapping[str, str] | None = None) -> Self:
        """Open the storage at a URI of an object store or HDFS.

        Raises:
            ConfigurationError: the URI or a setting is invalid, or the URI is that of a local directory.
        """
        store = open_store(uri, config or {})
        if isinstance(store, DirectoryStore):
            raise ConfigurationError(f"{uri} is a local directory")
        return cls(store)

    @property
    def appear_whole(self) -> bool:
        """Whether objects appear only when they are complete; otherwise while they are written."""
        return self._files.appear_whole

    def look_up(self, path: str) -> ObjectInfo:
        """Describe an object.

        Raises:
            NotFound: the object does not exist.
            StorageError: the storage refused the request, or the retry budget ran out.
        """
        return self._repeat(f"look up {path}", lambda: self._files.look_up(path))

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """Describe the objects under a directory, in any order; none if it does not exist."""
        return self._repeat(f"list {directory}", lambda: self._files.walk(directory))

    def create(self, path: str) -> ObjectWriter:
        """Start an object at a free path."""
        return self._repeat(f"write {path}", lambda: self._files.create(path))

    def move(self, source: str, target: str) -> None:
        """Move an object to a path that no other object ever has; an object that was already moved there stays.

        Raises:
            NotFound: no object is at either path.
            StorageError: the storage refused the move, or the retry budget ran out.
        """

        def attempt() -> None:
            try:
                self._files.move(source, target)
            except NotFound:
                self._files.look_up(target)

        self._repeat(f"move {source} to {target}", attempt)
