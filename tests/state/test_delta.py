"""Delta files: what is written is read, whole or by key groups; damage is named; form 2 stays as it is."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.container import compress
from holdfast.checkpoint.files import write_file
from holdfast.checkpoint.handles import IndexedFile, InlineFile
from holdfast.checkpoint.stores.storage import RetryPolicy, Storage
from holdfast.errors import CorruptFile, HoldfastError, IncompatibleState
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored import delta
from holdfast.state.stored.delta import Change, Piece, pack_delta, pack_joined, put_delta, read_stored, write_delta
from holdfast.state.stored.delta_files import DeltaFiles
from holdfast.state.stored.layout import section
from holdfast.testing.memory_store import MemoryStore

GOLDEN = Path(__file__).parent / "golden"
DELTA_2_END = 80
"""Bytes of index and trailer of the golden file."""
SMALL = [
    Change(section(1), False, [Piece(0, 3, b"first piece"), Piece(3, 127, b"second piece " * 30)]),
    Change(section(2, -60_000), True, []),
    Change(section(2, 0), True, [Piece(5, 5, b"a piece of a window that came back")]),
]


class Counting(MemoryStore):
    """Counts the bytes that are read."""

    read = 0

    def get(self, path):
        data = super().get(path)
        self.read += len(data)
        return data

    def get_range(self, path, start, length):
        data = self.objects[path][start : start + length]
        self.read += len(data)
        return data


@pytest.fixture
def objects() -> Counting:
    return Counting()


@pytest.fixture
def storage(objects) -> Storage:
    return Storage(objects, RetryPolicy(budget=1))


def test_a_read_returns_the_written_content(storage):
    handle = write_delta(storage, "d", reversed(SMALL))
    assert read_delta(storage, handle) == SMALL
    assert handle.size == storage.size("d")


def read_delta(storage: Storage, handle: IndexedFile, groups: KeyGroupRange | None = None) -> list[Change]:
    """The changes of a file, which each of their pieces names."""
    changes = list(delta.read_delta(storage, handle, groups))
    assert {piece.where for change in changes for piece in change.pieces} <= {storage.locate(handle.path)}
    return [each._replace(pieces=[piece._replace(where="") for piece in each.pieces]) for each in changes]


sections = st.builds(section, st.integers(1, 4)) | st.builds(section, st.integers(5, 8), st.integers(-(2**63), 2**63 - 1))
pieces = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 3), st.binary(max_size=50) | st.binary(max_size=5).map(lambda b: b * 3000)),
    max_size=12,
)


def in_order(drawn: list[tuple[int, int, bytes]]) -> list[Piece]:
    at, made = 0, []
    for gap, width, data in drawn:
        made.append(Piece(at + gap, at + gap + width, data))
        at += gap + width
    return made


contents = st.dictionaries(sections, st.tuples(st.booleans(), pieces.map(in_order)), max_size=6)


def stored_sizes(storage, objects, *pieces: bytes) -> list[int]:
    """The stored bytes of each piece of a section."""
    handle = write_delta(storage, "d", [Change(section(1), False, [Piece(n, n, data) for n, data in enumerate(pieces)])])
    (stored,) = read_stored(storage, handle).sections
    objects.objects.clear()
    return [piece.length for piece in stored.pieces]


def the_pieces_that_do_not_shrink_are_seldom_tried_and_others_are_compressed_again(storage, objects, monkeypatch):
    tried = []
    monkeypatch.setattr(delta, "compress", lambda data: tried.append(len(data)) or compress(data))
    noise, text = os.urandom(20_000), b"text that shrinks " * 1000
    assert stored_sizes(storage, objects, *[noise] * 200) == [20_000] * 200
    assert 10 < tried.count(20_000) < 20
    sizes = stored_sizes(storage, objects, *[noise] * 20, *[text] * 50)
    assert sum(size < 1000 for size in sizes) > 30, sizes
    small = b"small " * 100
    assert max(stored_sizes(storage, objects, *[noise] * 9, *[small] * 50)[9:]) < 100
    assert stored_sizes(storage, objects, *[os.urandom(1000)] * 50, text)[50] < 1000


@given(contents, st.none() | st.tuples(st.integers(0, 200), st.integers(0, 200)))
def a_reader_gets_the_pieces_of_its_key_groups(content, bounds):
    storage = Storage(MemoryStore())
    changes = [Change(at, *content[at]) for at in sorted(content, key=lambda at: at.prefix)]
    handle = write_delta(storage, "d", changes)
    groups = KeyGroupRange(min(bounds), max(bounds)) if bounds else None
    expected = []
    for at, dropped, held, _ in changes:
        mine = [p for p in held if groups is None or (p.first <= groups.last and p.last >= groups.first)]
        if mine or dropped:
            expected.append(Change(at, dropped, mine))
    assert list(read_delta(storage, handle, groups)) == [e for e in expected]


def a_reader_of_one_eighth_of_the_key_groups_reads_a_sixth_of_the_bytes_at_most(storage, objects, monkeypatch):
    monkeypatch.setattr(delta, "_READ_AT_ONCE", 2_000)
    noise = bytes(range(256)) * 8
    changes = [Change(section(s), False, [Piece(g, g, bytes([g]) + noise[: 997 + g]) for g in range(64)]) for s in (1, 2, 3)]
    handle = write_delta(storage, "d", changes)
    for first in range(0, 64, 8):
        objects.read = 0
        got = list(read_delta(storage, handle, KeyGroupRange(first, first + 7)))
        assert [p.first for change in got for p in change.pieces] == list(range(first, first + 8)) * 3
        assert objects.read < handle.size / 6


def damage(storage, handle, groups):
    try:
        list(read_delta(storage, handle, groups))
    except CorruptFile as error:
        return error
    return None


@pytest.mark.parametrize("groups", [None, KeyGroupRange(0, 127), KeyGroupRange(5, 5)], ids=["whole", "ranges", "one group"])
def test_every_flipped_bit_of_what_is_read_is_detected(storage, objects, groups):
    handle = write_delta(storage, "d", SMALL)
    good = objects.objects["d"]
    expected = list(read_delta(storage, handle, groups))
    noticed = 0
    for at in range(len(good)):
        for bit in range(8):
            objects.objects["d"] = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
            error = damage(storage, handle, groups)
            if error is None:
                assert list(read_delta(storage, handle, groups)) == expected
            else:
                assert error.path == "memory:/d"
                noticed += 1
    if groups is None or groups.first == 0:
        assert noticed == 8 * len(good)


@pytest.mark.parametrize("groups", [None, KeyGroupRange(0, 127)], ids=["whole", "ranges"])
def test_every_truncation_is_detected_and_every_extension_of_what_is_read_whole(storage, objects, groups):
    big = [Change(section(1), False, [Piece(g, g, bytes(range(256)) * 10) for g in range(100)])]
    for changes in (SMALL, big):
        handle = write_delta(storage, "d", changes)
        good = objects.objects["d"]
        for size in [
            *range(0, len(good), max(1, len(good) // 500)),
            len(good) - 1,
            *([len(good) + 1] if groups is None else []),
        ]:
            objects.objects["d"] = (good + b"\0")[:size]
            with pytest.raises(CorruptFile, match="d: truncated or altered"):
                list(read_delta(storage, handle, groups))
        objects.objects["d"] = good


def test_a_missing_delta_is_named(storage):
    handle = write_delta(storage, "state/d", SMALL)
    storage.delete(["state/d"])
    for groups in (None, KeyGroupRange(0, 1)):
        with pytest.raises(CorruptFile, match=r"state/d: missing"):
            list(read_delta(storage, handle, groups))


def test_another_intact_delta_under_the_same_name_is_detected(storage):
    handle = write_delta(storage, "d", SMALL[:1])
    write_delta(storage, "d", [Change(section(1), False, [SMALL[0].pieces[0], Piece(3, 127, b"other piece " * 30)])])
    with pytest.raises(CorruptFile):
        list(read_delta(storage, handle))


@pytest.mark.parametrize("groups", [None, KeyGroupRange(0, 1)], ids=["whole", "ranges"])
def a_file_of_form_1_is_refused_in_one_sentence(storage, groups):
    handle = write_file(storage, "d", msgspec.msgpack.encode({"format": 1, "spaces": {}, "timers": {}}) * 300)
    with pytest.raises(
        IncompatibleState, match=r"memory:/d is state of form 1, which this release of Holdfast does not read"
    ):
        list(read_delta(storage, handle, groups))


def a_damaged_file_of_form_1_is_damaged(storage, objects):
    handle = write_file(storage, "d", b"form 1")
    objects.objects["d"] = objects.objects["d"][:-1] + b"!"
    with pytest.raises(CorruptFile):
        list(read_delta(storage, handle))


def a_later_form_is_refused_and_not_called_damaged(storage, objects, monkeypatch):
    monkeypatch.setattr(delta, "_FORM", 3)
    handle = write_delta(storage, "d", SMALL)
    monkeypatch.undo()
    with pytest.raises(IncompatibleState, match="form 3"):
        list(read_delta(storage, handle))
    objects.objects["d"] = objects.objects["d"][:-8] + b"\4" + objects.objects["d"][-7:]
    with pytest.raises(CorruptFile):
        list(read_delta(storage, handle))


def the_joined_deltas_have_the_changes_of_each_one_in_their_order(storage):
    later = [Change(SMALL[0].section, True, SMALL[0].pieces), *SMALL[1:]]
    handles = [write_delta(storage, f"delta-{n}", changes) for n, changes in enumerate((SMALL, later, SMALL))]
    one = put_delta(storage, "joined", *pack_joined([read_stored(storage, each) for each in handles]))
    for groups in (None, KeyGroupRange(0, 1), KeyGroupRange(2, 200)):
        apart = [change for each in handles for change in read_delta(storage, each, groups)]
        assert list(read_delta(storage, one, groups)) == apart
    assert read_stored(storage, one).memory == 3 * read_stored(storage, handles[0]).memory


def a_damaged_piece_is_not_joined(storage):
    handle = write_delta(storage, "d", SMALL)
    objects = storage.get("d")
    storage.put("d", bytes([objects[0] ^ 1]) + objects[1:])
    with pytest.raises(CorruptFile, match="the checksum of its piece"):
        read_stored(storage, handle)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_pass_for_a_delta(data):
    storage = Storage(MemoryStore())
    storage.put("d", data)
    for groups in (None, KeyGroupRange(0, 1)):
        with pytest.raises(HoldfastError):
            list(read_delta(storage, IndexedFile("d", len(data), b"\0" * 16), groups))


def test_the_golden_delta_of_form_2_stays_readable(storage):
    data = (GOLDEN / "delta_2.bin").read_bytes()
    storage.put("d", data)
    handle = IndexedFile("d", len(data), xxhash.xxh3_128_digest(data[-DELTA_2_END:]))
    assert list(read_delta(storage, handle)) == SMALL


def the_form_is_unchanged():
    """If this fails, the form has changed: it needs a new number, and the old one must stay readable."""
    plain = [Change(each.section, each.dropped, each.pieces[:1]) for each in SMALL]  # zstd's output is not ours to fix
    assert pack_delta(plain)[0] == (GOLDEN / "delta_2_plain.bin").read_bytes()


def the_latest_small_files_are_not_read_again():
    store = Counting()
    log = DeltaFiles(Storage(store), 0)
    handles = [log.append([Change(section(1), False, [Piece(n, n, b"%d" % n)])], f"d{n}") for n in range(64)]
    assert [
        piece.data for each in handles for change in log.replay(each, KeyGroupRange(0, 127)) for piece in change.pieces
    ] == [b"%d" % n for n in range(64)]
    joined = log.join([log.stored(each) for each in handles], "joined")
    assert len(list(log.replay(joined, KeyGroupRange(0, 127)))) == 64
    assert store.read == 0
    assert len(list(DeltaFiles(Storage(store), 0).replay(joined, KeyGroupRange(0, 127)))) == 64, "what is stored is the same"


def a_small_delta_is_in_its_handle_and_asks_the_storage_for_nothing():
    store = Counting()
    log = DeltaFiles(Storage(store), 400)
    changes = [Change(section(1), False, [Piece(n, n, random.randbytes(8)) for n in range(4)])]
    small = [log.append(changes, f"small{n}") for n in range(12)]
    assert all(isinstance(each, InlineFile) and each.size <= 400 for each in small)
    assert not store.objects
    large = log.join([log.stored(each) for each in small], "large")
    assert isinstance(large, IndexedFile)
    assert [*store.objects] == ["large"]
    reader = DeltaFiles(Storage(Counting()), 0)
    assert next(reader.replay(small[3], KeyGroupRange(0, 127))).pieces[2].data == changes[0].pieces[2].data


def the_files_in_memory_are_few_and_small():
    store = Counting()
    log = DeltaFiles(Storage(store), 0)
    many = [log.append([Change(section(1), False, [Piece(0, 0, random.randbytes(60 << 10))])], f"d{n}") for n in range(80)]
    large = log.append([Change(section(1), False, [Piece(0, 0, random.randbytes(65 << 10))])], "large")
    log.stored(many[-1])
    assert store.read == 0
    log.stored(many[0])
    log.stored(large)
    assert store.read == many[0].size + large.size
