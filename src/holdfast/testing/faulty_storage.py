"""FaultyStorage: a store with injected faults, between `Storage` with its retries and the real store.

>>> from holdfast.checkpoint.stores.storage import RetryPolicy, Storage
>>> from holdfast.testing.memory_store import MemoryStore
>>> faulty = FaultyStorage(MemoryStore())
>>> faulty.on_call(1, "put_new", Fault.LOST_ANSWER)
>>> storage = Storage(faulty, RetryPolicy(budget=1, first_delay=0))
>>> storage.put_new("a", b"mine")
>>> faulty.calls
['put_new a', 'put_new a', 'get a']
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.checkpoint.stores.object_store import Data, FileStore, ObjectInfo, ObjectStore, ObjectWriter, Unavailable
from holdfast.errors import StorageError

__all__ = ["Fault", "FaultyStorage", "lag_listings"]

T = TypeVar("T")


class Fault(Enum):
    """The fault of a call."""

    UNAVAILABLE = "the call has no effect; 503"
    LOST_ANSWER = "the call takes effect; its answer is lost"
    REFUSED = "the call has no effect; a retry would not help"


class FaultyStorage:
    """An `ObjectStore` that wraps another one. ``calls`` lists the calls as ``method path``.

    Args:
        store: The store for calls without a fault.
        decide: Called before each call with the method's name and the path (for ``delete``, the first path); returns the
            fault, or None. It may also block, to hold a call back.
    """

    def __init__(self, store: ObjectStore, decide: Callable[[str, str], Fault | None] | None = None) -> None:
        self._store = store
        self._decide = decide
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._planned: dict[tuple[str, int], Fault] = {}
        self._delays: dict[str, float] = {}
        self.calls: list[str] = []

    def on_call(self, n: int, method: str, fault: Fault) -> None:
        """Inject a fault into the ``n``-th call of a method from now on (1 is the next)."""
        with self._lock:
            self._planned[method, self._counts[method] + n] = fault

    def delay(self, method: str, seconds: float) -> None:
        """Delay the effect of all calls of a method."""
        self._delays[method] = seconds

    @property
    def uri(self) -> str:
        """The URI of the real store."""
        return self._store.uri

    def put(self, path: str, data: Data) -> None:
        """Put an object, or fail."""
        self._call("put", path, lambda: self._store.put(path, data))

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free, or fail."""
        self._call("put_new", path, lambda: self._store.put_new(path, data))

    def get(self, path: str) -> bytes:
        """Read an object, or fail."""
        return self._call("get", path, lambda: self._store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part of an object, or fail."""
        return self._call("get_range", path, lambda: self._store.get_range(path, start, length))

    def size(self, path: str) -> int:
        """Return the object's size, or fail."""
        return self._call("size", path, lambda: self._store.size(path))

    def list(self, prefix: str) -> list[str]:
        """List the paths that begin with ``prefix``, or fail."""
        return self._call("list", prefix, lambda: self._store.list(prefix))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, or fail."""
        every = list(paths)
        self._call("delete", every[0] if every else "", lambda: self._store.delete(every))

    @property
    def appear_whole(self) -> bool:
        """Whether an object appears complete; of this and the next methods, the store must be a `FileStore`."""
        return self._files.appear_whole

    @property
    def _files(self) -> FileStore:
        return cast(FileStore, self._store)

    def look_up(self, path: str) -> ObjectInfo:
        """Describe an object, or fail."""
        return self._call("look_up", path, lambda: self._files.look_up(path))

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """Describe the objects under a directory, or fail."""
        return self._call("walk", directory, lambda: self._files.walk(directory))

    def create(self, path: str) -> ObjectWriter:
        """Begin an object, or fail."""
        return self._call("create", path, lambda: self._files.create(path))

    def move(self, source: str, target: str) -> None:
        """Move an object, or fail."""
        self._call("move", source, lambda: self._files.move(source, target))

    def _call(self, method: str, path: str, run: Callable[[], T]) -> T:
        with self._lock:
            self._counts[method] += 1
            fault = self._planned.pop((method, self._counts[method]), None)
            self.calls.append(f"{method} {path}")
        if fault is None and self._decide is not None:
            fault = self._decide(method, path)
        if method in self._delays:
            time.sleep(self._delays[method])
        if fault is Fault.UNAVAILABLE:
            raise Unavailable(f"injected: {method} {path}: 503 Slow Down")
        if fault is Fault.REFUSED:
            raise StorageError(f"injected: {method} {path}: refused")
        result = run()
        if fault is Fault.LOST_ANSWER:
            raise Unavailable(f"injected: {method} {path}: the answer was lost")
        return result


def lag_listings(seconds: float) -> None:
    """Let all listings of local stores in this process lag, like listings of some object stores.

    For ``seconds``, a listing omits new objects of any process, and still contains objects deleted by this process.
    """
    listed, deleted = DirectoryStore.list, DirectoryStore.delete
    gone: dict[str, float] = {}

    def list_(self: DirectoryStore, prefix: str) -> list[str]:
        now = time.time()
        shown = [path for path in listed(self, prefix) if _age(self, path, now) >= seconds]
        return shown + [path for path, at in list(gone.items()) if path.startswith(prefix) and now - at < seconds]

    def delete(self: DirectoryStore, paths: Iterable[str]) -> None:
        every = list(paths)
        deleted(self, every)
        gone.update(dict.fromkeys(every, time.time()))

    setattr(DirectoryStore, "list", list_)  # noqa: B010
    setattr(DirectoryStore, "delete", delete)  # noqa: B010


def _age(store: DirectoryStore, path: str, now: float) -> float:
    try:
        return now - (Path(unquote(urlsplit(store.uri).path)) / path).stat().st_mtime
    except FileNotFoundError:
        return 0.0
