"""State files: immutable, uniquely named, checksummed. A read returns exactly the written bytes or raises `CorruptFile`.

A file of `write_file` is in the container of `holdfast.checkpoint.container`. A raw file (`write_raw`, used for RocksDB's
already compressed SST files) has no header; only its handle holds its checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import xxhash

from holdfast.checkpoint.container import CHECKSUM, pack, unpack
from holdfast.checkpoint.handles import ContainedFile, FileHandle, RawFile
from holdfast.checkpoint.stores.storage import Data, NotFound, Storage
from holdfast.errors import CorruptFile

__all__ = [
    "fetch_raw",
    "is_link",
    "link_raw",
    "read_file",
    "read_raw",
    "store_raw",
    "verified",
    "verify_linked",
    "write_file",
    "write_raw",
]

_AT_ONCE = 8 << 20
"""Bytes to read and write at a time while a file is copied."""


def write_file(storage: Storage, path: str, payload: Data) -> ContainedFile:
    """Store a payload under a unique path, compressed if that saves space.

    Raises:
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    data = pack(payload)
    storage.put(path, data)
    return ContainedFile(path, len(data), data[CHECKSUM])


def read_file(storage: Storage, handle: ContainedFile) -> bytes:
    """Read a payload written by `write_file`.

    Raises:
        CorruptFile: the file is missing, truncated, altered, or not the one that the handle describes.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    return verified(storage, handle, _get(storage, handle))


def write_raw(storage: Storage, path: str, data: Data) -> RawFile:
    """Store bytes unchanged under a unique path.

    Raises:
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    storage.put(path, data)
    return RawFile(path, len(data), xxhash.xxh3_128_digest(data))


def store_raw(storage: Storage, path: str, source: str) -> RawFile:
    """Store a local file that will not change: by a hard link if the storage is in the same file system.

    Raises:
        OSError: the file cannot be read.
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    if not storage.link(path, source):
        with open(source, "rb") as file:
            return write_raw(storage, path, file.read())
    return RawFile(path, os.path.getsize(source), _checksum_of(source))


def read_raw(storage: Storage, handle: RawFile) -> bytes:
    """Read bytes written by `write_raw`.

    Raises:
        CorruptFile: the file is missing, truncated, altered, or not the one that the handle describes.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    return verified(storage, handle, _get(storage, handle))


def verified(storage: Storage, handle: ContainedFile | RawFile, data: bytes) -> bytes:
    """Verify the whole content of a file and return its payload.

    Raises:
        CorruptFile: the file is truncated, altered, or not the one that the handle describes.
    """
    where = storage.locate(handle.path)
    if isinstance(handle, ContainedFile):
        payload = unpack(data, where)
        if data[CHECKSUM] != handle.checksum:
            raise CorruptFile(where, "not the file that the checkpoint refers to: the checksums differ")
        return payload
    if xxhash.xxh3_128_digest(data) != handle.checksum:
        raise CorruptFile(where, "altered: its checksum does not match its content")
    return data


def fetch_raw(storage: Storage, handle: RawFile, target: str) -> None:
    """Copy a file written by `write_raw` to the local file system, a few MB at a time.

    Raises:
        CorruptFile: the file is missing, truncated, altered, or not the one that the handle describes.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    with open(target, "wb") as copy:
        if handle.size <= _AT_ONCE:
            copy.write(read_raw(storage, handle))
            return
        digest, size = xxhash.xxh3_128(), 0
        for start in range(0, handle.size, _AT_ONCE):
            left = handle.size - start
            try:  # ask for one byte more than the file has, to notice a longer file
                part = storage.get_range(handle.path, start, _AT_ONCE if left > _AT_ONCE else left + 1)
            except NotFound as error:
                raise CorruptFile(storage.locate(handle.path), "missing") from error
            digest.update(part)
            copy.write(part)
            size += len(part)
    if size != handle.size or digest.digest() != handle.checksum:
        raise CorruptFile(storage.locate(handle.path), "truncated or altered: its size or checksum does not match")


def link_raw(storage: Storage, handle: RawFile, target: str) -> bool:
    """Hard-link a stored raw file, without reading it; False if that is impossible.

    Raises:
        CorruptFile: the file is missing, or has another size.
    """
    source = storage.local_path(handle.path)
    if source is None:
        return False
    try:
        os.link(source, target)
    except FileNotFoundError as error:
        raise CorruptFile(storage.locate(handle.path), "missing") from error
    except OSError:  # another file system, another user's file, or too many links
        return False
    if (size := os.path.getsize(target)) != handle.size:
        raise CorruptFile(storage.locate(handle.path), f"truncated or altered: {size} bytes instead of {handle.size}")
    return True


def is_link(storage: Storage, handle: RawFile, target: str) -> bool:
    """Whether a local file is the stored file itself under another name, and not a copy.

    Raises:
        FileNotFoundError: one of them is gone.
    """
    source = storage.local_path(handle.path)
    return source is not None and os.path.samefile(source, target)


def verify_linked(storage: Storage, handle: RawFile, target: str, stopped: Callable[[], bool]) -> None:
    """Verify a file through a link made by `link_raw`; stop if ``stopped`` becomes true.

    Raises:
        CorruptFile: the file is altered, and it is the storage's own.
        OSError: the link or the storage's file is gone.
    """
    if not is_link(storage, handle, target):
        return  # it is a copy, which was verified when it was made
    if _checksum_of(target, stopped) not in (handle.checksum, b""):
        raise CorruptFile(storage.locate(handle.path), "altered: its checksum does not match its content")


def _checksum_of(path: str, stopped: Callable[[], bool] = lambda: False) -> bytes:
    """The checksum of a file; empty if ``stopped`` became true before the end."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_AT_ONCE):
            digest.update(data)
            if stopped():
                return b""
    return digest.digest()


def _get(storage: Storage, handle: FileHandle) -> bytes:
    where = storage.locate(handle.path)
    try:
        data = storage.get(handle.path)
    except NotFound as error:
        raise CorruptFile(where, "missing") from error
    if len(data) != handle.size:
        raise CorruptFile(where, f"truncated or altered: {len(data)} bytes instead of {handle.size}")
    return data
