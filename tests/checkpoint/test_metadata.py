from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.files import FileHandle, pack
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    Completed,
    OperatorState,
    SourceState,
    SubtaskState,
    Takeover,
    decode_entry,
    encode_entry,
)
from holdfast.errors import CheckpointError, CorruptFile, IncompatibleState

GOLDEN = Path(__file__).parent / "golden"

int64 = st.integers(-(2**63), 2**63 - 1)
natural = st.integers(0, 2**40)
plain = st.recursive(
    st.none() | st.booleans() | int64 | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
plain_dict = st.dictionaries(st.text(), plain, max_size=3)
handles = st.builds(FileHandle, st.text(), natural, st.binary(min_size=16, max_size=16))
subtasks = st.builds(
    SubtaskState,
    key_group_first=natural,
    key_group_last=natural,
    token=st.text(),
    watermark=int64,
    base=st.lists(handles, max_size=2),
    base_kind=st.text(),
    base_epoch=natural,
    deltas=st.lists(handles, max_size=2),
    extra=plain_dict,
)
operators = st.builds(
    OperatorState,
    name=st.text(),
    uid_given=st.booleans(),
    max_parallelism=natural,
    parallelism=natural,
    schema=st.dictionaries(st.text(), plain_dict, max_size=2),
    subtasks=st.lists(subtasks, max_size=2),
)
sources = st.builds(SourceState, enumerator=plain, watermarks=st.dictionaries(st.text(), plain_dict, max_size=2))
checkpoints = st.builds(
    CheckpointMetadata,
    checkpoint_id=natural,
    generation=natural,
    job_id=st.text(),
    job_name=st.text(),
    created_at=natural,
    duration_ms=natural,
    sources=st.dictionaries(st.text(), sources, max_size=2),
    operators=st.dictionaries(st.text(), operators, max_size=2),
    committables=st.lists(st.tuples(st.text(), natural, plain), max_size=2),
    full_size=natural,
    delta_size=natural,
)
entries = st.builds(
    Completed, format_version=st.just(1), generation=natural, checkpoint=checkpoints, oldest=natural, takeover=natural
) | st.builds(
    Takeover,
    format_version=st.just(1),
    generation=natural,
    driver=st.text(),
    restored=natural,
    oldest=natural,
    takeovers=st.lists(natural, max_size=3),
    requested=natural,
    created_at=natural,
)

EXAMPLE = Completed(
    format_version=1,
    generation=3,
    checkpoint=CheckpointMetadata(
        checkpoint_id=17,
        generation=3,
        job_id="0123456789abcdef",
        job_name="fraud alerts",
        created_at=1_700_000_000_000,
        duration_ms=120,
        sources={"payments": SourceState({"offsets": {"payments-0": 4711}}, {"payments-0": {"max_timestamp": 99}})},
        operators={
            "fraud": OperatorState(
                name="fraud counter",
                uid_given=True,
                max_parallelism=128,
                parallelism=2,
                schema={"count": {"type": "long", "version": 1}},
                subtasks=[
                    SubtaskState(
                        0,
                        63,
                        token="t0",
                        watermark=98,
                        base=[FileHandle("fraud-alerts/state/a.sst", 1000, b"0123456789abcdef")],
                        base_kind="rocksdb",
                        base_epoch=12,
                        deltas=[FileHandle("fraud-alerts/state/b.delta", 10, b"fedcba9876543210")],
                        extra={"timers": 3},
                    ),
                    SubtaskState(64, 127),
                ],
            )
        },
        committables=[("alerts", 1, {"transactional_id": "x-1", "producer_id": 7, "epoch": 2})],
        full_size=1010,
        delta_size=10,
    ),
    oldest=15,
    takeover=14,
)
TAKEOVER = Takeover(
    format_version=1,
    generation=3,
    driver="0123456789abcdef0123456789abcdef",
    restored=13,
    oldest=11,
    takeovers=[1, 8],
    requested=0,
    created_at=1_700_000_000_000,
)


@given(entries)
def test_a_log_entry_comes_back_as_it_was(entry):
    assert decode_entry(encode_entry(entry), "f") == entry


@pytest.mark.parametrize(("name", "entry"), [("completed", EXAMPLE), ("takeover", TAKEOVER)])
def test_entries_of_version_1_stay_readable(name, entry):
    assert decode_entry((GOLDEN / f"log_{name}_v1.bin").read_bytes(), name) == entry


def test_a_checkpoint_names_all_its_files():
    assert [file.path for file in EXAMPLE.checkpoint.files()] == [
        "fraud-alerts/state/a.sst",
        "fraud-alerts/state/b.delta",
    ]


def test_fields_of_a_later_release_are_skipped():
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(TAKEOVER))
    assert decode_entry(pack(msgspec.msgpack.encode({**stored, "colour": "red"})), "f") == TAKEOVER


def test_a_later_format_is_refused_whatever_it_looks_like():
    with pytest.raises(IncompatibleState, match=r"version 2.*reads up to 1"):
        decode_entry(pack(msgspec.msgpack.encode({"format_version": 2, "type": "novelty"})), "f")


def test_what_is_no_log_entry_is_called_corrupt():
    with pytest.raises(CorruptFile, match="f: not an entry of a checkpoint log"):
        decode_entry(pack(b"\xc1"), "f")


@pytest.mark.parametrize("value", [2**70, object(), 1 + 2j])
def test_what_is_not_plain_data_is_refused_with_the_rule(value):
    entry = msgspec.structs.replace(
        EXAMPLE, checkpoint=msgspec.structs.replace(EXAMPLE.checkpoint, committables=[("sink", 0, value)])
    )
    with pytest.raises(CheckpointError, match="must be plain data"):
        encode_entry(entry)
