"""SignedStore: an object store that signs what it puts, and returns nothing that was not signed with one of its keys.

Everything in a checkpoint storage, including pickles, is read through it. Someone who can write to the bucket but has no key
can delete objects, but cannot make a job or a tool read a changed one.

    content | 32 bytes for each chunk: HMAC-SHA256 | key id (8 bytes) | u64 length of the content | "HFSIGN01" or "HFSIGN02"

The HMAC of a chunk covers its number, the length of the content and the object's name. So a part of a file can be read and
verified by itself, and no signed object can stand in for another one. The name of a job's object is its path, which begins
with the job's directory. An object at the top of its storage is part of a savepoint; its name begins with the savepoint's
directory ("HFSIGN02"), so that files of one savepoint cannot stand in for those of another one with the same key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.stores.object_store import Data, ObjectStore
from holdfast.errors import ConfigurationError, CorruptFile

__all__ = ["KEY_FILE", "SignedStore", "SigningKey", "read_keys", "sign_again"]

KEY_FILE = "security.checkpoints.key-file"
"""The setting that names the file with the keys."""
_CHUNK = 256 << 10
_MAC = 32
_FOOTER = struct.Struct("<8sQ8s")
_BY_PATH = b"HFSIGN01"
_BY_DIRECTORY = b"HFSIGN02"
_MAGICS = (_BY_PATH, _BY_DIRECTORY)
_CHUNK_FIELDS = struct.Struct("<QQ")
_FOOTERS_KEPT = 256
_SHORTEST_KEY = 32
"""Minimum length of a key, in bytes."""


class SigningKey:
    """A key, stored as the state of HMAC after it. The key itself is neither kept nor shown."""

    __slots__ = ("_begun", "id")

    def __init__(self, secret: bytes) -> None:
        self._begun = hmac.new(secret, digestmod=hashlib.sha256)
        self.id: bytes = hmac.digest(secret, b"holdfast key id", "sha256")[:8]
        """Identifies the key that has signed an object; reveals nothing about the key."""

    def sign(self, name: str, length: int, number: int, chunk: Data) -> bytes:
        """The signature of one chunk of an object."""
        mac = self._begun.copy()
        mac.update(_CHUNK_FIELDS.pack(length, number))
        mac.update(name.encode())
        mac.update(b"\0")
        mac.update(chunk)
        return mac.digest()


class SignedStore:
    """Signs the objects of another store.

    Args:
        store: The store.
        keys: The first one signs; all verify.
        earlier: Also accept objects that an earlier release has signed without the name of the savepoint's directory.
    """

    def __init__(self, store: ObjectStore, keys: Sequence[SigningKey], *, earlier: bool = False) -> None:
        self._store = store
        self._earlier = earlier
        self._directory = store.uri.rstrip("/").rpartition("/")[2]
        self._signing = keys[0]
        self._keys: Mapping[bytes, SigningKey] = {key.id: key for key in keys}
        self._footers: dict[str, _Footer] = {}

    @property
    def uri(self) -> str:
        """The base URI of all paths, for error messages."""
        return self._store.uri

    def put(self, path: str, data: Data) -> None:
        """Put an object; an existing one is replaced."""
        self._store.put(path, self._signed(path, data))

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free; otherwise raise `AlreadyExists`."""
        self._store.put_new(path, self._signed(path, data))

    def get(self, path: str) -> bytes:
        """The object's content.

        Raises:
            NotFound: the object does not exist.
            CorruptFile: it was not signed with one of the keys.
        """
        data = memoryview(self._store.get(path))
        footer = self._footer(path, data[-_FOOTER.size :], len(data))
        length = footer.length
        content, signatures = data[:length], data[length : -_FOOTER.size]
        for number, start in enumerate(range(0, length, _CHUNK) if length else (0,)):
            self._verify(footer, path, number, content[start : start + _CHUNK], signatures)
        return bytes(content)

    def content(self, path: str) -> bytes:
        """The object's content, even if the object is not signed; otherwise raises like `get`."""
        data = self._store.get(path)
        return self.get(path) if data.endswith(_MAGICS) else data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes of the object from ``start`` on; raises like `get`."""
        footer = self._known_footer(path)
        whole = footer.length
        end = min(start + length, whole)
        if start >= end:
            return b""
        first, last = start // _CHUNK, (end - 1) // _CHUNK
        chunks = self._store.get_range(path, first * _CHUNK, min((last + 1) * _CHUNK, whole) - first * _CHUNK)
        signatures = memoryview(self._store.get_range(path, whole + first * _MAC, (last + 1 - first) * _MAC))
        view = memoryview(chunks)
        for number in range(first, last + 1):
            at = (number - first) * _CHUNK
            self._verify(footer, path, number, view[at : at + _CHUNK], signatures, first)
        return chunks[start - first * _CHUNK : end - first * _CHUNK]

    def size(self, path: str) -> int:
        """The size of the content in bytes, derived from that of the object; raises `NotFound`."""
        stored = self._store.size(path) - _FOOTER.size
        # A chunk takes up to _CHUNK + _MAC bytes; empty content also has one signature.
        return max(0, stored - _MAC * max(1, -(-stored // (_CHUNK + _MAC))))

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with ``prefix``."""
        return self._store.list(prefix)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""
        self._store.delete(paths)

    def _known_footer(self, path: str) -> _Footer:
        """The footer of an object that is read in parts and does not change meanwhile."""
        found = self._footers.get(path)
        if found is None:
            stored = self._store.size(path)
            footer = self._store.get_range(path, max(0, stored - _FOOTER.size), _FOOTER.size)
            found = self._footer(path, memoryview(footer), stored)
            if len(self._footers) >= _FOOTERS_KEPT:
                self._footers.clear()
            self._footers[path] = found
        return found

    def _signed(self, path: str, data: Data) -> bytes:
        magic = _magic_of(path)
        with memoryview(data) as view:
            signatures = self._signatures(self._name(path, magic), view)
            return b"".join((view, *signatures, _FOOTER.pack(self._signing.id, len(view), magic)))

    def _signatures(self, name: str, view: memoryview) -> Iterator[bytes]:
        for number, start in enumerate(range(0, len(view), _CHUNK) if len(view) else (0,)):
            yield self._signing.sign(name, len(view), number, view[start : start + _CHUNK])

    def _name(self, path: str, magic: bytes) -> str:
        return path if magic == _BY_PATH else f"{self._directory}/{path}"

    def _footer(self, path: str, footer: memoryview, stored: int) -> _Footer:
        where = f"{self.uri}/{path}"
        if len(footer) != _FOOTER.size or footer[-len(_BY_PATH) :] not in _MAGICS:
            raise CorruptFile(
                where,
                f"not signed, or truncated. With {KEY_FILE}, only signed files are read. If the job's files were signed, "
                "somebody has put this one there or changed it: restore a backup, or an earlier checkpoint. Only if signing "
                "was just switched on, see docs/security.md, Existing checkpoints",
            )
        key_id, length, magic = _FOOTER.unpack(footer)
        if length + _MAC * max(1, -(-length // _CHUNK)) + _FOOTER.size != stored:
            raise CorruptFile(where, f"truncated or altered: {stored} bytes do not fit {length} bytes of signed content")
        key = self._keys.get(key_id)
        if key is None:
            raise CorruptFile(where, f"signed with key {key_id.hex()}, which is not among those of {KEY_FILE}")
        if magic != _magic_of(path) and not (self._earlier and magic == _BY_PATH):
            raise CorruptFile(
                where,
                "its signature does not tell to which savepoint it belongs: it was put here from elsewhere, or an earlier "
                "release has signed it. See docs/security.md, Savepoints of earlier releases",
            )
        return _Footer(key, length, self._name(path, magic))

    def _verify(self, footer: _Footer, path: str, number: int, chunk: Data, signatures: memoryview, first: int = 0) -> None:
        at = (number - first) * _MAC
        signature = footer.key.sign(footer.name, footer.length, number, chunk)
        if not hmac.compare_digest(signature, signatures[at : at + _MAC]):
            moved = "" if "/" in path else ", or moved: a signed savepoint keeps the name of its directory"
            raise CorruptFile(f"{self.uri}/{path}", f"altered: its signature does not match its content and name{moved}")


class _Footer(NamedTuple):
    key: SigningKey
    length: int
    name: str
    """The name that the signature covers."""


def _magic_of(path: str) -> bytes:
    return _BY_PATH if "/" in path else _BY_DIRECTORY


def sign_again(store: ObjectStore, keys: Sequence[SigningKey], paths: Iterable[str], *, adopt_unsigned: bool = False) -> int:
    """Sign objects that have another key's signature with the first key.

    Args:
        store: The store with the objects.
        keys: The keys.
        paths: The objects.
        adopt_unsigned: Also sign unsigned objects; their content is trusted as it is.

    Returns:
        The number of objects that were signed.

    Raises:
        CorruptFile: an object is signed with none of the keys, or was altered since, or is unsigned and not adopted.
    """
    signed = SignedStore(store, keys, earlier=True)
    count = 0
    for path in paths:
        data = store.get(path)
        if adopt_unsigned and not data.endswith(_MAGICS):
            content = data
        else:
            content = signed.get(path)
            key_id, _, magic = _FOOTER.unpack(data[-_FOOTER.size :])
            if key_id == keys[0].id and magic == _magic_of(path):
                continue
        signed.put(path, content)
        count += 1
    return count


def read_keys(path: str) -> tuple[SigningKey, ...]:
    """Read keys from a file: one per line, in hexadecimal digits; empty lines and lines with ``#`` are skipped.

    Raises:
        ConfigurationError: there is no such file, other users can read or change it, or a line is not a key.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigurationError(f"{KEY_FILE} is {path!r}, which cannot be read: {error.strerror}") from error
    return _keys_of(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(8)
def _keys_of(path: str, *version: int) -> tuple[SigningKey, ...]:
    try:
        status = os.stat(path)
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{KEY_FILE} is {path!r}, which cannot be read: {error}") from error
    if status.st_mode & 0o027:
        raise ConfigurationError(
            f"{KEY_FILE}: {path} has mode {status.st_mode & 0o777:04o}, so other users can reach it: chmod 0600 {path}"
        )
    keys = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            secret = bytes.fromhex(text)
        except ValueError:
            secret = b""
        if len(secret) < _SHORTEST_KEY:
            raise ConfigurationError(
                f"{KEY_FILE}: line {number} of {path} is not a key of at least {2 * _SHORTEST_KEY} hexadecimal digits; "
                "`openssl rand -hex 32` makes one"
            )
        keys.append(SigningKey(secret))
    if not keys:
        raise ConfigurationError(f"{KEY_FILE}: {path} has no key; `openssl rand -hex 32 > {path}` makes one")
    return tuple(keys)
