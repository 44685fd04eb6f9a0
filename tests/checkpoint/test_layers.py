"""Layers: a checkpoint is the sum of what changed, however the changes are cut and merged; how often they are rolled up."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.checkpoint.entries import decode_entry, encode_entry, encode_manifest
from holdfast.checkpoint.handles import LARGEST_INLINE, ContainedFile, InlineFile, inline_limit
from holdfast.checkpoint.layers import Layer, added, difference, kept_manifests, merged
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import LARGEST_LAYER, read_checkpoint
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    KeyedHandle,
    OperatorCheckpoint,
    SubtaskState,
)
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.references import References, StateFiles
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.testing.memory_store import MemoryStore

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.metadata import SUBTASKS, LargeJob

from .conftest import quick
from .metadata_examples import NOTHING, checkpoints, handles


def content(checkpoint):
    return (checkpoint.operators, checkpoint.sources)


@settings(max_examples=examples(10), deadline=None)
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
    history = [msgspec.structs.replace(NOTHING, operators={"op": OperatorCheckpoint("op", subtasks=list(states))})]
    layers = [difference(NOTHING, history[0])]
    for epoch, (n, deltas, rebased) in enumerate(steps, 1):
        states[n] = SubtaskState([KeyedHandle(n, n, base_epoch=epoch, base=deltas)]) if rebased else grown(states[n], deltas)
        history.append(msgspec.structs.replace(NOTHING, operators={"op": OperatorCheckpoint("op", subtasks=list(states))}))
        layers.append(difference(*history[-2:]))
        ((changed, change),) = layers[-1].subtasks["op"].items()
        assert changed == n
        if not rebased:
            assert change.state is None
            assert change.deltas == deltas
    assert content(added(NOTHING, [merged(layers[:cut]), merged(layers[cut:])])) == content(history[-1])


def test_unchanged_parts_stay_the_same_objects():
    states = [SubtaskState([KeyedHandle(n, n)]) for n in range(3)]
    before = msgspec.structs.replace(NOTHING, operators={"op": OperatorCheckpoint("op", subtasks=list(states))})
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


@settings(max_examples=examples(8), deadline=None)
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
            assert not any(path in references for path in before - after)
        assert len(references) == len({f.path for c in known for f in c.files()})
        assert all(f.path in references for c in known for f in c.files())


def a_file_of_a_state_that_many_checkpoints_share_is_gone_with_the_last_of_them():
    file = ContainedFile("shared", 1, bytes(16))
    shared = OperatorCheckpoint("op", subtasks=[SubtaskState([KeyedHandle(0, 1, deltas=[file])])])
    several = [msgspec.structs.replace(NOTHING, checkpoint_id=n, operators={"op": shared}) for n in range(4)]
    references = References()
    for checkpoint in several:
        references.add(checkpoint)
    assert [references.remove(checkpoint) for checkpoint in several] == [[], [], [], ["shared"]]
    assert len(references) == 0


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(checkpoints, min_size=1, max_size=5), st.data())
def the_size_of_a_checkpoint_is_that_of_its_files_whatever_came_before(history, data):
    files = StateFiles()
    sizes: dict[str, int] = {}
    before = NOTHING
    for checkpoint in history:
        if data.draw(st.booleans()):
            checkpoint = msgspec.structs.replace(
                checkpoint, operators=added(before, [difference(before, checkpoint)]).operators
            )
        stored = [f for o in checkpoint.operators.values() for s in o.subtasks for f in s.contents()]
        assume(all(sizes.setdefault(f.path, f.size) == f.size for f in stored))
        expected = {f.path: f.size for f in stored}
        assert files.become(checkpoint.operators) == sum(expected.values())
        assert set(files._counts.files) == set(expected)
        before = checkpoint


# ---- a large job --------------------------------------------------------------------------------------------------------


class Large(LargeJob):
    """Ten operators with a hundred keyed subtasks, in memory; counts what it writes."""

    def __init__(self, deltas: int = 0) -> None:
        self.objects = MemoryStore()
        super().__init__(quick(self.objects), deltas)

    def write(self) -> int:
        """Complete a checkpoint; returns how many bytes of metadata it wrote."""
        before = {*self.objects.objects}
        self.epoch()
        return sum(len(data) for path, data in self.objects.objects.items() if path not in before)

    def manifests(self) -> int:
        return len(self.log.owned.retained[0].manifests)


@pytest.mark.parametrize("deltas", [0, 64])
def test_a_quiet_epoch_of_a_thousand_keyed_subtasks_writes_at_most_32_kb(deltas):
    job = Large(deltas)
    job.epoch()
    quiet = [job.write() for _ in range(5)]
    assert max(quiet) <= 32 << 10
    for _ in range(40):  # some of the subtasks change: then it is quiet again
        job.change_some(7)
        job.epoch()
        job.advance()
        quiet.append(job.write())
    assert max(quiet) <= 32 << 10
    restored = read_checkpoint(job.storage, job.paths, job.log.owned.next_id - 1)
    assert {uid: operator.subtasks for uid, operator in restored.operators.items()} == job.states


def test_the_bytes_written_per_epoch_are_proportional_to_the_changes():
    job = Large(64)
    job.epoch()
    written = []
    changed = 0
    for _ in range(60):
        job.change_some(20)
        changed += 20
        written.append(job.write())
    # A delta's handle takes about 60 bytes. What is rolled up is written some times again; never all 64,000 handles.
    assert sum(written) < 30 * changed * 60
    assert job.manifests() <= 10


def test_layers_stay_in_the_log_until_they_are_too_large_and_manifests_stay_few():
    job = Large()
    job.epoch()
    most = 0
    for _ in range(120):
        for uid in job.states:
            for _ in range(4):
                job.change(uid, job.random.randrange(SUBTASKS))
        job.epoch()
        entry = decode_entry(job.objects.objects[job.paths.log_entry(job.log.owned.next_id - 1)], "entry")
        assert len(encode_manifest(entry.checkpoint.layer)) <= LARGEST_LAYER
        most = max(most, job.manifests())
    assert 1 <= most <= 8


@pytest.mark.parametrize("subtasks", [1, 64, 1000])
def an_entry_has_at_most_4_mib_however_many_subtasks_put_their_deltas_and_output_into_it(subtasks: int) -> None:
    """Three vertices whose deltas, and two sinks whose output, are as large as they may be; nothing that compresses."""
    objects = MemoryStore()
    paths = JobPaths.of("job")
    log = CheckpointLog(quick(objects), paths)
    log.take_over()
    chance = random.Random(subtasks)
    limit = inline_limit(LARGEST_INLINE, subtasks)
    output = inline_limit(LARGEST_INLINE, 2 * subtasks)
    states = {uid: [SubtaskState([KeyedHandle(0, 127)])] * subtasks for uid in "abc"}
    for epoch in range(6):
        states = {
            uid: [
                grown(state, [InlineFile(f"{uid}-{n}-{epoch}", chance.randbytes(limit), b"")])
                for n, state in enumerate(each)
            ]
            for uid, each in states.items()
        }
        operators = {uid: OperatorCheckpoint(uid, subtasks=each) for uid, each in states.items()}
        copies = [(uid, n, {"copy": chance.randbytes(output)}) for uid in ("s", "t") for n in range(subtasks)]
        log.complete(
            msgspec.structs.replace(
                NOTHING, checkpoint_id=log.owned.next_id, generation=1, operators=operators, committables=copies
            )
        )
        assert len(objects.objects[paths.log_entry(log.owned.next_id - 1)]) <= 4 << 20
    assert CheckpointLog(quick(objects), paths).take_over().restored.operators == operators


def test_a_driver_that_takes_over_continues_from_the_manifests():
    job = Large(8)
    job.epoch()
    for uid in job.states:
        job.change(uid, 3)
    job.epoch()
    second = CheckpointLog(job.storage, job.paths)
    restored = second.take_over().restored
    assert restored == job.log.owned.retained[0]
    assert {uid: operator.subtasks for uid, operator in restored.operators.items()} == job.states
    job.log = second
    assert job.write() <= 32 << 10


@pytest.mark.parametrize("harm", ["missing", "altered"])
def test_a_damaged_manifest_is_named(harm):
    job = Large(8)
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
    job = Large(4)
    for number in range(6):
        job.change(f"operator-{number}", number)
        job.epoch()
    last = job.log.owned.next_id - 1
    alone = MemoryStore()
    named = {manifest.path for manifest in job.log.owned.retained[0].manifests}
    alone.objects = {p: d for p, d in job.objects.objects.items() if p in named or p == job.paths.log_entry(last)}
    assert read_checkpoint(Storage(alone), job.paths, last) == job.log.owned.retained[0]


def test_an_entry_of_a_large_job_is_encoded_as_it_is_decoded():
    job = Large(2)
    job.epoch()
    data = job.objects.objects[job.paths.log_entry(2)]
    assert encode_entry(decode_entry(data, "f")) == data
    assert Layer() == merged([])
