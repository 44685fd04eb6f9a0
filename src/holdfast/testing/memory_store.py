"""An object store in memory, for tests on top of `Storage`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence

from holdfast.checkpoint.stores.object_store import AlreadyExists, Data, NotFound, ObjectInfo

__all__ = ["MemoryStore"]


class MemoryStore:
    """Objects in a dict: a `FileStore`. Calls are atomic, as in a real store; a move is a copy and a delete.

    ``step`` is called between the two.
    """

    appear_whole = True

    def __init__(self, step: Callable[[], None] = lambda: None) -> None:
        self.objects: dict[str, bytes] = {}
        self._step = step
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """The base URI of all paths."""
        return "memory:"

    def put(self, path: str, data: Data) -> None:
        """Put an object; an existing one is replaced."""
        self.objects[path] = bytes(data)

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free."""
        with self._lock:
            if path in self.objects:
                raise AlreadyExists(f"memory:/{path}: exists already")
            self.objects[path] = bytes(data)

    def get(self, path: str) -> bytes:
        """The object's content."""
        try:
            return self.objects[path]
        except KeyError:
            raise NotFound(f"memory:/{path}: no such object") from None

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """A part of an object's content."""
        return self.get(path)[start : start + length]

    def size(self, path: str) -> int:
        """The object's size in bytes."""
        return len(self.get(path))

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with ``prefix``."""
        return [path for path in list(self.objects) if path.startswith(prefix)]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""
        for path in paths:
            self.objects.pop(path, None)

    def look_up(self, path: str) -> ObjectInfo:
        """Describe an object; its version is a hash of the content, as an ETag."""
        data = self.get(path)
        return ObjectInfo(path, len(data), 0, hashlib.md5(data).hexdigest())

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """Describe the objects under a directory."""
        return [self.look_up(path) for path in self.list(f"{directory}/" if directory else "")]

    def create(self, path: str) -> MemoryWriter:
        """Begin an object."""
        return MemoryWriter(self, path)

    def move(self, source: str, target: str) -> None:
        """Copy an object, then delete it."""
        self.put(target, self.get(source))
        self._step()
        self.delete([source])


class MemoryWriter:
    """An object in progress."""

    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store = store
        self._path = path
        self._data = bytearray()

    def write(self, data: Data) -> None:
        """Append bytes."""
        self._data += data

    def close(self) -> None:
        """Put the object."""
        self._store.put(self._path, self._data)
