"""Outgoing Kafka records, and the outbox file with their copy until the commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import xxhash
import zstandard

from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.parsing import parsing
from holdfast.errors import CorruptFile

__all__ = ["OutboxFile", "OutgoingBatch", "outbox_epoch", "outbox_name", "read_outbox"]

_MAGIC = b"HFKO\x01"
"""Holdfast, Kafka, outbox; version 1."""
_DIGEST = 8
_NAME = re.compile(r"(\d{10})-(\d{20})-\d{5}-[0-9a-f]+\.outbox(?:\..+)?")


def outbox_name(generation: int, epoch: Epoch, subtask: int, token: str) -> str:
    """The name of the outbox file of one writer and epoch."""
    return f"{generation:010d}-{epoch:020d}-{subtask:05d}-{token}.outbox"


def outbox_epoch(name: str) -> tuple[int, int] | None:
    """Parse generation and epoch from an outbox file's name, finished or not; None if it is another file.

    >>> outbox_epoch(outbox_name(3, 17, 0, "c0ffee"))
    (3, 17)
    """
    match = _NAME.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


class OutgoingBatch(msgspec.Struct, array_like=True):
    """A batch of records in columns."""

    topics: str | list[str]
    """One topic for all records, or one per record."""
    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    timestamps: list[int] | None = None
    headers: list[list[tuple[str, bytes | None]]] | None = None
    partitions: list[int] | None = None
    """The partition of each record; -1: the one that the key gives. Files of earlier releases have no such column."""


class OutboxFile:
    """Builds an epoch's outbox file, compressed.

    Layout: magic and version, one zstd frame of length-prefixed msgpack blocks (`OutgoingBatch`), XXH3 of all before.
    """

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._compressor = zstandard.ZstdCompressor(level=1).compressobj()
        self._parts = [_MAGIC]

    def add(self, batch: OutgoingBatch) -> None:
        """Append a batch."""
        block = self._encoder.encode(batch)
        self._parts.append(self._compressor.compress(len(block).to_bytes(4, "big") + block))

    def finish(self) -> bytes:
        """Return the file's content."""
        self._parts.append(self._compressor.flush())
        body = b"".join(self._parts)
        return body + xxhash.xxh3_64_digest(body)


def read_outbox(data: bytes, path: str) -> Iterator[OutgoingBatch]:
    """Read the batches in a file.

    Raises:
        CorruptFile: the file is damaged.
    """
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if not body.startswith(_MAGIC[:-1]):
        raise CorruptFile(path, "not a Kafka sink's outbox file")
    if body[len(_MAGIC) - 1] != _MAGIC[-1]:
        raise CorruptFile(path, f"outbox format {body[len(_MAGIC) - 1]}; this program knows format {_MAGIC[-1]}")
    if xxhash.xxh3_64_digest(body) != digest:
        raise CorruptFile(path, "checksum does not match: truncated or altered")
    with parsing(path, "the records of a Kafka sink"):
        blocks: Any = memoryview(zstandard.ZstdDecompressor().decompressobj().decompress(body[len(_MAGIC) :]))
    decoder = msgspec.msgpack.Decoder(OutgoingBatch)
    at = 0
    while at < len(blocks):
        size = int.from_bytes(blocks[at : at + 4], "big")
        with parsing(path, "the records of a Kafka sink"):
            batch = decoder.decode(blocks[at + 4 : at + 4 + size])
        yield batch
        at += 4 + size
