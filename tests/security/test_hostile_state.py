"""Keyed state with valid checksums and hostile content: pieces of deltas, their heads, files that arrive, changelogs."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import xxhash

from holdfast.checkpoint.changelog import LogRecord, Marker, MarkerKey, Row
from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.typeinfo import Types
from holdfast.connectors.kafka.changelogs.changelog_reader import record_of
from holdfast.connectors.kafka.sink.tokens import Token, token_of
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import ConfigurationError, CorruptFile, IncompatibleState
from holdfast.state.backends.delta_merge import DeltaMerge
from holdfast.state.cells.entries import MOST_IN_ROW
from holdfast.state.cells.row_pieces import keys_of_head
from holdfast.state.changelogs.changelog_copy import ChangelogCopy
from holdfast.state.keys.key_codec import encode_keys
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.lazy_deltas import LazyDeltas, LazyRows
from holdfast.state.snapshots import lazy_files, sst_parts
from holdfast.state.snapshots.blob_parts import fetch_chunks
from holdfast.state.snapshots.lazy_files import LazyFiles
from holdfast.state.snapshots.lazy_restore import LazyRestore
from holdfast.state.snapshots.sst_format import Block, Footer, IndexEntry, IndexForm, Metaindex, UnknownFormat
from holdfast.state.snapshots.sst_parts import KeyRanges, fetch_parts
from holdfast.state.store.blob_file import Blob, packed_chunks
from holdfast.state.store.ordered import SortedMemory
from holdfast.state.store.store import rocksdb_settings
from holdfast.state.stored.delta import Change, LeftPiece, Piece, read_delta, write_delta
from holdfast.state.stored.entry_pieces import sizes_by_key
from holdfast.state.stored.layout import META, section
from holdfast.state.stored.schema import ENTRIES, OperatorSchema
from holdfast.testing.memory_store import MemoryStore
from security.hostile import check_read_or_refused

STATES = [
    ValueStateDescriptor("count", Types.INT()),
    ValueStateDescriptor("text", Types.STRING()),
    MapStateDescriptor("map", Types.STRING(), Types.LONG()),
    ListStateDescriptor("list", Types.TUPLE([Types.STRING(), Types.INT()])),
]
KEYS = ["anna", 7, ("pair", 2.5), None]
FOOTER = Footer(7, Block(0, 0))
ALL, SOME = KeyGroupRange(0, 127), KeyGroupRange(0, 90)


class OnDisk(SortedMemory):
    """Stands in for RocksDB: restored rows stay encoded until they are read."""

    on_disk = True


def opened(schema: OperatorSchema | None, store: SortedMemory) -> tuple[KeyedState, list[object]]:
    state = KeyedState("'op' (uid 'op')", schema, store)
    space = state.space("keyed")
    state.timer_queue("event")
    state.timer_queue("window-event")
    return state, [space._handle(each, each.kind) for each in STATES]


def use(state: KeyedState, key: object) -> None:
    space = state.space("keyed")
    table = space.table()
    table.load([key])
    space.row, space.key, space.namespace = table.rows[key], key, None


def written() -> tuple[OperatorSchema, list[Change]]:
    """The changes of two epochs: rows, large and small, entries of large maps and lists, timers; some are deleted."""
    state, (count, text, entries, elements) = opened(None, SortedMemory())
    changes = []
    for turn in range(2):
        for number, key in enumerate(KEYS):
            use(state, key)
            if turn and number == 1:
                count.clear(), text.clear(), entries.clear(), elements.clear()
                continue
            count.update(number)
            text.update("text " * number * 50)
            entries.put_all({f"{n}": n for n in range(turn, (MOST_IN_ROW + 2 if number == 0 else 3))})
            elements.add_all([("element", n) for n in range(MOST_IN_ROW + 2 if number == 0 else 3)])
            state.timers["event"].register(100 * number, key)
            state.timers["window-event"].register(100 * number, (key, 5))
            if turn:
                state.timers["event"].delete(0, "anna")
                entries.remove("2")
        changes += state.collect()
        state.completed()
    return state.schema, changes


SCHEMA, CHANGES = written()


def forms() -> Iterator[tuple[str, Change, Piece]]:
    """The largest piece of each state, and the one with deleted rows."""
    found: dict[str, tuple[str, Change, Piece]] = {}
    names = {stored.id: f"{name}, {stored.kind}" for name, stored in SCHEMA.states.items()}
    for change in CHANGES:
        for piece in change.pieces:
            form = names[change.section.state] + (", deleted" if len(piece.data) < 17 else "")
            if form not in found or len(piece.data) > len(found[form][2].data):
                found[form] = form, change, piece
    yield from found.values()


def read_all(state: KeyedState) -> None:
    """Read all keys, then write what the restore left encoded to the store."""
    for key in KEYS:
        use(state, key)
    state.store_restored(1 << 40)
    list(state.timers["event"].all())


def merge_and_measure(changes: Sequence[Change]) -> None:
    """As a merge of deltas and the search for the largest keys read them."""
    merge = DeltaMerge({state.id: state.kind for state in SCHEMA.states.values()}, SOME)
    for change in changes:
        merge.add(change)
    merge.drain()
    for change in changes:
        if next(state.kind for state in SCHEMA.states.values() if state.id == change.section.state) == ENTRIES:
            for piece in change.pieces:
                list(sizes_by_key(piece))


@pytest.mark.parametrize(("form", "change", "piece"), [pytest.param(*each, id=each[0]) for each in forms()])
def test_a_hostile_piece_of_a_delta_is_read_or_refused(form: str, change: Change, piece: Piece) -> None:
    ways = cycle(product((None, SOME), (SortedMemory, OnDisk)))

    def read(data: bytes) -> None:
        storage = Storage(MemoryStore())
        file = write_delta(storage, "d", [change._replace(pieces=[piece._replace(data=data, head=b"")])])
        changes = list(read_delta(storage, file))
        with suppress(CorruptFile, IncompatibleState):
            merge_and_measure(changes)
        groups, store = next(ways)
        state, _ = opened(SCHEMA, store())
        for each in changes:
            state.apply(each, groups)
        state.applied()
        read_all(state)

    for _ in range(4):
        read(piece.data)
    check_read_or_refused(form, piece.data, read, 40, offsets=(0, 5))


def test_a_delta_of_a_state_that_the_schema_lacks_is_refused() -> None:
    state, _ = opened(SCHEMA, SortedMemory())
    with pytest.raises(IncompatibleState, match="changes of state 77 of 'op'"):
        state.apply(Change(section(77), False, CHANGES[0].pieces))


def test_the_keys_in_an_index_are_those_of_their_piece(tmp_path: Path) -> None:
    def head(keys: Sequence[object]) -> bytes:
        return msgspec.msgpack.encode((1, [3, len(keys)], encode_keys(keys)))

    check_read_or_refused("head", head([1, 2]), lambda data: keys_of_head(LeftPiece(0, 9, data, 0, 0, 0, 0), ALL, "f"))
    change = CHANGES[0]._replace(pieces=[CHANGES[0].pieces[0]._replace(head=head([1, 2, 3, 4, 5, 6, 7]))])
    storage = Storage(MemoryStore())
    file = write_delta(storage, "d", [change])
    deltas = LazyDeltas(storage, str(tmp_path), [file], LazyRestore(), lambda error, states: error)
    ((_, late),) = deltas.read("d", ALL, lambda section: True)
    with pytest.raises(CorruptFile, match="rows of 7 keys"):
        LazyRows.open(late)


DATA = b"".join(FOOTER.sealed(bytes(95), 100 * number) for number in range(40))
INDEX = IndexForm(True, True).packed([IndexEntry(bytes([65 + n]) * 9, Block(100 * n, 95)) for n in range(40)])
PROPERTIES = Metaindex(
    {
        b"rocksdb.index": Block(0, 9),  # stands for nothing: what is read of properties is their first numbers
        b"rocksdb.properties": Block(0, 9),
        b"rocksdb.num.data.blocks": Block(40, 0),
        b"rocksdb.index.key.is.user.key": Block(1, 0),
        b"rocksdb.index.value.is.delta.encoded": Block(1, 0),
    }
).packed()


def sst_file(index: bytes, properties: bytes = PROPERTIES) -> bytes:
    """A file of RocksDB of which all checksums are valid."""
    data = DATA + FOOTER.sealed(index, len(DATA))
    places = {b"rocksdb.index": Block(len(DATA), len(index)), b"rocksdb.properties": Block(len(data), len(properties))}
    data += FOOTER.sealed(properties, len(data))
    metaindex = Metaindex(places).packed()
    place = Block(len(data), len(metaindex))
    return data + FOOTER.sealed(metaindex, len(data)) + FOOTER._replace(metaindex=place).packed()


def look_ups(directory: Path, name: str, data: bytes) -> None:
    """Look into a file that arrives, and fetch parts of it, as restores do; raises the worst error."""
    (directory / name).write_bytes(data)
    storage = Storage.open(str(directory))
    first, last = bytes([65]) * 9, bytes([104]) * 9
    file = RawFile(name, len(data), xxhash.xxh3_128_digest(data), name, first, last)
    local = directory / "local"
    local.mkdir(exist_ok=True)
    arriving = LazyFiles(storage, str(local), lambda error, states: error, LazyRestore())
    fetch = fetch_parts if name.endswith(".sst") else fetch_chunks
    errors = []
    for look in (
        lambda: arriving.take(file),
        lambda: arriving.need_keys([b"B", b"Y", b"b"]),
        lambda: arriving.need_range(b"C", b"a"),
        lambda: arriving.need_block(f"{name} offset 300"),
        lambda: arriving.need_values([Blob(0xC1, 7, at, 10, 1) for at in (0, 40, 1 << 60)]),
        lambda: fetch(storage, file, str(local / "part"), KeyRanges([(b"B", b"D")])),
    ):
        try:
            look()
        except UnknownFormat as error:
            raise AssertionError from error
        except Exception as error:
            errors.append(error)
    for error in sorted(errors, key=lambda each: isinstance(each, CorruptFile)):
        raise error


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_files, "_LEAST", 0)
    monkeypatch.setattr(sst_parts, "_LEAST", 0)


@pytest.mark.usefixtures("small_files")
def test_hostile_indexes_of_a_file_that_arrives_are_read_or_refused(tmp_path: Path) -> None:
    huge = IndexForm(True, True).packed([IndexEntry(bytes([65 + n]) * 9, Block(1 << 50, 1 << 60)) for n in range(40)])
    look_ups(tmp_path, "f.sst", sst_file(INDEX))
    with pytest.raises(CorruptFile):
        look_ups(tmp_path, "f.sst", sst_file(huge))
    far = IndexForm(True, True).packed([IndexEntry(bytes([65 + n]) * 9, Block(1 << 63, 1)) for n in range(40)])
    check_read_or_refused("index", INDEX, lambda data: look_ups(tmp_path, "f.sst", sst_file(data)), 300, [huge, far])
    check_read_or_refused("properties", PROPERTIES, lambda data: look_ups(tmp_path, "f.sst", sst_file(INDEX, data)), 100)


@pytest.mark.usefixtures("small_files")
def test_hostile_chunks_of_a_blob_file_are_read_or_refused(tmp_path: Path) -> None:
    def file(index: bytes) -> bytes:
        return packed.data + index + struct.pack(">IQ8s", len(index), xxhash.xxh3_64_intdigest(index), b"HFBLOB01")

    packed = packed_chunks([(bytes([65 + n]), bytes(20_000)) for n in range(9)], 7, 0)
    index = msgspec.msgpack.encode(packed.chunks)
    claims = [
        [msgspec.structs.replace(packed.chunks[0], offset=at, size=size)]
        for at, size in ((0, 1 << 60), (1 << 50, 30), (0, len(packed.data) + 1))
    ]
    name = f"{7:016x}.blobs"
    for claim in [*claims, packed.chunks[::-1], packed.chunks[:1] * 2]:
        with pytest.raises(CorruptFile, match="chunks that overlap, or are not in the file"):
            look_ups(tmp_path, name, file(msgspec.msgpack.encode(claim)))
    look_ups(tmp_path, name, file(index))
    look_ups(tmp_path, name, file(msgspec.msgpack.encode([])))
    longer = bytearray(msgspec.msgpack.encode(packed.chunks[:1]))
    longer[1] += 1  # a field more
    deep = bytes(longer) + b"\x91" * 5_000 + b"\xc0"
    check_read_or_refused("chunks", index, lambda data: look_ups(tmp_path, name, file(data)), 300, [deep])


def stored_rows() -> list[tuple[bytes, bytes]]:
    """All rows in the form of a local store, as bases and changelogs hold them."""
    state, _ = opened(SCHEMA, OnDisk())
    for change in CHANGES:
        state.apply(change)
    state.applied()
    state.store_restored(1 << 40)
    return list(state.stored_rows())


def test_hostile_rows_of_a_base_or_a_changelog_are_read_or_refused() -> None:
    rows = stored_rows()
    examples = {key[:2] + bytes([bool(value)]): (key, value) for key, value in rows}
    for key, value in examples.values():

        def read(data: bytes, key: bytes = key, value: bytes = value) -> None:
            store = SortedMemory()
            changed = (key, data) if value else (key[:4] + data, b"")
            store.write([*(row for row in rows if row != (key, value)), changed])
            state, handles = opened(SCHEMA, store)
            for owner in KEYS:
                use(state, owner)
                for handle in handles:
                    (getattr(handle, "items", None) or getattr(handle, "value", None) or handle.get)()
            list(state.timers["event"].all())
            list(state.timers["window-event"].all())

        check_read_or_refused(f"row {key!r}", value or key[4:], read, 20, offsets=(0, 5))


def test_a_hostile_record_of_a_changelog_topic_is_refused_and_named() -> None:
    def message(key: bytes | None, value: bytes | None) -> Any:
        fields = {"key": key, "value": value, "partition": 3, "offset": 99, "topic": "holdfast-changelog"}
        return SimpleNamespace(**{name: partial(lambda it: it, it) for name, it in fields.items()})

    marker = msgspec.msgpack.encode(Marker("state", "seed", [3]))
    place = b"\xff\xff\0\0\0\x7f"
    assert record_of(message(place, marker)).content == (MarkerKey(3, 0, 127), Marker("state", "seed", [3]))
    row = b"\0\5" + section(1).prefix + b"\0\5key"
    assert record_of(message(row, b"value")).content == Row(5, row[2:], b"value")
    check_read_or_refused("marker", marker, lambda data: record_of(message(place, data)))
    check_read_or_refused("key", row, lambda data: record_of(message(data, b"")))
    for key in (None, b"", place[:4]):
        with pytest.raises(CorruptFile, match=r"holdfast-changelog, partition 3, offset 99.*Something else writes"):
            record_of(message(key, b""))


class Log:
    """A changelog with one row."""

    id, partitions, tombstone_ms = "log", 8, 1 << 40

    def __init__(self, row: Row) -> None:
        self.row = row

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 1)

    def read(self, starts: Mapping[int, int]) -> Iterator[list[LogRecord]]:
        yield [LogRecord(3, 0, self.row)]

    def close(self) -> None: ...


@pytest.mark.parametrize("key", [META, b"\xff" * 20, b""])
def test_a_row_of_a_changelog_never_replaces_what_its_copy_notes_of_itself(key: bytes, tmp_path: Path) -> None:
    copy = ChangelogCopy(str(tmp_path / "copy"), rocksdb_settings({}), Log(Row(5, key, b"\x97")), ALL, 128)
    with pytest.raises(CorruptFile, match=r"partition 3, offset 0.*key"):
        copy.catch_up()
    assert not copy.begun
    copy.close()


def test_a_hostile_record_of_the_token_topic_is_refused_and_named() -> None:
    def message(value: bytes | None) -> Any:
        return SimpleNamespace(value=lambda: value, topic=lambda: "tokens", offset=lambda: 7)

    stored = {"version": 1, "generation": 3, "epoch": 9, "id": "holdfast-1", "job": "payments"}
    assert token_of(message(msgspec.json.encode(stored))) == Token(3, Epoch(9), "holdfast-1", "payments")
    del stored["job"]
    assert token_of(message(msgspec.json.encode(stored))).job_name == ""
    for value in (None, b"", b"[" * 100_000, b"{}", b"7", b"\xff", msgspec.json.encode({**stored, "epoch": "9"})):
        with pytest.raises(ConfigurationError, match=r"topic tokens .* offset 7 is none"):
            token_of(message(value))
