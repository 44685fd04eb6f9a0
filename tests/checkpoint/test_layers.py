"""Layers: a checkpoint is the sum of what changed, however the changes are cut and merged; how often they are rolled up."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.entries import decode_entry, encode_entry, encode_manifest
from holdfast.checkpoint.files import pack
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.layers import Layer, added, difference, kept_manifests, merged
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import LARGEST_LAYER, read_checkpoint
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    KeyedHandle,
    OperatorState,
    SourceState,
    SubtaskState,
)
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.references import References
from holdfast.checkpoint.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.key_groups import key_group_range
from holdfast.testing.memory_store import MemoryStore

from .conftest import quick
from .metadata_examples import NOTHING, checkpoints, handles


def content(checkpoint):
    return (checkpoint.operators, checkpoint.sources)


@given(st.lists(checkpoints, min_size=1, max_size=4))
def test_a_checkpoint_is_the_sum_of_its_layers(history):
    layers = [difference(old, new) for old, new in zip([NOTHING, *history], history)]
    assert content(added(NOTHING, layers)) == content(history[-1])
    for cut in range(len(layers)):
        assert content(added(NOTHING, [*layers[:cut], merged(layers[cut:])])) == content(history[-1])
        assert content(added(NOTHING, [merged(layers[:cut]), *layers[cut:]])) == content(history[-1])


def grown(state: SubtaskState, more) -> SubtaskState:
    (keyed,) = state.keyed
    return SubtaskState([msgspec.structs.replace(keyed, deltas=[*keyed.deltas, *more])])


steps = st.lists(st.tuples(st.integers(0, 2), st.lists(handles, min_size=1, max_size=2), st.booleans()), max_size=12)


@given(steps, st.integers(0, 12))
def test_deltas_that_are_appended_are_written_once(steps, cut):
    """Subtasks append deltas; now and then one begins a new base."""
    states = [SubtaskState([KeyedHandle(n, n)]) for n in range(3)]
    history = [msgspec.structs.replace(NOTHING, operators={"op": OperatorState("op", subtasks=list(states))})]
    layers = [difference(NOTHING, history[0])]
    for epoch, (n, deltas, rebased) in enumerate(steps, 1):
        states[n] = SubtaskState([KeyedHandle(n, n, base_epoch=epoch, base=deltas)]) if rebased else grown(states[n], deltas)
        history.append(msgspec.structs.replace(NOTHING, operators={"op": OperatorState("op", subtasks=list(states))}))
        layers.append(difference(*history[-2:]))
        ((changed, change),) = layers[-1].subtasks["op"].items()
        assert changed == n
        if not rebased:
            assert change.state is None
            assert change.deltas == deltas
    assert content(added(NOTHING, [merged(layers[:cut]), merged(layers[cut:])])) == content(history[-1])


def test_what_did_not_change_is_the_same_object():
    states = [SubtaskState([KeyedHandle(n, n)]) for n in range(3)]
    before = msgspec.structs.replace(NOTHING, operators={"op": OperatorState("op", subtasks=list(states))})
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=CheckpointMetadata)
    copy.operators["op"].subtasks[1] = grown(states[1], [ContainedFile("d", 1, b"c")])
    after = added(before, [difference(before, copy)])
    assert [a is b for a, b in zip(after.operators["op"].subtasks, states)] == [True, False, True]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=400))
def test_roll_ups_write_little_and_leave_few(changes):
    """Each byte is written again as often as the metadata doubles, not once an epoch."""
    sizes: list[int] = []
    written = inline = 0
    for change in changes:
        inline += change
        if inline > 100:
            kept = kept_manifests(sizes, inline)
            sizes = [*sizes[:kept], sum(sizes[kept:]) + inline]
            written += sizes[-1]
            inline = 0
    assert all(older > 2 * newer for older, newer in itertools.pairwise(sizes))
    doublings = max(1, sum(changes) // 100).bit_length()
    assert len(sizes) <= doublings
    assert written <= sum(changes) * (1 + doublings)


@settings(max_examples=200)
@given(st.lists(checkpoints, min_size=1, max_size=5), st.integers(1, 3), st.data())
def test_counted_references_are_those_of_the_checkpoints_that_are_known(history, retained, data):
    """Checkpoints come and go in any order; some share states as objects, as they do after a completion."""
    references = References()
    known = []
    for checkpoint in history:
        if known and data.draw(st.booleans()):
            base = added(known[-1], [difference(known[-1], checkpoint)])
            checkpoint = msgspec.structs.replace(checkpoint, operators=base.operators)
        references.add(checkpoint)
        known.append(checkpoint)
        while len(known) > retained:
            gone = known.pop(data.draw(st.integers(0, len(known) - 1)))
            before = {f.path for c in (gone, *known) for f in c.files()}
            after = {f.path for c in known for f in c.files()}
            assert set(references.remove(gone)) == before - after
        assert len(references) == len({f.path for c in known for f in c.files()})


# ---- a large job --------------------------------------------------------------------------------------------------------

SUBTASKS, OPERATORS = 100, 10


class LargeJob:
    """A driver of a job with many keyed subtasks, and the metadata it writes."""

    def __init__(self, retained_deltas: int = 0) -> None:
        self.objects = MemoryStore()
        self.storage = quick(self.objects)
        self.paths = JobPaths.of("a large job")
        self.log = CheckpointLog(self.storage, self.paths)
        self.log.take_over()
        self.random = random.Random(1)
        self.watermark = 1_700_000_000_000
        self.states = {
            f"operator-{o}": [self.state(f"operator-{o}", n, retained_deltas) for n in range(SUBTASKS)]
            for o in range(OPERATORS)
        }
        self.offset = 0

    def delta(self, uid: str, n: int) -> ContainedFile:
        path = self.paths.state_file(1, self.log.owned.next_id, uid, n, new_attempt(), "delta")
        return ContainedFile(path, self.random.randrange(1 << 20), self.random.randbytes(16))

    def state(self, uid: str, n: int, deltas: int) -> SubtaskState:
        groups = key_group_range(128, SUBTASKS, n)
        files = [self.delta(uid, n) for _ in range(deltas)]
        return SubtaskState([KeyedHandle(groups.first, groups.last, schema="00c0ffee00c0ffee", deltas=files)])

    def change(self, uid: str, n: int) -> None:
        state = grown(self.states[uid][n], [self.delta(uid, n)])
        (keyed,) = state.keyed
        self.states[uid][n] = self.state(uid, n, 1) if len(keyed.deltas) > 64 else state

    def epoch(self) -> int:
        """Complete a checkpoint; returns how many bytes of metadata it wrote."""
        before = {path: len(data) for path, data in self.objects.objects.items()}
        owned = self.log.owned
        self.log.complete(
            CheckpointMetadata(
                owned.next_id,
                owned.generation,
                "0123456789abcdef",
                "a large job",
                1_700_000_000_000 + owned.next_id,
                operators={
                    uid: OperatorState(
                        uid, True, 128, SUBTASKS, {"00c0ffee00c0ffee": {"version": 1}}, {}, list(states), self.watermarks()
                    )
                    for uid, states in self.states.items()
                },
                sources={"payments": SourceState({"offsets": {f"payments-{p}": self.offset for p in range(100)}})},
            )
        )
        return sum(len(data) for path, data in self.objects.objects.items() if path not in before)

    def watermarks(self) -> list[int]:
        return [self.watermark + self.random.randrange(1000) if self.watermark % 2 else self.watermark] * SUBTASKS

    def manifests(self) -> int:
        return len(self.log.owned.retained[0].manifests)


@pytest.mark.parametrize("deltas", [0, 64])
def test_a_quiet_epoch_of_a_thousand_keyed_subtasks_writes_at_most_32_kb(deltas):
    job = LargeJob(deltas)
    job.epoch()
    quiet = [job.epoch() for _ in range(5)]
    assert max(quiet) <= 32 << 10
    for _ in range(40):  # some of the subtasks change: then it is quiet again
        for _ in range(7):
            job.change(f"operator-{job.random.randrange(OPERATORS)}", job.random.randrange(SUBTASKS))
        job.epoch()
        job.watermark += 2
        job.offset += 1
        quiet.append(job.epoch())
    assert max(quiet) <= 32 << 10
    restored = read_checkpoint(job.storage, job.paths, job.log.owned.next_id - 1)
    assert {uid: operator.subtasks for uid, operator in restored.operators.items()} == job.states


def test_what_an_epoch_writes_grows_with_what_changed():
    job = LargeJob(64)
    job.epoch()
    written = []
    changed = 0
    for _ in range(60):
        for _ in range(20):
            job.change(f"operator-{job.random.randrange(OPERATORS)}", job.random.randrange(SUBTASKS))
            changed += 1
        written.append(job.epoch())
    # A delta's handle takes about 60 bytes. What is rolled up is written some times again; never all 64,000 handles.
    assert sum(written) < 30 * changed * 60
    assert job.manifests() <= 10


def test_layers_stay_in_the_log_until_they_are_too_large_and_manifests_stay_few():
    job = LargeJob()
    job.epoch()
    most = 0
    for _ in range(120):
        for uid in job.states:
            job.change(uid, job.random.randrange(SUBTASKS))
        job.epoch()
        entry = decode_entry(job.objects.objects[job.paths.log_entry(job.log.owned.next_id - 1)], "entry")
        assert len(pack(encode_manifest(entry.checkpoint.layer))) <= LARGEST_LAYER
        most = max(most, job.manifests())
    assert 1 <= most <= 8


def test_a_driver_that_takes_over_goes_on_from_the_manifests():
    job = LargeJob(8)
    job.epoch()
    for uid in job.states:
        job.change(uid, 3)
    job.epoch()
    second = CheckpointLog(job.storage, job.paths)
    restored = second.take_over().restored
    assert restored == job.log.owned.retained[0]
    assert {uid: operator.subtasks for uid, operator in restored.operators.items()} == job.states
    job.log = second
    assert job.epoch() <= 32 << 10


@pytest.mark.parametrize("harm", ["missing", "altered"])
def test_a_damaged_manifest_is_named(harm):
    job = LargeJob(8)
    job.epoch()
    (manifest,) = job.log.owned.retained[0].manifests
    if harm == "missing":
        del job.objects.objects[manifest.path]
    else:
        data = job.objects.objects[manifest.path]
        job.objects.objects[manifest.path] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(CorruptFile, match=rf"{manifest.path}.*{harm}"):
        CheckpointLog(job.storage, job.paths).take_over()


def test_an_entry_needs_no_other_entry():
    """Each is whole with the manifests it names."""
    job = LargeJob(4)
    for number in range(6):
        job.change(f"operator-{number}", number)
        job.epoch()
    last = job.log.owned.next_id - 1
    alone = MemoryStore()
    named = {manifest.path for manifest in job.log.owned.retained[0].manifests}
    alone.objects = {p: d for p, d in job.objects.objects.items() if p in named or p == job.paths.log_entry(last)}
    assert read_checkpoint(Storage(alone), job.paths, last) == job.log.owned.retained[0]


def test_an_entry_of_a_large_job_is_encoded_as_it_is_decoded():
    job = LargeJob(2)
    job.epoch()
    data = job.objects.objects[job.paths.log_entry(2)]
    assert encode_entry(decode_entry(data, "f")) == data
    assert Layer() == merged([])
