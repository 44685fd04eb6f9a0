"""State files: immutable, uniquely named, checksummed. A read returns exactly the written bytes or raises `CorruptFile`.

A contained file (`write_file`), version 1, all integers little-endian:

    offset  0   4 bytes   magic "HFST"
            4   u8        container version: 1
            5   u8        flags: bit 0 = the body is one zstd frame
            6   u16       0
            8   u64       length of the body
           16   u64       length of the payload
           24   16 bytes  XXH3-128 (canonical) of bytes 0 to 23 and the body
           40   body

The first 40 bytes and the checksum keep their meaning in every later version, so that corruption is never mistaken for
another version. A raw file (`write_raw`, used for RocksDB's already compressed SST files) has no header; only its handle
holds its checksum.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable

import xxhash
import zstandard

from holdfast.checkpoint.handles import ContainedFile, FileHandle, RawFile
from holdfast.checkpoint.parsing import inflated
from holdfast.checkpoint.stores.storage import Data, NotFound, Storage
from holdfast.errors import CorruptFile, IncompatibleState

__all__ = [
    "compress",
    "decompress",
    "fetch_raw",
    "is_link",
    "link_raw",
    "pack",
    "read_file",
    "read_raw",
    "store_raw",
    "unpack",
    "verified",
    "verify_linked",
    "write_file",
    "write_raw",
]

_MAGIC = b"HFST"
_VERSION = 1
_ZSTD = 1
_FIELDS = struct.Struct("<4sBBHQQ")
_CHECKSUM = slice(_FIELDS.size, _FIELDS.size + 16)
_HEADER = _FIELDS.size + 16
_WORTH_COMPRESSING = 128
_LITTLE = 16
"""Bytes that compression shrinks by less than one in this many are stored as they are: reading them is quicker."""
_AT_ONCE = 8 << 20
"""Bytes read and written at a time while a file is copied."""


class _Codecs(threading.local):
    """zstd contexts, one pair per thread: they are expensive to create and not thread-safe."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_codecs = _Codecs()


def compress(data: Data) -> tuple[Data, int]:
    """Compress bytes to one zstd frame; returns it with the size of ``data``, or ``data`` and 0 if zstd saves little."""
    if len(data) >= _WORTH_COMPRESSING:
        compressed = _codecs.compressor.compress(data)
        if len(compressed) < len(data) - len(data) // _LITTLE:
            return compressed, len(data)
    return data, 0


def decompress(stored: Data, size: int, where: str) -> bytes:
    """Undo `compress`. The caller must have verified the checksum of the file ``where``.

    Raises:
        CorruptFile: it does not unpack to this size.
    """
    return inflated(_codecs.decompressor, stored, size, where) if size else bytes(stored)


def pack(payload: Data) -> bytes:
    """Build a contained file."""
    size = len(payload)
    body, compressed = compress(payload)
    flags = _ZSTD if compressed else 0
    fields = _FIELDS.pack(_MAGIC, _VERSION, flags, 0, len(body), size)
    return b"".join((fields, _checksum(fields, body), body))


def unpack(data: bytes, where: str) -> bytes:
    """Verify a contained file and return its payload.

    Args:
        data: The file's content.
        where: The file's name, for error messages.

    Raises:
        CorruptFile: the file is truncated, extended or altered.
        IncompatibleState: the file is intact, but of a version that this release does not know.
    """
    if len(data) < _HEADER:
        raise CorruptFile(where, f"truncated: {len(data)} bytes are less than a header")
    magic, version, flags, _, body_size, size = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptFile(where, "altered, or not a state file: it does not begin with HFST")
    if len(data) != _HEADER + body_size:
        raise CorruptFile(where, f"truncated or altered: {len(data)} bytes instead of {_HEADER + body_size}")
    body = memoryview(data)[_HEADER:]
    if _checksum(data[: _FIELDS.size], body) != data[_CHECKSUM]:
        raise CorruptFile(where, "altered: its checksum does not match its content")
    if version != _VERSION or flags & ~_ZSTD:
        raise IncompatibleState(
            f"{where} is in format version {version}, which this release of Holdfast does not read; "
            "run the release that wrote it, or a later one"
        )
    payload = inflated(_codecs.decompressor, body, size, where) if flags & _ZSTD else bytes(body)
    if len(payload) != size:
        raise CorruptFile(where, f"altered: it unpacks to {len(payload)} bytes instead of {size}")
    return payload


def write_file(storage: Storage, path: str, payload: Data) -> ContainedFile:
    """Store a payload under a unique path, compressed if that saves space.

    Raises:
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    data = pack(payload)
    storage.put(path, data)
    return ContainedFile(path, len(data), data[_CHECKSUM])


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
    """Store a file of this host that does not change any more: by a hard link if the storage is in its file system.

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
        if data[_CHECKSUM] != handle.checksum:
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
            try:  # one byte more at the end: a longer file is not the one
                part = storage.get_range(handle.path, start, _AT_ONCE if left > _AT_ONCE else left + 1)
            except NotFound as error:
                raise CorruptFile(storage.locate(handle.path), "missing") from error
            digest.update(part)
            copy.write(part)
            size += len(part)
    if size != handle.size or digest.digest() != handle.checksum:
        raise CorruptFile(storage.locate(handle.path), "truncated or altered: its size or checksum does not match")


def link_raw(storage: Storage, handle: RawFile, target: str) -> bool:
    """Make a hard link to a stored raw file, whose content stays unread; False if there can be none.

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
    except OSError:  # another file system, a file of another user, or too many links
        return False
    if (size := os.path.getsize(target)) != handle.size:
        raise CorruptFile(storage.locate(handle.path), f"truncated or altered: {size} bytes instead of {handle.size}")
    return True


def is_link(storage: Storage, handle: RawFile, target: str) -> bool:
    """Whether a file of this host is the stored file itself, by another name, and no copy.

    Raises:
        FileNotFoundError: one of them is gone.
    """
    source = storage.local_path(handle.path)
    return source is not None and os.path.samefile(source, target)


def verify_linked(storage: Storage, handle: RawFile, target: str, stopped: Callable[[], bool]) -> None:
    """Verify a file through a link that `link_raw` has made, unless ``stopped`` becomes true before the end.

    Raises:
        CorruptFile: it is altered, and it is the storage's file.
        OSError: the link is gone, or the storage's file.
    """
    if not is_link(storage, handle, target):
        return  # a copy: it was verified when it was made
    if _checksum_of(target, stopped) not in (handle.checksum, b""):
        raise CorruptFile(storage.locate(handle.path), "altered: its checksum does not match its content")


def _checksum_of(path: str, stopped: Callable[[], bool] = lambda: False) -> bytes:
    """The checksum of a file; nothing if ``stopped`` became true before the end."""
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


def _checksum(fields: bytes, body: Data) -> bytes:
    digest = xxhash.xxh3_128(fields)
    digest.update(body)
    return digest.digest()
