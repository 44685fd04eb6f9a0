"""Objects as files under a directory of the local (or a mounted) file system."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.planted import planted_by
from holdfast.checkpoint.stores.object_store import AlreadyExists, Data, NotFound, Unavailable, leaves
from holdfast.common.system.directories import make_directories
from holdfast.common.system.os_errors import REMEDIES, reason
from holdfast.errors import ConfigurationError, CorruptFile, StorageError

__all__ = ["DirectoryStore"]

_PASSING = {errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY, errno.ESTALE}
_REMEDIES = REMEDIES | {
    errno.EPERM: "let the user who runs the job write the directory; the file system must support hard links",
    errno.ENOTSUP: "the file system does not support hard links, which put-if-absent needs; choose another",
}


_LARGE = 8 << 20
"""Larger files, in bytes, are written past the page cache, because they are read only after a failure."""
_AT_ONCE = 1 << 20


class DirectoryStore:
    """A directory. A file appears under its name complete and flushed to disk, or not at all."""

    def __init__(self, directory: str) -> None:
        self._root = os.path.abspath(os.path.expanduser(directory))

    @property
    def uri(self) -> str:
        """The directory as a file URI."""
        return Path(self._root).as_uri()

    def _at(self, path: str) -> str:
        if leaves(path):
            raise CorruptFile(
                f"{self.uri}/{path}", "a stored path that leaves its directory: somebody has changed the file that names it"
            )
        return os.path.join(self._root, path)

    def refuse_planted(self, path: str) -> None:
        """Check that no other user can have created or changed this store's directory.

        Raises:
            ConfigurationError: it, or a directory on the way to it, belongs to another user, or all users can write to it.
        """
        fault = planted_by(self._at(path))
        if fault:
            raise ConfigurationError(
                f"{fault}: others could plant checkpoints in {self._at(path)}, and checkpoints contain pickles. Choose a "
                "directory below those of your own, or sign checkpoints (security.checkpoints.key-file)"
            )

    def put(self, path: str, data: Data) -> None:
        """Put an object; an existing one is replaced."""
        with self._errors("put", path):
            target, part = self._write_part(path, data)
            os.replace(part, target)
            _flush(os.path.dirname(target))

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free. The hard link makes this atomic, also on NFS."""
        with self._errors("put", path):
            target, part = self._write_part(path, data)
            try:
                os.link(part, target)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(part)
            _flush(os.path.dirname(target))

    def link(self, path: str, source: str) -> bool:
        """Put a file by a hard link; False if that is impossible, for example on another file system."""
        _flush(source)
        with self._errors("put", path):
            target = self._at(path)
            self._make_directory(os.path.dirname(target))
            try:
                os.link(source, target)
            except FileExistsError:
                raise
            except OSError:  # another file system, one without hard links, or too many links
                return False
            _flush(os.path.dirname(target))
            return True

    def get(self, path: str) -> bytes:
        """Read an object."""
        with self._errors("get", path), open(self._at(path), "rb") as file:
            return file.read()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        with self._errors("get", path), open(self._at(path), "rb") as file:
            file.seek(start)
            return file.read(length)

    def local_path(self, path: str) -> str:
        """The object's file."""
        return self._at(path)

    def map(self, path: str) -> memoryview:
        """Map an object into memory, read-only; its bytes are read when used."""
        with self._errors("map", path), open(self._at(path), "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def size(self, path: str) -> int:
        """The size of an object in bytes."""
        with self._errors("look up", path):
            return os.path.getsize(self._at(path))

    def list(self, prefix: str) -> list[str]:
        """The paths under ``prefix``, including unfinished part files."""
        with self._errors("list", prefix):
            return list(self._walk(prefix.rstrip("/")))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""
        for path in paths:
            with self._errors("delete", path):
                try:
                    os.unlink(self._at(path))
                except FileNotFoundError:
                    continue

    def _walk(self, directory: str) -> Iterator[str]:
        try:
            with os.scandir(self._at(directory)) as entries:
                for entry in entries:
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        yield from self._walk(path)
                    else:
                        yield path
        except FileNotFoundError:
            return

    def _write_part(self, path: str, data: Data) -> tuple[str, str]:
        target, part = self._at(path), self._at(JobPaths.part_file(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        try:
            descriptor = os.open(part, flags, 0o664)
        except FileNotFoundError:
            self._make_directory(os.path.dirname(part))
            descriptor = os.open(part, flags, 0o664)
        try:
            with memoryview(data) as view:
                written = _write_past_cache(part, view) if len(view) >= _LARGE else 0
                os.lseek(descriptor, written, os.SEEK_SET)
                while written < len(view):
                    written += os.write(descriptor, view[written:])
            # Files of a checkpoint must survive a power failure, not only the end of the process.
            os.fsync(descriptor)
        except BaseException:  # not even Ctrl-C may leave a part file behind
            os.unlink(part)
            raise
        finally:
            os.close(descriptor)
        return target, part

    @staticmethod
    def _make_directory(path: str) -> None:
        try:
            make_directories(path, 0o775)  # if all users could write to a directory, the next start would be refused
        except FileNotFoundError as error:  # for example in /proc
            raise StorageError(
                f"cannot create {error.filename}: {os.strerror(errno.ENOENT)}; choose another directory"
            ) from error

    @contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        where = self._at(path)
        try:
            yield
        except FileNotFoundError as error:
            if what == "put":  # a driver that takes the job over deletes part files, so the put may be repeated
                raise Unavailable(f"cannot put {where}: its part file was deleted meanwhile") from error
            raise NotFound(f"{where}: no such file") from error
        except FileExistsError as error:
            raise AlreadyExists(f"{where}: exists already") from error
        except OSError as error:
            told = f"cannot {what} {where}: {reason(error, _REMEDIES)}"
            raise (Unavailable if error.errno in _PASSING else StorageError)(told) from error


def _write_past_cache(path: str, data: memoryview) -> int:
    """Write the beginning of a file without the page cache, if the file system can; returns the number of bytes written."""
    if sys.platform != "linux":
        return 0
    written = 0
    with suppress(OSError):  # the rest is written through the page cache, or fails there as well
        descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            with mmap.mmap(-1, _AT_ONCE) as aligned:
                while written + _AT_ONCE <= len(data):
                    aligned[:] = data[written : written + _AT_ONCE]
                    if os.write(descriptor, aligned) < _AT_ONCE:
                        break
                    written += _AT_ONCE
        finally:
            os.close(descriptor)
    return written


def _flush(path: str) -> None:
    """Flush a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
