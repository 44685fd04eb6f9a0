"""Errors of files that last, and those that may pass: one table for sources and sinks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.checkpoint.stores.storage import AlreadyExists, NotFound, refused
from holdfast.common.system.os_errors import REMEDIES, reason
from holdfast.errors import ConfigurationError, InputLost, StorageError

__all__ = ["REFUSED", "failure", "lost", "reading", "writing"]

REFUSED = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EINVAL,
        errno.EILSEQ,
        errno.ENXIO,
        errno.ENODEV,
        errno.EXDEV,
        errno.EFBIG,
        errno.EOVERFLOW,
        errno.EMLINK,
        errno.ENOSYS,
        errno.ENOTSUP,
    }
)
"""Errors of the system that last until somebody changes the file, its directory, the rights or a limit. For the others the
job restarts: a disk that is full or fails, a server of files that is away, too many open files."""

_REMEDIES = REMEDIES | {
    errno.EACCES: "let the user who runs the job read the file (for a sink, write the directory)",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or let more subtasks write",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def failure(told: str, error: OSError | StorageError) -> ConfigurationError | StorageError:
    """The error for a call that failed: a `ConfigurationError`, which ends the job, if a later call would fail, too."""
    if isinstance(error, OSError):
        why = reason(error, _REMEDIES) if error.errno else str(error)
        return (ConfigurationError if error.errno in REFUSED else StorageError)(f"{told}: {why}")
    lasts = refused(error) and not isinstance(error, NotFound | AlreadyExists)
    return (ConfigurationError if lasts else StorageError)(f"{told}: {error}")


def lost(path: str) -> InputLost:
    """The error for a file that is gone."""
    return InputLost(f"{path}: the file was removed before it was read to the end; put it back")


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Name the file in errors of the system and of the store.

    Raises:
        InputLost: the file is gone.
        ConfigurationError: it cannot be read, and another try would fail, too.
        StorageError: it cannot be read now.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise lost(path) from error
    except (OSError, StorageError) as error:
        raise failure(f"{path}: cannot be read", error) from error


@contextmanager
def writing(told: str) -> Iterator[None]:
    """Say what failed in errors of the system and of the store.

    Raises:
        ConfigurationError: another try would fail, too.
        StorageError: it failed now.
    """
    try:
        yield
    except (OSError, StorageError) as error:
        raise failure(told, error) from error
