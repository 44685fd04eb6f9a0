"""Damaged files: what a library raises for them becomes an error that names the file and ends the job."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.errors import ConfigurationError, HoldfastError, UserCodeError

__all__ = ["decoded", "decoding"]

T = TypeVar("T")


@contextmanager
def decoding(path: str, what: str, place: str = "") -> Iterator[None]:
    """Name the file in errors of its content.

    Libraries raise anything for damaged bytes, also out of memory for a length that is none. Errors of the system (those
    with a number) and of the store are let through, but for those of an offset that is none.

    Args:
        path: The file.
        what: What is wrong with it, e.g. ``is not an Avro file that can be read``.
        place: Where; by default the file.

    Raises:
        UserCodeError: the content cannot be decoded.
    """
    try:
        yield
    except Exception as error:
        of_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL, errno.EOVERFLOW)
        if of_system or (isinstance(error, HoldfastError) and not isinstance(error, ConfigurationError)):
            raise
        told = f"{path}: {what}: {type(error).__name__}: {error}"
        raise UserCodeError(told, record=place or path) from error


def decoded(pieces: Iterator[T], path: str, what: str) -> Iterator[T]:
    """The pieces of a file, with the file's name in errors of its content."""
    while True:
        with decoding(path, what):
            try:
                piece = next(pieces)
            except StopIteration:
                return
        yield piece
