"""The interface of plain object I/O under a checkpoint storage: `ObjectStore` and its errors."""

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
    """The store did not answer, or answered "slow down" (503): the call may be repeated.

    The effect of a modifying call is unknown.
    """


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
