"""Signed checkpoints: who can write to the storage, but has no key, cannot make a job read what it did not write."""

from __future__ import annotations

import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.container import unpack
from holdfast.checkpoint.files import fetch_raw, write_raw
from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.checkpoint.stores.signed_store import KEY_FILE, SignedStore, SigningKey, read_keys, sign_again
from holdfast.checkpoint.stores.storage import AlreadyExists, NotFound, Storage
from holdfast.common import Configuration
from holdfast.errors import ConfigurationError, CorruptFile, HoldfastError
from holdfast.state_api import list_snapshots, open_snapshot, sign, verify
from holdfast.testing.in_process import InProcessEnvironment
from holdfast.testing.memory_store import MemoryStore

CHUNK = 256 << 10
ONE, TWO, THREE = (SigningKey(bytes([n]) * 32) for n in range(3))
SIZES = st.sampled_from([0, 1, 31, 32, 100, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 17])


def content(size: int) -> bytes:
    return bytes(i * 31 % 251 for i in range(min(size, 4096))) * (size // 4096 + 1)


@given(SIZES, st.integers(0, 4 * CHUNK), st.integers(0, 4 * CHUNK))
def test_what_is_put_is_what_is_read_whole_and_in_parts(size: int, start: int, length: int) -> None:
    store = SignedStore(MemoryStore(), [ONE])
    data = content(size)[:size]
    store.put("job/state/a", data)
    assert store.size("job/state/a") == size
    assert store.get("job/state/a") == data
    assert store.get_range("job/state/a", start, length) == data[start : start + length]


@given(SIZES, st.data())
def test_any_changed_byte_is_found(size: int, data: st.DataObject) -> None:
    inner = MemoryStore()
    store = SignedStore(inner, [ONE])
    store.put("a", content(size)[:size])
    stored = bytearray(inner.objects["a"])
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    inner.objects["a"] = bytes(stored)
    with pytest.raises(CorruptFile):
        store.get("a")
    if size:
        with pytest.raises(CorruptFile):
            SignedStore(inner, [ONE]).get_range("a", 0, size)


@given(SIZES, st.data())
def test_a_truncated_or_extended_object_is_found(size: int, data: st.DataObject) -> None:
    inner = MemoryStore()
    store = SignedStore(inner, [ONE])
    store.put("a", content(size)[:size])
    stored = inner.objects["a"]
    cut = data.draw(st.integers(0, len(stored) - 1))
    inner.objects["a"] = data.draw(st.sampled_from([stored[:cut], stored[cut + 1 :], stored + b"x", stored[:cut] + stored]))
    if inner.objects["a"] != stored:
        with pytest.raises(CorruptFile):
            store.get("a")


def an_object_does_not_stand_in_for_another_one() -> None:
    inner = MemoryStore()
    store = SignedStore(inner, [ONE])
    store.put("job/sinks/records", b"of an attacker's choice")
    inner.objects["job/log/00000000000000000009"] = inner.objects["job/sinks/records"]
    with pytest.raises(CorruptFile, match="its signature does not match its content and name"):
        store.get("job/log/00000000000000000009")


def a_file_of_one_savepoint_does_not_stand_in_for_that_of_another_one_with_the_same_key(tmp_path: Path) -> None:
    mine, others = (
        Storage(SignedStore(DirectoryStore(str(tmp_path / name)), [ONE])) for name in ("savepoint-a", "savepoint-b")
    )
    mine.put("_metadata", b"of a")
    others.put("_metadata", b"of b")
    assert others.get("_metadata") == b"of b"
    (tmp_path / "savepoint-a" / "_metadata").write_bytes((tmp_path / "savepoint-b" / "_metadata").read_bytes())
    with pytest.raises(CorruptFile, match=r"savepoint-a/_metadata.*does not match.*keeps the name of its directory"):
        mine.get("_metadata")


def a_savepoint_that_is_copied_elsewhere_under_its_own_name_stays_valid(tmp_path: Path) -> None:
    Storage(SignedStore(DirectoryStore(str(tmp_path / "savepoint-a")), [ONE])).put("_metadata", b"of a")
    shutil.copytree(tmp_path / "savepoint-a", tmp_path / "elsewhere" / "savepoint-a")
    assert SignedStore(DirectoryStore(str(tmp_path / "elsewhere" / "savepoint-a")), [ONE]).get("_metadata") == b"of a"


def a_savepoint_that_an_earlier_release_signed_is_signed_again_and_then_read() -> None:
    inner = MemoryStore()
    data = b"of an earlier release"
    footer = struct.pack("<8sQ8s", ONE.id, len(data), b"HFSIGN01")
    inner.put("_metadata", data + ONE.sign("_metadata", len(data), 0, data) + footer)
    with pytest.raises(CorruptFile, match="does not tell to which savepoint it belongs"):
        SignedStore(inner, [ONE]).get("_metadata")
    assert sign_again(inner, [ONE], ["_metadata"]) == 1
    assert sign_again(inner, [ONE], ["_metadata"]) == 0
    assert SignedStore(inner, [ONE]).get("_metadata") == data


def an_unsigned_object_is_not_read_and_the_error_does_not_advise_to_sign_it() -> None:
    inner = MemoryStore()
    inner.put("a", pickle.dumps("trust me"))
    with pytest.raises(CorruptFile, match=r"not signed.*somebody has put this one there") as refused:
        SignedStore(inner, [ONE]).get("a")
    assert "checkpoints sign" not in str(refused.value)


def a_planted_object_is_not_signed_by_a_rotation() -> None:
    inner = MemoryStore()
    SignedStore(inner, [ONE]).put("a", b"1")
    inner.put("b", planted := pickle.dumps("trust me"))
    with pytest.raises(CorruptFile, match=r"/b.*not signed"):
        sign_again(inner, [TWO, ONE], ["a", "b"])
    assert inner.objects["b"] == planted
    assert sign_again(inner, [TWO, ONE], ["a", "b"], adopt_unsigned=True) == 1
    assert SignedStore(inner, [TWO]).get("b") == planted


def test_put_if_absent_tells_its_own_object_from_that_of_another_driver() -> None:
    storage = Storage(SignedStore(MemoryStore(), [ONE]))
    storage.put_new("log/1", b"mine")
    storage.put_new("log/1", b"mine")
    with pytest.raises(AlreadyExists):
        storage.put_new("log/1", b"another's")
    with pytest.raises(NotFound):
        storage.get("log/2")


def test_keys_are_rotated_without_a_moment_in_which_files_cannot_be_read() -> None:
    inner = MemoryStore()
    SignedStore(inner, [ONE]).put("old", b"1")
    both = SignedStore(inner, [TWO, ONE])
    both.put("new", b"2")
    assert [both.get("old"), both.get("new")] == [b"1", b"2"]
    with pytest.raises(CorruptFile, match=f"signed with key {ONE.id.hex()}"):
        SignedStore(inner, [TWO]).get("old")
    assert sign_again(inner, [TWO, ONE], sorted(inner.objects)) == 1
    assert [SignedStore(inner, [TWO]).get(path) for path in ("old", "new")] == [b"1", b"2"]
    with pytest.raises(CorruptFile):
        sign_again(inner, [THREE], ["old"])


def a_large_raw_file_is_verified_piece_by_piece(tmp_path: Path) -> None:
    inner = MemoryStore()
    storage = Storage(SignedStore(inner, [ONE]))
    data = content(20 << 20)[: 20 << 20]
    handle = write_raw(storage, "job/state/a.sst", data)
    fetch_raw(storage, handle, str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == data
    stored = bytearray(inner.objects["job/state/a.sst"])
    stored[17 << 20] ^= 1
    inner.objects["job/state/a.sst"] = bytes(stored)
    with pytest.raises(CorruptFile, match="its signature does not match"):
        fetch_raw(Storage(SignedStore(inner, [ONE])), handle, str(tmp_path / "copy"))


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("ab" * 31, 0o600, "line 1 of .* is not a key of at least 64 hexadecimal digits"),
        ("# none\n\nsecret", 0o600, "line 3 of .* is not a key"),
        ("# none\n", 0o600, "has no key; `openssl rand -hex 32"),
        ("ab" * 32, 0o604, "has mode 0604, so other users can reach it: chmod 0600"),
        ("ab" * 32, 0o660, "has mode 0660"),
    ],
)
def a_file_of_keys_that_cannot_be_used_is_refused_and_not_shown(tmp_path: Path, text: str, mode: int, said: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_keys(str(file))
    assert "abab" not in str(refused.value)
    assert "secret" not in str(refused.value).replace("secret key", "")


def a_missing_file_of_keys_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"security\.checkpoints\.key-file is .*none.*cannot be read"):
        Storage.open(str(tmp_path), {KEY_FILE: str(tmp_path / "none")})


