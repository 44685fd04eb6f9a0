"""An object store in memory, for tests on top of `Storage`."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from holdfast.checkpoint.storage import AlreadyExists, Data, NotFound

__all__ = ["MemoryStore"]


class MemoryStore:
    """Objects in a dict. Calls are atomic, as in a real store."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
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
