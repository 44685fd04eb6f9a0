"""The plain I/O that a checkpoint storage is built on: `ObjectStore` and the errors it raises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.errors import StorageError

__all__ = ["AlreadyExists", "Data", "NotFound", "ObjectStore", "Unavailable"]

Data = bytes | bytearray | memoryview


class NotFound(StorageError):
    """The path holds no object."""


class AlreadyExists(StorageError):
    """The path already holds a different object."""


class Unavailable(StorageError):
    """The store did not answer, or asked to be called again later (503): the call may be repeated.

    Whether a call that changes something took effect is not known.
    """


class ObjectStore(Protocol):
    """A store's plain I/O. Paths are relative, with ``/``.

    All methods raise `Unavailable` when a repetition may help and another `StorageError` when it will not.
    """

    @property
    def uri(self) -> str:
        """What the paths are relative to, for messages."""

    def put(self, path: str, data: Data) -> None:
        """Put an object, all of it or nothing, replacing one that is there."""

    def put_new(self, path: str, data: Data) -> None:
        """Put an object, all of it or nothing, if none is there; else raise `AlreadyExists`."""

    def get(self, path: str) -> bytes:
        """The object's content, or `NotFound`."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """``length`` bytes of the object from ``start`` on, fewer where it ends before; or `NotFound`."""

    def size(self, path: str) -> int:
        """The object's size in bytes, or `NotFound`."""

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with ``prefix`` (which ends in ``/``), in any order; may lag behind."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; those that do not exist are no error."""