def key_file(directory: Path, name: str = "keys", *keys: str) -> Path:
    file = directory / name
    file.touch(mode=0o600)
    file.write_text("\n".join(keys or [os.urandom(32).hex()]))
    return file


def a_signed_directory_notes_what_is_visible_with_each_checkpoint_as_another_one_does(tmp_path: Path) -> None:
    for config in ({}, {KEY_FILE: str(key_file(tmp_path))}):
        storage, paths = Storage.open(str(tmp_path / f"with {len(config)} settings"), config), JobPaths.of("job")
        log, noted = CheckpointLog(storage, paths), []
        for number in (7, 8):
            log.output_becomes_visible(CheckpointId(number))
            noted.append(unpack(storage.get(paths.visible), paths.visible))
        assert noted == [b"7", b"8"]


def restored_by_a_run(directory: Path, keys: Path | None) -> int:
    """Run a job, which resumes; returns the checkpoint that it has restored, 0 for none."""
    config = {"execution.checkpointing.dir": str(directory / "checkpoints"), "restart-strategy.type": "none"}
    if keys is not None:
        config[KEY_FILE] = str(keys)
    env = InProcessEnvironment(Configuration.from_dict(config))
    env.from_collection(["a", "b", "a"]).key_by(lambda word: word).reduce(lambda a, b: a + b).print()
    client: Any = env.execute_async("counting")
    client.get_job_execution_result().result()
    restored = client.metrics.snapshot().restored
    return 0 if restored is None else restored.id


