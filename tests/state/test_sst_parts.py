"""Parts of SST files: RocksDB reads them like whole files, also when it compacts them; damage is named."""

from __future__ import annotations

import random
import shutil
import struct
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from rocksdict import BlockBasedIndexType, BlockBasedOptions, DBCompressionType, Options, SstFileWriter

from holdfast.checkpoint.files import write_raw
from holdfast.checkpoint.handles import RawFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.stores.storage import RetryPolicy, Storage
from holdfast.errors import CorruptFile
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.snapshots import lazy_file, lazy_files
from holdfast.state.snapshots.lazy_files import LazyFiles
from holdfast.state.snapshots.lazy_restore import LazyRestore
from holdfast.state.snapshots.sst import clip_store, fetch, sections_in, write_contents
from holdfast.state.snapshots.sst_format import Metaindex
from holdfast.state.snapshots.sst_parts import KeyRange, KeyRanges, SstReader, fetch_parts
from holdfast.state.store import blob_files
from holdfast.state.store.incomplete_store import IncompleteStore
from holdfast.state.store.store import RocksDBStore, rocksdb_settings
from holdfast.state.stored.layout import END, FIRST, after, group_prefix, group_range, section
from holdfast.testing.memory_store import MemoryStore

KEYS = 3_000


def key(number: int) -> bytes:
    """A key of a common prefix, so that RocksDB compresses the index."""
    return b"\0\1" + b"a long prefix that all keys share " * 2 + struct.pack(">I", number)


