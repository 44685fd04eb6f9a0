"""Checkpoint metadata for tests: a fixed example of every part, and hypothesis strategies."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from holdfast.checkpoint.entries import CheckpointRecord, Completed, Takeover
from holdfast.checkpoint.handles import ContainedFile, IndexedFile, InlineFile, LogRange, RawFile
from holdfast.checkpoint.layers import Layer, SubtaskChange, added, difference
from holdfast.checkpoint.metadata import (
    BROADCAST,
    SPLIT,
    UNION,
    CheckpointMetadata,
    KeyedHandle,
    ListedState,
    ListPart,
    OperatorCheckpoint,
    SourceState,
    SubtaskState,
)
from holdfast.checkpoint.stores.object_store import leaves

int64 = st.integers(-(2**63), 2**63 - 1)
natural = st.integers(0, 2**40)
plain = st.recursive(
    st.none() | st.booleans() | int64 | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
plain_dict = st.dictionaries(st.text(), plain, max_size=3)
checksums = st.binary(min_size=16, max_size=16)
file_names = st.text().filter(lambda text: not {"/", "\0"} & {*text} and text not in (".", ".."))
paths = st.lists(file_names, min_size=1, max_size=3).map("/".join).filter(lambda path: not leaves(path))
files = (
    st.builds(ContainedFile, paths, natural, checksums)
    | st.builds(RawFile, paths, natural, checksums, file_names, st.binary(), st.binary())
    | st.builds(IndexedFile, paths, natural, checksums)
)
handles = files | st.builds(LogRange, st.text(), natural, natural) | st.builds(InlineFile, paths, st.binary(), checksums)
keyed = st.builds(
    KeyedHandle,
    first=natural,
    last=natural,
    schema=st.text(),
    kind=st.text(),
    base_epoch=natural,
    base=st.lists(handles, max_size=2),
    deltas=st.lists(handles, max_size=3),
)
parts = st.builds(ListPart, elements=st.lists(st.binary(), min_size=1, max_size=3)) | st.builds(
    ListPart, file=files, first=natural, count=st.integers(1, 9)
)
subtasks = st.builds(
    SubtaskState,
    keyed=st.lists(keyed, max_size=2),
    lists=st.dictionaries(st.text(), st.lists(parts, min_size=1, max_size=2), max_size=2),
)
listed = st.builds(ListedState, mode=st.sampled_from([SPLIT, UNION, BROADCAST]), type=st.none() | plain_dict)
operators = st.builds(
    OperatorCheckpoint,
    name=st.text(),
    uid_given=st.booleans(),
    max_parallelism=natural,
    parallelism=natural,
    schemas=st.dictionaries(st.text(), plain_dict, max_size=2),
    listed=st.dictionaries(st.text(), listed, max_size=2),
    subtasks=st.lists(subtasks, max_size=3),
    watermarks=st.lists(int64, max_size=3),
    ahead=st.lists(st.tuples(natural, natural, int64), max_size=3),
    generators=st.lists(plain, max_size=3),
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
    sources=st.dictionaries(st.sampled_from("stu"), sources, max_size=2),
    operators=st.dictionaries(st.sampled_from("abcd"), operators, max_size=3),
    committables=st.lists(st.tuples(st.text(), natural, plain), max_size=2),
    full_size=natural,
    delta_size=natural,
)

NOTHING = CheckpointMetadata(0, 0, "", "", 0)


def record_of(checkpoint: CheckpointMetadata) -> CheckpointRecord:
    """The checkpoint as one layer."""
    return CheckpointRecord(
        checkpoint.checkpoint_id,
        checkpoint.generation,
        checkpoint.job_id,
        checkpoint.job_name,
        checkpoint.created_at,
        checkpoint.duration_ms,
        checkpoint.committables,
        checkpoint.full_size,
        checkpoint.delta_size,
        checkpoint.manifests,
        difference(NOTHING, checkpoint),
    )


entries = st.builds(
    Completed,
    format_version=st.just(3),
    generation=natural,
    checkpoint=st.builds(record_of, checkpoints),
    oldest=natural,
    takeover=natural,
) | st.builds(
    Takeover,
    format_version=st.just(3),
    generation=natural,
    driver=st.text(),
    restored=natural,
    oldest=natural,
    takeovers=st.lists(natural, max_size=3),
    requested=natural,
    created_at=natural,
)

DIRECTORY = "fraud-alerts/state/0000000003-00000000000000000"
LIMITS = ContainedFile(f"{DIRECTORY}15-rules-d.list", 70, b"f" * 16)
SST = RawFile(f"{DIRECTORY}12-fraud-a.sst", 1000, b"0123456789abcdef", "000012.sst", b"\0a", b"\0z")
CHECKPOINT = CheckpointMetadata(
    checkpoint_id=17,
    generation=3,
    job_id="0123456789abcdef",
    job_name="fraud alerts",
    created_at=1_700_000_000_000,
    duration_ms=120,
    sources={"payments": SourceState({"offsets": {"payments-0": 4711}}, {"payments-0": {"max_timestamp": 99}})},
    operators={
        "fraud": OperatorCheckpoint(
            name="fraud counter",
            uid_given=True,
            max_parallelism=128,
            parallelism=2,
            schemas={"00c0ffee00c0ffee": {"version": 2, "states": {"keyed": {"id": 1, "kind": "rows", "since": 1}}}},
            subtasks=[
                SubtaskState(
                    [
                        KeyedHandle(
                            0,
                            63,
                            schema="00c0ffee00c0ffee",
                            kind="rocksdb",
                            base_epoch=12,
                            base=[
                                SST,
                                ContainedFile(f"{DIRECTORY}12-fraud-b.index", 90, b"0123456789ABCDEF"),
                            ],
                            deltas=[IndexedFile(f"{DIRECTORY}16-fraud-c.delta", 10, b"fedcba9876543210")],
                        ),
                        KeyedHandle(0, 63, deltas=[LogRange("changelog-0", 4711, 4720)]),
                    ]
                ),
                SubtaskState([KeyedHandle(64, 127, schema="00c0ffee00c0ffee")]),
            ],
            watermarks=[98, 97],
        ),
        "rules": OperatorCheckpoint(
            name="rules",
            parallelism=2,
            listed={
                "limits": ListedState(SPLIT, {"version": 1, "type": "LONG"}),
                "seen": ListedState(UNION),
                "rules": ListedState(BROADCAST),
            },
            subtasks=[
                SubtaskState(lists={"limits": [ListPart([b"\x01", b"\x02"])], "rules": [ListPart([b"r"])]}),
                SubtaskState(
                    lists={
                        "limits": [ListPart(file=LIMITS, first=3, count=9)],
                        "seen": [ListPart([b"\xc0"])],
                        "rules": [ListPart([b"r"])],
                    }
                ),
            ],
        ),
        "times": OperatorCheckpoint(name="times", parallelism=1, generators=[{"max_timestamp": 99, "emitted": 98}]),
    },
    committables=[("alerts", 1, {"transactional_id": "x-1", "producer_id": 7, "epoch": 2})],
    full_size=1010,
    delta_size=10,
)
EXAMPLE = Completed(
    format_version=2,
    generation=3,
    checkpoint=record_of(CHECKPOINT),
    oldest=15,
    takeover=14,
)
TAKEOVER = Takeover(
    format_version=2,
    generation=3,
    driver="0123456789abcdef0123456789abcdef",
    restored=13,
    oldest=11,
    takeovers=[1, 8],
    requested=0,
    created_at=1_700_000_000_000,
)
RESCALED = msgspec.structs.replace(
    CHECKPOINT,
    operators={
        uid: msgspec.structs.replace(each, watermarks=[50, 60], ahead=[(0, 11, 70), (64, 70, 80)])
        for uid, each in CHECKPOINT.operators.items()
    },
)
"""Some key groups are ahead of their subtasks."""
AHEAD = msgspec.structs.replace(EXAMPLE, checkpoint=record_of(RESCALED))
ON_TRIAL = msgspec.structs.replace(EXAMPLE, savepoint="file:///savepoint", trial=True, requested=9, claim=True)
TAKEOVER_ON_TRIAL = msgspec.structs.replace(TAKEOVER, savepoint="file:///old", claim=True, copy=15, position=16)
TAKEOVER_OF_JOB = msgspec.structs.replace(
    TAKEOVER, job="89abcdef89abcdef", savepoint="file:///old#digest=0123456789abcdef0123456789abcdef", position=16
)
INLINE = InlineFile(f"{DIRECTORY}17-fraud-e.delta", b"\x00changes of epoch 17\xff", b"e" * 16)
WITH_INLINE = msgspec.structs.replace(
    EXAMPLE,
    format_version=3,
    checkpoint=record_of(
        msgspec.structs.replace(
            CHECKPOINT,
            operators={
                "fraud": OperatorCheckpoint(
                    name="fraud counter", subtasks=[SubtaskState([KeyedHandle(0, 127, base=[SST], deltas=[INLINE])])]
                )
            },
        )
    ),
)
"""A delta is in the entry itself."""
MANIFEST_WITH_INLINE = Layer(subtasks={"fraud": {0: SubtaskChange(None, [INLINE])}})
MANIFEST = Layer(reset=["gone"], ended=["old source"], sources={"payments": SourceState({"offsets": {}})})


def whole(record: CheckpointRecord, *layers: Layer) -> CheckpointMetadata:
    """The checkpoint of a record on these layers."""
    content = added(NOTHING, [*layers, record.layer])
    return CheckpointMetadata(
        record.checkpoint_id,
        record.generation,
        record.job_id,
        record.job_name,
        record.created_at,
        record.duration_ms,
        content.sources,
        content.operators,
        record.committables,
        record.full_size,
        record.delta_size,
        record.manifests,
    )
