from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given

from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.entries import decode_entry, decode_manifest, encode_entry, encode_manifest
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import ConfigurationError, CorruptFile, IncompatibleState
from holdfast.testing.memory_store import MemoryStore

from .metadata_examples import (
    AHEAD,
    CHECKPOINT,
    EXAMPLE,
    INLINE,
    MANIFEST,
    MANIFEST_WITH_INLINE,
    ON_TRIAL,
    SST,
    TAKEOVER,
    TAKEOVER_OF_JOB,
    TAKEOVER_ON_TRIAL,
    WITH_INLINE,
    entries,
    whole,
)

GOLDEN = Path(__file__).parent / "golden"


@given(entries)
def test_a_log_entry_comes_back_as_it_was(entry):
    assert decode_entry(encode_entry(entry), "f") == entry


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("completed", EXAMPLE),
        ("takeover", TAKEOVER),
        ("ahead", AHEAD),
        ("completed_on_trial", ON_TRIAL),
        ("takeover_on_trial", TAKEOVER_ON_TRIAL),
        ("takeover_of_job", TAKEOVER_OF_JOB),
    ],
)
def test_entries_of_form_2_stay_readable(name, entry):
    assert decode_entry((GOLDEN / f"log_{name}_v2.bin").read_bytes(), name) == entry


def test_manifests_of_form_2_stay_readable():
    assert decode_manifest(unpack((GOLDEN / "manifest_v2.bin").read_bytes(), "f"), "f") == MANIFEST


def the_metadata_of_form_3_stays_readable():
    assert decode_entry((GOLDEN / "log_completed_v3.bin").read_bytes(), "f") == WITH_INLINE
    assert decode_manifest(unpack((GOLDEN / "manifest_v3.bin").read_bytes(), "f"), "f") == MANIFEST_WITH_INLINE


def a_delta_in_an_entry_is_no_file():
    checkpoint = whole(WITH_INLINE.checkpoint)
    assert [file.path for file in checkpoint.files()] == [SST.path]
    assert INLINE in checkpoint.operators["fraud"].subtasks[0].contents()


@pytest.mark.parametrize("harm", ["torn", "altered"])
def an_entry_with_a_damaged_delta_is_named(harm):
    data = encode_entry(WITH_INLINE)
    at = len(data) // 2
    damaged = data[:at] if harm == "torn" else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with pytest.raises(CorruptFile, match=r"log/17: (truncated|altered)"):
        decode_entry(damaged, "log/17")


def test_a_record_holds_the_whole_checkpoint():
    assert whole(EXAMPLE.checkpoint) == CHECKPOINT


def test_a_checkpoint_names_all_its_files():
    assert [file.path.rsplit("-", 1)[1] for file in CHECKPOINT.files()] == ["a.sst", "b.index", "c.delta", "d.list"]


def test_fields_of_a_later_release_are_skipped():
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(TAKEOVER))
    assert decode_entry(pack(msgspec.msgpack.encode({**stored, "colour": "red"})), "f") == TAKEOVER


def test_a_later_format_is_refused_whatever_it_looks_like():
    novelty = msgspec.msgpack.encode({"format_version": 4, "type": "novelty"})
    with pytest.raises(IncompatibleState, match=r"version 4.*reads up to 3"):
        decode_entry(pack(novelty), "f")
    with pytest.raises(IncompatibleState, match=r"version 4.*reads up to 3"):
        decode_manifest(novelty, "f")


def test_a_job_of_form_1_is_refused_with_one_sentence():
    storage = Storage(MemoryStore())
    paths = JobPaths.of("old")
    storage.put(paths.log_entry(1), pack(msgspec.msgpack.encode({"type": "takeover", "format_version": 1})))
    with pytest.raises(IncompatibleState, match=r"version 1, a form older .*: start the job under another name") as caught:
        CheckpointLog(storage, paths).take_over()
    assert "\n" not in str(caught.value)


def test_data_other_than_a_log_entry_is_corrupt():
    with pytest.raises(CorruptFile, match="f: not an entry of a checkpoint log"):
        decode_entry(pack(b"\xc1"), "f")
    with pytest.raises(CorruptFile, match="f: not a manifest of a checkpoint"):
        decode_manifest(b"\xc1", "f")


OUTSIDE = ["../other/state/a.sst", "/etc/passwd", "job/state/../../../a", "job/state/a\0b", ".."]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("replaced", [SST.path, SST.name])
def an_entry_that_names_a_file_outside_its_directory_is_refused(replaced, name):
    def planted(value):
        if isinstance(value, dict):
            return {key: planted(each) for key, each in value.items()}
        if isinstance(value, list):
            return [planted(each) for each in value]
        return name if value == replaced else value

    stored = planted(msgspec.msgpack.decode(unpack(encode_entry(EXAMPLE), "f")))
    with pytest.raises(CorruptFile, match=r"leaves the storage|is not the name of a file"):
        decode_entry(pack(msgspec.msgpack.encode(stored)), "f")


def a_local_store_opens_no_file_outside_its_directory(tmp_path):
    (tmp_path / "secret").write_text("hush")
    storage = Storage.open(str(tmp_path / "checkpoints"))
    for path in (*OUTSIDE, "../secret", str(tmp_path / "secret")):
        for access in (storage.get, storage.local_path, storage.size, lambda path: storage.delete([path])):
            with pytest.raises(CorruptFile, match="leaves its directory"):
                access(path)
    assert (tmp_path / "secret").exists()


@pytest.mark.parametrize("value", [2**70, object(), 1 + 2j])
def test_metadata_other_than_plain_data_is_refused_with_the_rule(value):
    record = msgspec.structs.replace(EXAMPLE.checkpoint, committables=[("sink", 0, value)])
    with pytest.raises(ConfigurationError, match="must be plain data"):
        encode_entry(msgspec.structs.replace(EXAMPLE, checkpoint=record))


def test_the_payload_of_a_manifest_names_its_form():
    assert msgspec.msgpack.decode(encode_manifest(MANIFEST))["format_version"] == 3
