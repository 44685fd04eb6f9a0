"""Files with valid checksums and hostile content: a reader reads them, or says that they are damaged, and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import xxhash
import zstandard

from checkpoint.metadata_examples import CHECKPOINT, EXAMPLE, MANIFEST, TAKEOVER
from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.entries import Completed, decode_entry, decode_manifest, encode_entry, encode_manifest
from holdfast.checkpoint.files import write_file
from holdfast.checkpoint.handles import IndexedFile
from holdfast.checkpoint.manifests import load
from holdfast.checkpoint.metadata import ListPart
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.savepoint import METADATA, put_metadata, read_savepoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.connectors.kafka.sink.outbox import OutboxFile, OutgoingBatch, read_outbox
from holdfast.errors import CorruptFile, IncompatibleState
from holdfast.runtime.channels.channel_state import other_inputs
from holdfast.runtime.plan.listed_states import read_part
from holdfast.state.snapshots.sst_format import (
    Block,
    DamagedBlock,
    IndexEntry,
    IndexForm,
    IndexSearch,
    Metaindex,
    UnknownFormat,
)
from holdfast.state.store.blob_file import Damaged, chunks_of, packed_chunks
from holdfast.state.stored.delta import pack_delta, read_delta, read_stored, stored_sizes
from holdfast.testing.memory_store import MemoryStore
from security.hostile import Read, check_read_or_refused

VERIFIED = bytes(5)
"""Behind a block of an SST file: no compression, and a checksum that was verified."""


def log_entry(payload: bytes) -> None:
    entry = decode_entry(pack(payload), "f")
    if isinstance(entry, Completed):
        load(Storage(MemoryStore()), entry.checkpoint)


def savepoint(directory: Path) -> tuple[bytes, Read]:
    storage = Storage.open(str(directory))
    put_metadata(storage, CHECKPOINT, drained=False)

    def read(payload: bytes) -> None:
        storage.put(METADATA, pack(payload))
        read_savepoint(str(directory))

    return unpack(storage.get(METADATA), "f"), read


def listed_state(payload: bytes) -> None:
    storage = Storage(MemoryStore())
    read_part(storage, ListPart(file=write_file(storage, "f", payload), first=0, count=9))


def channel_state(payload: bytes) -> None:
    vertex = SimpleNamespace(inputs=[])
    other_inputs(vertex, [ListPart([payload]), ListPart([b""])])  # type: ignore[arg-type]


def delta(index: bytes) -> None:
    end = index + struct.pack("<IIB3x4s", len(index), 0, pack_delta([])[0][-8], b"HFSD")
    storage = Storage(MemoryStore())
    storage.put("f", bytes(300) + end)
    handle = IndexedFile("f", 300 + len(end), xxhash.xxh3_128_digest(end))
    errors = []
    for read in (lambda: list(read_delta(storage, handle)), lambda: read_stored(storage, handle)):
        try:
            read()
        except (CorruptFile, IncompatibleState) as error:
            errors.append(error)
    stored_sizes(storage, handle)
    if errors:
        raise errors[0]


DELTA = msgspec.msgpack.encode(
    [
        (1, None, False, [(0, 5, 100, 0, xxhash.xxh3_64_intdigest(bytes(100))), (6, 9, 200, 0, 1)]),
        (2, 7, True, []),
    ]
)


def blobs(index: bytes) -> None:
    sealed = bytes(100) + index + struct.pack(">IQ8s", len(index), xxhash.xxh3_64_intdigest(index), b"HFBLOB01")
    try:
        chunks_of(len(sealed), lambda start, size: sealed[start : start + size])
    except Damaged as damage:
        raise CorruptFile("f", str(damage)) from damage


def sst_block(content: bytes) -> None:
    """As `fetch_parts` and `LazyFiles` read it."""
    block = memoryview(content + VERIFIED)
    for read in (
        lambda: Metaindex.read(block).start,
        lambda: list(IndexForm(True, True).entries(block)),
        lambda: list(IndexForm(False, False).entries(block)),
        lambda: IndexSearch(memoryview(PROPERTIES + VERIFIED), block).run(b"a", b"b"),
        lambda: IndexSearch(block, block).run(b"a", b"b"),
    ):
        try:
            with parsing("f", "a file of RocksDB"):
                read()
        except (CorruptFile, DamagedBlock, UnknownFormat):
            continue


INDEX = IndexForm(True, True).packed([IndexEntry(b"key%d" % n, Block(100 * n, 95)) for n in range(40)])
PROPERTIES = Metaindex({b"rocksdb.index": Block(0, 9), b"rocksdb.properties": Block(14, 9)}).packed()


def records_of_a_transaction(blocks: bytes) -> None:
    body = b"HFKO\x01" + zstandard.compress(blocks)
    list(read_outbox(body + xxhash.xxh3_64_digest(body), "f"))


def block_of_records() -> bytes:
    batch = OutgoingBatch("topic", [b"value", None], [b"key", b"other"], [1, 2], [[("name", b"value")], []], [0, -1])
    file = OutboxFile()
    file.add(batch)
    stored = file.finish()
    assert len(list(read_outbox(stored, "f"))) == 1
    return zstandard.ZstdDecompressor().decompressobj().decompress(stored[5:-8])


LANE = [0, 1, 0, 5, False, 6, False, 3, 1, 0]
FORMS: dict[str, tuple[bytes, Read]] = {
    "log entry": (unpack(encode_entry(EXAMPLE), "f"), log_entry),
    "take-over": (unpack(encode_entry(TAKEOVER), "f"), log_entry),
    "manifest": (encode_manifest(MANIFEST), lambda payload: decode_manifest(payload, "f")),
    "container": (pack(bytes(500)), lambda data: unpack(data, "f")),
    "listed state": (msgspec.msgpack.encode([b"one", b"two"]), listed_state),
    "channel state": (
        msgspec.msgpack.encode(
            {
                "epoch": 1,
                "parallelism": 2,
                "max_parallelism": 8,
                "inputs": ["keyed"],
                "lanes": [[0, 1, 0, 5, False, 6, False, 3, 1, 0]],
            }
        ),
        channel_state,
    ),
    "delta": (DELTA, delta),
    "blob file": (msgspec.msgpack.encode(packed_chunks([(b"a", bytes(9)), (b"b", bytes(7))], 1, 0).chunks), blobs),
    "index of an SST file": (INDEX, sst_block),
    "properties of an SST file": (PROPERTIES, sst_block),
    "outbox": (block_of_records(), records_of_a_transaction),
}


@pytest.mark.parametrize("form", [*FORMS, "savepoint"])
def test_hostile_content_is_read_or_refused(form: str, tmp_path: Path) -> None:
    original, read = savepoint(tmp_path) if form == "savepoint" else FORMS[form]
    if form not in ("log entry", "delta"):  # the example of an entry has no manifests, that of a delta no pieces
        read(original)
    check_read_or_refused(form, original, read, 100 if form == "savepoint" else 400)


@pytest.mark.parametrize("claimed", [1 << 40, 10])
@pytest.mark.parametrize("header", [1 << 40, 10, 1 << 20])
def test_no_memory_is_taken_for_a_size_that_only_a_header_claims(claimed: int, header: int) -> None:
    frame = b"\x28\xb5\x2f\xfd\xe0" + claimed.to_bytes(8, "little") + b"\x03\0\0"
    fields = struct.pack("<4sBBHQQ", b"HFST", 1, 1, 0, len(frame), header)
    digest = xxhash.xxh3_128(fields)
    digest.update(frame)
    with pytest.raises(CorruptFile):
        unpack(fields + digest.digest() + frame, "f")


def test_what_is_compressed_best_is_still_read() -> None:
    for size in (128, 1 << 17, 1 << 24):
        assert unpack(pack(bytes(size)), "f") == bytes(size)
