"""CheckedWriter: an `ObjectWriter` over a file of a store's client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from holdfast.checkpoint.stores.object_store import Data

__all__ = ["CheckedWriter"]


class CheckedWriter:
    """Writes an object of any size to a file of a store's client.

    Args:
        file: The client's file.
        errors: Creates the context that turns the client's errors into the store's.
    """

    def __init__(self, file: Any, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._errors = errors

    def write(self, data: Data) -> None:
        """Append bytes; the client may send them later."""
        with self._errors():
            self._file.write(bytes(data))

    def close(self) -> None:
        """Send the rest, and make the object durable under its path."""
        with self._errors():
            self._file.close()