class Origin:
    """A RocksDB with deletions in files of its first level, stored as a base is."""

    def __init__(
        self, path: Path, pick: random.Random, compression: str, filtered: bool = True, compacted: bool = False
    ) -> None:
        self.settings = rocksdb_settings(
            {
                "state.backend.rocksdb.compression": f"{compression}_COMPRESSION",
                "state.backend.rocksdb.use-bloom-filter": str(filtered),
                "state.backend.rocksdb.block.blocksize": "1kb",
            }
        )
        self.path = path
        self.storage = Storage(MemoryStore(), RetryPolicy(budget=1))
        self.content: dict[bytes, bytes] = {}
        with closing(RocksDBStore(str(path), self.settings, compacts=False)) as store:
            for _ in range(2):
                store.write([(key(n), pick.randbytes(60).hex().encode()) for n in pick.sample(range(KEYS), KEYS * 2 // 3)])
                store.write([], [key(n) for n in pick.sample(range(KEYS), 50)])
                at = pick.randrange(KEYS)
                store.delete_range(key(at), key(at + 100))
                store.flush()
                if compacted and not self.content:
                    self.content[b""] = b""
                    store._db.compact_range(None, None)
            self.content = dict(store.scan(b"\0\1", b"\1"))
            ranges = store.files()
        self.files = []
        for name, (level, first, last) in ranges.items():
            stored = write_raw(self.storage, name, (path / name).read_bytes())
            self.files.append(RawFile(name, stored.size, stored.checksum, name, first, last, level))

    def fetch(self, path: Path, ranges: list[KeyRange]) -> list[bool]:
        """Copy the store, its files in part; returns which of them were."""
        shutil.copytree(self.path, path)
        RocksDBStore.expect_parts(str(path))
        return [fetch_parts(self.storage, file, str(path / file.name), KeyRanges(ranges)) for file in self.files]


@pytest.mark.parametrize("compression", ["LZ4", "NO", "ZSTD"])
@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("seed", range(3))
def the_parts_of_a_store_hold_all_rows_of_the_wanted_ranges(tmp_path, compression, filtered, seed):
    pick = random.Random(seed)
    origin = Origin(tmp_path / "origin", pick, compression, filtered)
    bounds = sorted(pick.sample(range(KEYS), 2 * pick.randrange(1, 5)))[: KEYS // 3]
    ranges = [(key(low), key(min(high, low + KEYS // 8))) for low, high in zip(bounds[::2], bounds[1::2])]
    parts = origin.fetch(tmp_path / "part", ranges)
    assert any(parts) or compression == "ZSTD"  # an index in zstd is not read
    expected = [(at, row) for at, row in sorted(origin.content.items()) if any(low <= at < high for low, high in ranges)]
    for compacted in (False, True):
        with closing(RocksDBStore(str(tmp_path / "part"), origin.settings)) as store:
            if compacted:
                store._db.compact_range(None, None)
                assert not {file.name for file in origin.files} & store.files().keys()
            assert [row for each in ranges for row in store.scan(*each)] == expected
            wanted = [key(n) for n in range(KEYS) if any(low <= key(n) < high for low, high in ranges)]
            assert store.get_many(wanted) == [origin.content.get(at) for at in wanted]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_files_that_arrive_have_all_that_a_lookup_or_a_scan_needs(tmp_path, monkeypatch, compacted, seed):
    """Without a block too few: nothing is fetched in the background."""
    pick = random.Random(seed)
    origin = Origin(tmp_path / "origin", pick, pick.choice(["LZ4", "NO"]), pick.random() < 0.5, compacted)
    monkeypatch.setattr(lazy_files, "_LEAST", 1)
    monkeypatch.setattr(lazy_file, "_GAP", pick.choice([0, 5_000]))
    monkeypatch.setattr(LazyRestore, "begin", lambda self: pytest.fail("waits for whole files"))
    rows = sorted(origin.content.items())
    for turn in range(12):
        shutil.copytree(origin.path, path := tmp_path / f"part-{turn}")
        arriving = LazyFiles(origin.storage, str(path), lambda error, _: error, lazy := LazyRestore())
        assert all(arriving.take(file) for file in origin.files)
        with closing(IncompleteStore(str(path), origin.settings, arriving)) as store:
            for _ in range(4):
                if pick.random() < 0.5:
                    wanted = [
                        key(n) + pick.choice([b"", b"\0"]) for n in pick.sample(range(KEYS + 100), pick.choice([1, 3, 30]))
                    ]
                    assert store.get_many(wanted) == [origin.content.get(at) for at in wanted]
                else:
                    low = pick.randrange(KEYS)
                    start, end = key(low), key(low + pick.choice([1, 5, 300])) + pick.choice([b"", b"\0"])
                    assert list(store.scan(start, end)) == [row for row in rows if start <= row[0] < end]
        lazy.close()


def a_file_whose_index_has_levels_is_read_whole(tmp_path):
    """Its uppermost index lists parts of the index, not data blocks."""
    blocks = BlockBasedOptions()
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_format_version(6)
    blocks.set_metadata_block_size(1_000)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())
    writer = SstFileWriter(options)
    writer.open(str(tmp_path / "levels.sst"))
    for n in range(KEYS):
        writer[key(n)] = random.Random(n).randbytes(60)
    writer.finish()
    storage = Storage(MemoryStore(), RetryPolicy(budget=1))
    stored = write_raw(storage, "levels.sst", (tmp_path / "levels.sst").read_bytes())
    file = RawFile("levels.sst", stored.size, stored.checksum, "levels.sst", key(0), key(KEYS - 1), 6)
    assert not fetch_parts(storage, file, str(tmp_path / "part"), KeyRanges([(key(10), key(20))]))
    assert Metaindex.read((reader := SstReader(storage, file)).block(reader.footer.metaindex)).index  # all else is known


def at(window: int, group: int) -> bytes:
    return group_prefix(section(2, window).prefix, group) + b"key"


def test_rows_of_a_dropped_window_do_not_come_back_out_of_a_file_that_a_later_base_refers_to(tmp_path, monkeypatch):
    """The file with the range delete is left out, the file with the rows is not, and none of them is visible at first."""
    settings, groups = rocksdb_settings({}), KeyGroupRange(0, 3)
    monkeypatch.setattr(blob_files, "_LEAST", 1 << 20)
    storage = Storage(MemoryStore(), RetryPolicy(budget=1))
    pick = random.Random(1)
    stored: dict[str, RawFile] = {}

    def base(store: RocksDBStore, owned: KeyGroupRange) -> KeyedHandle:
        """A base as `RocksDBFiles` makes it."""
        store.flush()
        copy = tmp_path / f"copy-{len(stored)}"
        store.checkpoint(str(copy))
        with closing(RocksDBStore(str(copy), settings, read_only=True)) as copied:
            ranges, prefixes = copied.files(), sections_in(copied, lambda state: state == 2)
        files = []
        for name in {*ranges, *(path.name for path in copy.iterdir() if path.suffix != ".sst")}:
            if name not in ranges:
                files.append(
                    msgspec.structs.replace(write_raw(storage, f"{copy.name}/{name}", (copy / name).read_bytes()), name=name)
                )
                continue
            if name not in stored:
                stored[name] = write_raw(storage, name, (copy / name).read_bytes())
            level, first, last = ranges[name]
            files.append(msgspec.structs.replace(stored[name], name=name, level=level, first_key=first, last_key=last))
        files.append(write_contents(storage, f"{copy.name}/contents", owned, prefixes))
        return KeyedHandle(owned.first, owned.last, base=files)

    def restored(handle: KeyedHandle, name: str) -> RocksDBStore:
        (tmp_path / name).mkdir()
        fetched = fetch(storage, handle, str(tmp_path / name), groups)
        stored.update({file.name: file for file in fetched.files if file.name.endswith(".sst")})
        store = RocksDBStore(str(tmp_path / name), settings, compacts=False)
        clip_store(store, fetched, groups, lambda state: state == 2)
        return store

    with closing(RocksDBStore(str(tmp_path / "first"), settings, compacts=False)) as store:
        store.write([(at(window, group), pick.randbytes(5_000)) for window in range(3) for group in range(64)])
        store.flush()
        store.delete_range(section(2, 1).prefix, after(section(2, 1).prefix))
        store.flush()
        store.write([(at(2, 0), b"new")], [at(1, 63)])  # the row in the block next to a wanted one
        handle = base(store, KeyGroupRange(0, 127))
    with closing(restored(handle, "second")) as store:
        assert [key for key, _ in store.scan(FIRST, END)] == [at(window, group) for window in (0, 2) for group in range(4)]
        store.write([(at(1, 2), b"the window is back")])
        handle = base(store, groups)
    assert any(file.foreign for file in handle.base)
    with closing(restored(handle, "third")) as store:
        assert [key for key, _ in store.scan(*group_range(section(2, 1).prefix, KeyGroupRange(0, 127)))] == [at(1, 2)]


def test_most_of_a_file_is_not_read_in_parts(tmp_path):
    origin = Origin(tmp_path / "origin", random.Random(1), "LZ4")
    assert not any(origin.fetch(tmp_path / "whole", [(key(0), key(KEYS * 9 // 10))]))


def attempt(storage, file, target, ranges):
    try:
        return None, fetch_parts(storage, file, str(target), ranges)
    except CorruptFile as error:
        return error, False


def test_every_altered_byte_that_is_read_is_detected(tmp_path):
    origin = Origin(tmp_path / "origin", random.Random(1), "LZ4")
    file, target = origin.files[0], tmp_path / "target"
    ranges = KeyRanges([(key(100), key(300)), (key(2_000), key(2_100))])
    good = origin.storage.get(file.path)
    assert fetch_parts(origin.storage, file, str(target), ranges)
    expected = target.read_bytes()
    noticed = 0
    for at in {*range(0, len(good), 97), *range(len(good) - 1_500, len(good))}:
        target.write_bytes(b"")
        origin.storage.put(file.path, good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        damage, copied = attempt(origin.storage, file, target, ranges)
        if damage:
            assert damage.path == f"memory:/{file.path}"
        if copied:
            assert target.read_bytes() == expected, at
        noticed += not copied  # a file of another format is read whole, against the checksum of its handle
    assert noticed > 1_400
    for altered in (good[:-1], good + b"!", good[: len(good) // 2]):
        origin.storage.put(file.path, altered)
        with pytest.raises(CorruptFile, match=file.name):
            fetch_parts(origin.storage, file, str(target), ranges)
    origin.storage.delete([file.path])
    with pytest.raises(CorruptFile, match="missing"):
        fetch_parts(origin.storage, file, str(target), ranges)
