"""Blob files: large values beside RocksDB, their garbage, and what a killed process leaves."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.state.store import blob_files
from holdfast.state.store.blob_file import SUFFIX, Blob, BlobFile, Chunk, Damaged, chunks_of, packed_chunks, records
from holdfast.state.store.blob_files import BlobFiles, ValueSeparation
from holdfast.state.store.disk_reads import blocks_read
from holdfast.state.store.store import RocksDBStore, rocksdb_settings
from holdfast.state.stored.layout import END, FIRST

SETTINGS = rocksdb_settings({})
TESTS = Path(__file__).parents[1]
ROWS = st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.binary(max_size=3000)), unique_by=lambda row: row[0])


@pytest.fixture(autouse=True)
def files_of_a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_files, "_FILE_SIZE", 1_000_000)


def key(number: int) -> bytes:
    return b"\0\5" + number.to_bytes(8, "big")


def value(number: int, version: int = 0, size: int = 1000) -> bytes:
    return random.Random(number * 1_000_003 + version).randbytes(size)


def blobs_in(path: Path | str) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith(SUFFIX))


def disk(path: Path | str) -> int:
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))


@given(ROWS.map(sorted))
@settings(deadline=None)
def test_a_sealed_file_says_where_its_rows_are(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[bytes, bytes]]
) -> None:
    file = BlobFile.create(str(tmp_path_factory.mktemp("blobs")))
    half = len(rows) // 2
    blobs = file.append(rows[:half]) + file.append(rows[half:])
    file.seal()

    assert [(name, file.value(*Blob.unpack(blob)[2:])) for name, blob in blobs] == rows
    with open(file.path, "rb") as stored:
        data = stored.read()
    chunks = chunks_of(len(data), lambda at, size: data[at : at + size])
    found = [(name, held) for chunk in chunks for name, _, held in records(file.read([chunk]))]
    assert found == rows
    assert all(chunk.first <= chunk.last for chunk in chunks)
    file.close()


def test_a_chunk_ends_after_32_kb() -> None:
    packed = packed_chunks([(key(number), value(number)) for number in range(100)], 1, 0)

    assert [chunk.size for chunk in packed.chunks] == [33 * 1018, 33 * 1018, 33 * 1018, 1018]
    assert sum(chunk.size for chunk in packed.chunks) == len(packed.data)


def test_values_that_compression_shrinks_stay_in_rocksdb() -> None:
    text = [(key(n), b"the quick brown fox jumps over the lazy dog, " * 30) for n in range(10)]
    noise = [(b"\0\6" + key(n), value(n)) for n in range(10)]
    small = [(b"\0\7" + key(n), value(n, size=511)) for n in range(10)]

    assert ValueSeparation("LZ4_COMPRESSION").split(text + noise + small) == (text + small, noise)
    assert ValueSeparation("NO_COMPRESSION").split(text + noise + small) == (small, text + noise)


def test_the_store_holds_large_values_in_files_of_their_own(tmp_path: Path) -> None:
    store = RocksDBStore(str(tmp_path), SETTINGS)
    store.write([(key(n), value(n)) for n in range(3000)])
    store.write([(key(n), b"small") for n in range(0, 3000, 3)], [key(n) for n in range(1, 3000, 3)])
    expected = {key(n): b"small" if n % 3 == 0 else value(n) for n in range(3000) if n % 3 != 1}

    assert dict(store.scan(FIRST, END)) == expected
    keys = [key(n) for n in range(3001)]
    assert store.get_many(keys) == [expected.get(each) for each in keys]
    store.flush()
    assert store.file_bytes()[0] < 500_000
    store.close()
    again = RocksDBStore(str(tmp_path), SETTINGS)
    assert dict(again.scan(FIRST, END)) == expected
    again.close()


def test_replaced_values_take_less_than_the_live_ones(tmp_path: Path) -> None:
    store = RocksDBStore(str(tmp_path), SETTINGS)
    chance = random.Random(7)
    versions = dict.fromkeys(range(8000), 0)
    store.write([(key(n), value(n)) for n in versions])
    for version in range(1, 60):
        changed = chance.sample(range(8000), 800)
        versions.update(dict.fromkeys(changed, version))
        store.write([(key(n), value(n, version)) for n in changed])

    assert disk(tmp_path) < 2.4 * 8000 * 1000
    for n, held in zip(versions, store.get_many([key(n) for n in versions])):
        assert held == value(n, versions[n])
    store.close()


def test_a_range_that_is_deleted_is_collected(tmp_path: Path) -> None:
    store = RocksDBStore(str(tmp_path), SETTINGS)
    for n in range(0, 10_000, 500):
        store.write([(key(at), value(at)) for at in range(n, n + 500)])
    store.delete_range(key(0), key(9_500))
    for n in range(20_000, 30_000, 500):
        store.write([(key(at), value(at)) for at in range(n, n + 500)])
    store.flush()

    assert disk(tmp_path) < 2 * 10_500 * 1000
    assert [held for _, held in store.scan(key(9_500), key(10_000))] == [value(n) for n in range(9_500, 10_000)]
    store.close()


def test_many_small_files_are_joined(tmp_path: Path) -> None:
    for n in range(40):
        store = RocksDBStore(str(tmp_path / "db"), SETTINGS)
        store.write([(key(n * 10 + each), value(n * 10 + each)) for each in range(10)])
        store.flush()
        store.close()

    store = RocksDBStore(str(tmp_path / "db"), SETTINGS)
    store.write([(key(n), value(n)) for n in range(1000, 1010)])
    store.flush()
    store.write([(key(n), value(n)) for n in range(1010, 1020)])
    store.flush()
    assert len(blobs_in(tmp_path / "db")) <= 40
    numbers = [*range(400), *range(1000, 1020)]
    assert store.get_many([key(n) for n in numbers]) == [value(n) for n in numbers]
    store.close()


def test_a_copy_keeps_its_values_while_the_store_goes_on(tmp_path: Path) -> None:
    store = RocksDBStore(str(tmp_path / "db"), SETTINGS)
    store.write([(key(n), value(n)) for n in range(5000)])
    store.checkpoint(str(tmp_path / "copy"))
    for version in range(1, 8):
        store.write([(key(n), value(n, version)) for n in range(5000)])
    store.flush()
    store.close()

    assert disk(tmp_path / "db") < 15_000_000
    copy = RocksDBStore(str(tmp_path / "copy"), SETTINGS, read_only=True)
    assert [held for _, held in copy.scan(FIRST, END)] == [value(n) for n in range(5000)]
    copy.close()


def test_a_scan_sees_the_values_of_its_beginning(tmp_path: Path) -> None:
    store = RocksDBStore(str(tmp_path), SETTINGS)
    store.write([(key(n), value(n)) for n in range(5000)])
    rows = store.scan(FIRST, END)
    seen = [next(rows)]
    for version in range(1, 8):
        store.write([(key(n), value(n, version)) for n in range(5000)])
        store.flush()

    assert [*seen, *rows] == [(key(n), value(n)) for n in range(5000)]
    store.write([(key(n), value(n, 8)) for n in range(5000)])
    store.flush()
    store.write([(key(n), value(n, 9)) for n in range(5000)])
    store.flush()
    assert disk(tmp_path) < 15_000_000
    store.close()


def write_and_die(path: str) -> None:
    store = RocksDBStore(path, SETTINGS)
    chance = random.Random(3)
    store.write([(key(n), value(n)) for n in range(4000)])
    store.flush()
    for version in range(1, 6):
        store.write([(key(n), value(n, version)) for n in chance.sample(range(4000), 2000)])
        store.write([(key(n), value(n)) for n in range(4000, 4010)])
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    program = "from state.test_blob_files import write_and_die; import sys; write_and_die(sys.argv[1])"
    died = subprocess.run([sys.executable, "-c", program, str(tmp_path / "db")], cwd=TESTS, check=False)
    assert died.returncode == -signal.SIGKILL
    names = os.listdir(tmp_path / "db")
    assert [name for name in names if name.endswith(".unsealed")]

    store = RocksDBStore(str(tmp_path / "db"), SETTINGS)
    assert not [name for name in os.listdir(tmp_path / "db") if name.endswith(".unsealed")]
    for n, held in enumerate(store.get_many([key(n) for n in range(4000)])):
        assert held in [value(n, version) for version in range(6)]  # RocksDB has lost what it had not flushed
    store.close()


def test_a_file_that_was_cut_off_is_sealed_with_its_whole_rows(tmp_path: Path) -> None:
    file = BlobFile.create(str(tmp_path))
    blobs = file.append([(key(n), value(n)) for n in range(100)])
    file.close()
    [name] = os.listdir(tmp_path)
    os.truncate(tmp_path / name, 50 * 1018 + 700)

    BlobFile.recover(str(tmp_path))
    [again] = BlobFile.in_directory(str(tmp_path))
    assert [again.value(*Blob.unpack(blob)[2:]) for _, blob in blobs[:50]] == [value(n) for n in range(50)]
    with pytest.raises(Damaged, match="altered"):
        again.value(*Blob.unpack(blobs[50][1])[2:])
    again.close()


def test_a_file_without_a_whole_row_does_not_hinder_a_base(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    file = BlobFile.create(str(tmp_path / "db"))
    file.append([(key(1), value(1))])
    file.close()
    [name] = os.listdir(tmp_path / "db")
    os.truncate(tmp_path / "db" / name, 700)

    store = RocksDBStore(str(tmp_path / "db"), SETTINGS)
    store.write([(key(7), b"small")])
    store.checkpoint(str(tmp_path / "copy"))
    store.close()
    copy = RocksDBStore(str(tmp_path / "copy"), SETTINGS, read_only=True)
    assert [each for name, each in copy.files().items() if name.endswith(SUFFIX)] == [(0, b"", b"")]
    assert copy.get_many([key(7)]) == [b"small"]
    copy.close()


def test_a_damaged_value_is_an_error_and_never_a_wrong_value(tmp_path: Path) -> None:
    store = RocksDBStore(str(tmp_path), SETTINGS)
    store.write([(key(n), value(n)) for n in range(100)])
    store.flush()
    store.close()
    [name] = blobs_in(tmp_path)
    with open(tmp_path / name, "r+b") as file:
        file.seek(50 * 1018 + 500)
        file.write(b"damage")

    store = RocksDBStore(str(tmp_path), SETTINGS)
    assert store.get_many([key(49)]) == [value(49)]
    with pytest.raises(OSError, match=f"{name} is altered"):
        store.get_many([key(50)])
    assert store.damaged
    store.close()


def test_values_are_read_ahead_while_many_are_on_the_disk(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index: dict[bytes, bytes | None] = {}
    files = BlobFiles(str(on_disk), lambda keys: [index[each] for each in keys], index.update)
    index.update(files.append([(key(n), value(n)) for n in range(3000)]))
    files.close()
    files = BlobFiles(str(on_disk), lambda keys: [index[each] for each in keys], index.update)

    def leave_the_page_cache() -> None:
        for name in blobs_in(on_disk):
            with open(on_disk / name, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    ahead: list[int] = []
    read_ahead = BlobFile.read_ahead
    monkeypatch.setattr(BlobFile, "read_ahead", lambda *args: ahead.append(1) or read_ahead(*args))

    def read_some() -> int:
        """Reads every 60th value; returns how many were read ahead."""
        ahead.clear()
        assert files.resolve([index[key(n)] for n in range(0, 3000, 60)]) == [value(n) for n in range(0, 3000, 60)]
        return len(ahead)

    leave_the_page_cache()
    before = blocks_read()
    assert read_some() == 0, "nothing is known of the first values"
    if blocks_read() == before:
        pytest.skip("this file system does not tell what it reads from a disk, or has none")
    leave_the_page_cache()
    assert read_some() == 50
    assert read_some() == 50, "the last ones came from the disk"
    assert read_some() == 0, "the last ones came from the page cache"
    files.close()


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    store = RocksDBStore(str(tmp_path), SETTINGS)
    store.write([(key(n), value(n)) for n in range(100)])
    store.flush()
    store.close()
    [name] = blobs_in(tmp_path)
    os.unlink(tmp_path / name)

    store = RocksDBStore(str(tmp_path), SETTINGS)
    with pytest.raises(OSError, match=f"{name} is missing"):
        store.get_many([key(1)])
    with pytest.raises(OSError, match=f"{name} is missing"):
        list(store.scan(FIRST, END))
    store.close()


def test_garbage_is_not_collected_from_a_damaged_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_files, "_FILE_SIZE", 100_000)
    held: dict[bytes, bytes] = {}

    def put(rows: list[tuple[bytes, bytes]]) -> None:
        held.update(rows)

    files = BlobFiles(str(tmp_path), lambda keys: [held.get(each) for each in keys], put)
    put(files.append([(key(n), value(n)) for n in range(100)]))
    [name] = blobs_in(tmp_path)
    with open(tmp_path / name, "r+b") as file:
        file.seek(2)
        file.write(b"\1")  # a record's length
    put(files.append([(key(n), value(n, 1)) for n in range(5, 100)]))

    with pytest.raises(Damaged, match="altered"):
        files.collect(10_000_000, lambda: True)
    assert name in blobs_in(tmp_path)
    files.close()


def test_an_index_that_is_altered_is_refused(tmp_path: Path) -> None:
    file = BlobFile.create(str(tmp_path))
    file.append([(key(n), value(n)) for n in range(100)])
    file.seal()
    with open(file.path, "r+b") as stored:
        stored.seek(file.size - 40)
        stored.write(b"x")
    with pytest.raises(Damaged, match="index is altered"):
        file.chunks()
    with pytest.raises(Damaged, match="truncated"):
        chunks_of(10, lambda at, size: b"0123456789"[at : at + size])
    file.close()


def test_a_chunk_is_verified() -> None:
    packed = packed_chunks([(b"a", b"1")], 1, 0)
    [chunk] = packed.chunks
    assert chunk.verified(packed.data) == packed.data
    with pytest.raises(Damaged, match="altered between 0 and 10"):
        chunk.verified(packed.data[:-1] + b"2")
    assert isinstance(chunk, Chunk)
