"""The interfaces of plain object I/O, and its errors: `ObjectStore` for checkpoints, `FileStore` for users' files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from holdfast.errors import StorageError

__all__ = [
    "AlreadyExists",
    "Data",
    "FileStore",
    "NotFound",
    "ObjectInfo",
    "ObjectStore",
    "ObjectWriter",
    "Throttled",
    "Unavailable",
    "leaves",
]

Data = bytes | bytearray | memoryview


def leaves(path: str) -> bool:
    """Whether a path would name something outside of its store.

    >>> leaves("job/state/a..b"), leaves("job/../../other"), leaves("/etc/passwd")
    (False, True, True)
    """
    return path.startswith("/") or (".." in path and ".." in path.split("/")) or "\0" in path


class NotFound(StorageError):
    """The path holds no object."""


class AlreadyExists(StorageError):
    """The path already holds a different object."""


class Unavailable(StorageError):
    """The store did not answer, or cannot at the moment: the call may be repeated.

    The effect of a modifying call is unknown.
    """


class Throttled(Unavailable):
    """The store answered that it gets too many requests (503, 429)."""


class ObjectStore(Protocol):
    """A store's plain I/O. Paths are relative and use ``/``.

    All methods raise `Unavailable` if a retry may help, and another `StorageError` if it will not.
    """

    @property
    def uri(self) -> str:
        """The base URI of all paths, for error messages."""

    def put(self, path: str, data: Data) -> None:
        """Put an object atomically; an existing one is replaced."""

    def put_new(self, path: str, data: Data) -> None:
        """Put an object atomically if the path is free; otherwise raise `AlreadyExists`."""

    def get(self, path: str) -> bytes:
        """The object's content; raises `NotFound`."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes of the object from ``start`` on, fewer at its end; raises `NotFound`."""

    def size(self, path: str) -> int:
        """The object's size in bytes; raises `NotFound`."""

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with ``prefix`` (ending in ``/``), in any order; may be outdated."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""


class ObjectInfo(NamedTuple):
    """An object in a listing."""

    path: str
    size: int
    changed_ms: int
    """The time of the last change, in ms since 1970."""
    version: str | int
    """Differs between any two contents of the path: the ETag, or the time of the last change."""


class ObjectWriter(Protocol):
    """Writes an object of any size, a few MB at a time. If dropped without `close`, it leaves no object."""

    def write(self, data: Data) -> None:
        """Append bytes."""

    def close(self) -> None:
        """Make the object durable under its path."""


class FileStore(ObjectStore, Protocol):
    """An object store that also holds users' files, which may be large."""

    appear_whole: bool
    """Whether objects appear only when they are complete; otherwise while they are written."""

    def look_up(self, path: str) -> ObjectInfo:
        """Describe an object; raises `NotFound`."""

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """Describe the objects under a directory, in any order; none if it does not exist."""

    def create(self, path: str) -> ObjectWriter:
        """Start an object at a free path."""

    def move(self, source: str, target: str) -> None:
        """Move an object to a path that no other object ever has; raises `NotFound`.

        Repeatable: a move that was interrupted, or whose answer was lost, may be repeated until the source is gone.
        """
