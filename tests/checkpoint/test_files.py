from __future__ import annotations

import errno
import os
import pickle
import struct
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint import files
from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.files import read_file, read_raw, store_raw, write_file, write_raw
from holdfast.checkpoint.handles import ContainedFile, Handle, IndexedFile, LogRange, RawFile
from holdfast.checkpoint.stores import directory_store
from holdfast.checkpoint.stores.storage import AlreadyExists, Storage
from holdfast.errors import CorruptFile, IncompatibleState

from .conftest import quick

GOLDEN = Path(__file__).parent / "golden"


@given(st.one_of(st.binary(), st.binary().map(lambda b: b * 50)))
def test_unpacking_returns_the_packed_payload(payload):
    assert unpack(pack(payload), "f") == payload


def test_a_read_returns_the_written_content(storage):
    payload = b"state " * 1000
    handle = write_file(storage, "state/f", payload)
    assert read_file(storage, handle) == payload
    assert handle.size == storage.size("state/f") < len(payload)
    assert pickle.loads(pickle.dumps(handle)) == handle


def test_raw_bytes_are_stored_as_they_are(storage):
    payload = os.urandom(10_000)
    handle = write_raw(storage, "state/f.sst", payload)
    assert storage.get("state/f.sst") == payload
    assert read_raw(storage, handle) == payload


@pytest.mark.parametrize("size", [0, 9, 10, 11, 25])
def a_file_of_this_host_is_stored_by_a_link_where_that_is_possible(memory, tmp_path, monkeypatch, size):
    monkeypatch.setattr(files, "_AT_ONCE", 10)
    source = tmp_path / "source"
    source.write_bytes(payload := os.urandom(size))
    local = Storage.open(str(tmp_path / "storage"))
    linked = store_raw(local, "job/state/f", str(source))
    assert source.stat().st_nlink == 2
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(directory_store.os, "link", _refuse)
        copied = store_raw(local, "job/state/g", str(source))
    assert source.stat().st_nlink == 2
    sent = store_raw(quick(memory), "f", str(source))
    assert linked.checksum == copied.checksum == sent.checksum
    assert read_raw(local, linked) == read_raw(local, copied) == read_raw(quick(memory), sent) == payload
    source.unlink()
    assert read_raw(local, linked) == payload


def a_link_does_not_take_the_place_of_another_file(tmp_path):
    storage, source = Storage.open(str(tmp_path / "storage")), tmp_path / "source"
    source.write_bytes(b"mine")
    storage.put("f", b"other")
    with pytest.raises(AlreadyExists):
        store_raw(storage, "f", str(source))
    assert storage.get("f") == b"other"


def _refuse(source: str, target: str) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("size", [0, 9, 10, 11, 20, 25])
def a_file_is_copied_in_parts_and_damage_is_detected(memory, tmp_path, monkeypatch, size):
    monkeypatch.setattr(files, "_AT_ONCE", 10)
    storage, payload = quick(memory), os.urandom(size)
    handle = write_raw(storage, "f", payload)
    files.fetch_raw(storage, handle, str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == payload
    altered = [payload + b"x", payload[:-1], payload[:5], payload[:-1] + bytes([payload[-1] ^ 1])] if size else [b"x"]
    for content in altered:
        memory.objects["f"] = content
        with pytest.raises(CorruptFile, match="/f: "):
            files.fetch_raw(storage, handle, str(tmp_path / "copy"))
    del memory.objects["f"]
    with pytest.raises(CorruptFile, match="missing"):
        files.fetch_raw(storage, handle, str(tmp_path / "copy"))


@pytest.mark.parametrize("saved", [0, 60])
def test_bytes_that_hardly_shrink_are_stored_uncompressed(saved):
    payload = os.urandom(1000) + bytes(saved)
    assert len(pack(payload)) == len(payload) + 40


def test_bytes_that_shrink_by_a_tenth_are_compressed():
    payload = os.urandom(1000) + bytes(120)
    assert len(pack(payload)) < 1100


@pytest.mark.parametrize("raw", [False, True], ids=["contained", "raw"])
@pytest.mark.parametrize("payload", [b"small", b"compressible " * 30], ids=["plain", "compressed"])
def test_every_flipped_bit_is_detected(memory, raw, payload):
    storage = quick(memory)
    write, read = (write_raw, read_raw) if raw else (write_file, read_file)
    handle = write(storage, "f", payload)
    good = memory.objects["f"]
    for at in range(len(good)):
        for bit in range(8):
            memory.objects["f"] = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
            with pytest.raises(CorruptFile, match="/f: "):
                read(storage, handle)


@pytest.mark.parametrize("raw", [False, True], ids=["contained", "raw"])
def test_every_truncation_and_extension_is_detected(memory, raw):
    storage = quick(memory)
    write, read = (write_raw, read_raw) if raw else (write_file, read_file)
    handle = write(storage, "f", b"compressible " * 30)
    good = memory.objects["f"]
    for size in range(len(good)):
        memory.objects["f"] = good[:size]
        with pytest.raises(CorruptFile, match="truncated") as raised:
            read(storage, handle)
        assert raised.value.path == "memory:/f"
    memory.objects["f"] = good + b"\0"
    with pytest.raises(CorruptFile):
        read(storage, handle)


def test_damage_is_detected_without_a_handle_too():
    good = pack(b"compressible " * 30)
    for at in range(len(good)):
        with pytest.raises(CorruptFile):
            unpack(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], "f")
        with pytest.raises(CorruptFile):
            unpack(good[:at], "f")


def test_a_missing_file_is_named(storage):
    handle = write_file(storage, "state/f", b"x")
    storage.delete(["state/f"])
    with pytest.raises(CorruptFile, match=r"state/f: missing"):
        read_file(storage, handle)


def test_another_intact_file_under_the_same_name_is_detected(memory):
    storage = quick(memory)
    handle = write_file(storage, "f", b"one")
    write_file(storage, "f", b"two")
    with pytest.raises(CorruptFile, match="not the file that"):
        read_file(storage, handle)


def test_a_newer_version_is_refused_and_not_called_damaged():
    fields = struct.pack("<4sBBHQQ", b"HFST", 9, 0, 0, 1, 1)
    with pytest.raises(IncompatibleState, match="version 9"):
        unpack(fields + xxhash.xxh3_128_digest(fields + b"x") + b"x", "f")


@pytest.mark.parametrize("name", ["plain", "compressed"])
def test_files_of_version_1_stay_readable(name):
    payload = {"plain": b"holdfast", "compressed": b"holdfast " * 100}[name]
    assert unpack((GOLDEN / f"container_{name}_v1.bin").read_bytes(), name) == payload


def test_a_handle_stays_readable():
    stored = {
        ContainedFile("f", 3, b"c"): [0, "f", 3, b"c"],
        RawFile("f", 3, b"c", "12.sst", b"a", b"z", 2): [1, "f", 3, b"c", "12.sst", b"a", b"z", 2, False],
        IndexedFile("f", 3, b"c"): [2, "f", 3, b"c"],
        LogRange("log", 3, 9): [3, "log", 3, 9],
    }
    for handle, plain in stored.items():
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(handle)) == plain
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=Handle) == handle
    for older in ([1, "f", 3, b"c"], [1, "f", 3, b"c", "12.sst", b"a", b"z", 2]):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Handle) == RawFile(*older[1:])