def a_signed_job_resumes_and_does_not_open_a_planted_pickle(tmp_path: Path) -> None:
    keys = key_file(tmp_path)
    directory = tmp_path / "checkpoints"
    assert restored_by_a_run(tmp_path, keys) == 0
    assert restored_by_a_run(tmp_path, keys) > 0
    (newest, *_) = list_snapshots(str(directory), {KEY_FILE: str(keys)})
    snapshot = open_snapshot(newest.path, {KEY_FILE: str(keys)})
    assert verify(snapshot) == []
    assert keys.read_text().encode() not in b"".join(p.read_bytes() for p in directory.rglob("*") if p.is_file())
    ran = tmp_path / "ran"

    class Planted:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {ran}",)

    pickled = pickle.dumps(Planted())
    for path in directory.rglob("*"):
        if path.is_file():
            path.write_bytes(pickled)
    with pytest.raises(HoldfastError, match="not signed"):
        restored_by_a_run(tmp_path, keys)
    assert not ran.exists()


def an_unsigned_job_is_signed_once_and_goes_on_and_its_keys_are_rotated(tmp_path: Path) -> None:
    assert restored_by_a_run(tmp_path, None) == 0
    old, new = os.urandom(32).hex(), os.urandom(32).hex()
    first, both, last = (key_file(tmp_path, *args) for args in (("1", old), ("2", new, old), ("3", new)))
    with pytest.raises(HoldfastError, match="not signed"):
        restored_by_a_run(tmp_path, first)
    job = str(tmp_path / "checkpoints" / "counting")
    with pytest.raises(CorruptFile, match="not signed"):
        sign(job, {KEY_FILE: str(first)})
    assert sign(job, {KEY_FILE: str(first)}, adopt_unsigned=True) > 0
    assert restored_by_a_run(tmp_path, first) > 0
    assert restored_by_a_run(tmp_path, both) > 0
    assert sign(job, {KEY_FILE: str(both)}) > 0
    assert sign(job, {KEY_FILE: str(both)}) == 0
    assert restored_by_a_run(tmp_path, last) > 0
