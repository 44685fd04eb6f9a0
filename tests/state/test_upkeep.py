"""The machine that decides which work on a subtask's stored state runs beside the epochs, and lives of it with crashes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import compactions
from effort import examples
from holdfast.checkpoint.handles import Handle, IndexedFile
from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state.backends import upkeep
from holdfast.state.backends.compaction import ALIKE, Base, Merge
from holdfast.state.backends.upkeep import Checkpoint, Flush, Migrate, Phase, Store, Upkeep

KIND = "kind"


def delta(name: object, size: int = 1000) -> IndexedFile:
    return IndexedFile(str(name), size, b"")


def handles(count: int, size: int = 1000) -> list[KeyedHandle]:
    return [KeyedHandle(0, 127, deltas=[delta(n, size) for n in range(count)])]


@pytest.fixture
def machine() -> Upkeep:
    made = Upkeep(kept=1 << 20, kind=KIND)
    made.restore([], 0, 127)
    return made


@pytest.fixture
def wanted(monkeypatch) -> list[Any]:
    """What is wanted after the next checkpoints, one after the other, and then nothing."""
    answers: list[Any] = []
    monkeypatch.setattr(upkeep, "due", lambda *_: answers.pop(0) if answers else None)
    return answers


def completed(machine: Upkeep, epoch: int, handles: Sequence[KeyedHandle], **seen: Any) -> Any:
    return machine.completed(Checkpoint(Epoch(epoch), handles, **seen))


def test_nothing_runs_while_nothing_is_due(machine):
    assert completed(machine, 1, handles(1)) is None
    assert machine.phase == Phase.IDLE


def a_base_begins_when_all_it_covers_is_flushed(machine, wanted):
    wanted[:] = [Base(), Base(), Base()]
    assert completed(machine, 1, handles(1)) == Flush()
    assert machine.flushed(False) is None
    assert completed(machine, 2, handles(2)) == Flush()
    assert machine.flushed(True) == Store(Epoch(2), Base(), 1), "the second delta came when the flush had begun"
    assert machine.phase == Phase.STORING
    assert completed(machine, 3, handles(3)) is None
    machine.stored([delta("base")])
    assert machine.phase == Phase.IDLE
    (own,) = machine.handles
    assert (own.base_epoch, own.kind, own.base) == (2, KIND, [delta("base")])
    assert own.deltas == [delta(1), delta(2)]


def a_merge_needs_no_flush(machine, wanted):
    wanted[:] = [Merge(1, 3)]
    assert completed(machine, 4, handles(4)) == Store(Epoch(4), Merge(1, 3), 0)
    assert completed(machine, 5, handles(5)) is None
    machine.stored([delta("merged")])
    assert [each.path for each in machine.handles[0].deltas] == ["0", "merged", "3", "4"]


def a_merge_waits_for_a_flush_while_restored_rows_are_in_memory(machine, wanted):
    """Such a row may lie in a file that is merged, and that retention deletes then."""
    wanted[:] = [Merge(0, 80), Merge(0, 80)]
    assert completed(machine, 1, handles(99), restored=True) == Flush()
    assert machine.flushed(False) is None
    assert completed(machine, 2, handles(99), restored=True) == Flush()
    assert machine.flushed(True) == Store(Epoch(2), Merge(0, 80), 99)


def a_merge_of_deltas_behind_the_running_flush_may_begin(machine, wanted):
    count = 10 + ALIKE
    wanted[:] = [Base(), Merge(0, count), Merge(0, count)]
    assert completed(machine, 1, handles(11)) == Flush()
    assert machine.flushed(False) is None
    assert completed(machine, 2, handles(count)) == Flush()
    assert machine.flushed(False) is None, "too few behind the last one that is flushed"
    assert completed(machine, 3, handles(count + 1)) == Flush()
    assert machine.flushed(False) is None
    wanted[:] = [Merge(0, count + 1)]
    assert completed(machine, 4, handles(count + 2)) == Flush()
    assert machine.flushed(False) == Store(Epoch(4), Merge(11, count + 1), 11)
    assert machine.phase == Phase.FLUSHING_AND_STORING
    machine.stored([delta("merged")])
    assert machine.phase == Phase.FLUSHING
    assert [each.path for each in machine.handles[0].deltas][10:12] == ["10", "merged"]


def a_flush_is_due_by_the_memory_of_the_rows_that_changed_since_the_last_one(machine, monkeypatch):
    monkeypatch.setattr(upkeep, "_CHANGED", 100)
    machine.replayed(50)
    assert completed(machine, 1, handles(1), changed=50) is None
    assert completed(machine, 2, handles(2), changed=1, fetching=True) is None
    assert completed(machine, 3, handles(3)) == Flush()
    assert machine.flushed(True) is None
    assert completed(machine, 4, handles(4), changed=100) is None


def a_flush_is_due_by_the_bytes_that_a_restart_would_read(machine, monkeypatch):
    monkeypatch.setattr(upkeep, "_LACKING", 100)
    assert completed(machine, 1, handles(1), lacking=100) is None
    assert completed(machine, 2, handles(2), lacking=101) == Flush()


def test_nothing_begins_while_files_of_the_restored_checkpoint_are_fetched(machine, wanted):
    wanted[:] = [Base()]
    assert completed(machine, 1, handles(1), fetching=True) is None
    assert completed(machine, 2, handles(2)) == Flush()


def the_handles_of_several_predecessors_become_one_base():
    machine = Upkeep(kept=0, kind=KIND)
    machine.restore([KeyedHandle(0, 63, deltas=[delta("a")]), KeyedHandle(64, 127, deltas=[delta("b")])], 0, 127)
    assert [(each.first, each.last) for each in machine.handles] == [(0, 63), (64, 127), (0, 127)]
    assert completed(machine, 7, machine.handles) == Flush()
    assert machine.flushed(True) == Store(Epoch(7), Base(), 0)
    machine.stored([delta("base")])
    assert [(each.first, each.last, each.base) for each in machine.handles] == [(0, 127, [delta("base")])]


def test_no_flush_begins_while_the_base_of_several_predecessors_is_stored():
    """The store has rows of all of them, of which the own deltas tell nothing."""
    machine = Upkeep(kept=0, kind=KIND)
    machine.restore([KeyedHandle(0, 63), KeyedHandle(64, 127)], 0, 127)
    completed(machine, 1, machine.handles)
    machine.flushed(True)
    assert machine.phase == Phase.STORING
    assert completed(machine, 2, machine.handles, lacking=1 << 40) is None


def the_handle_of_equal_key_groups_is_continued():
    machine = Upkeep(kept=0, kind=KIND)
    machine.restore(handles(3), 0, 127)
    assert machine.handles == handles(3)


def the_rows_of_former_types_are_rewritten_by_and_by_once_something_is_stored(machine, wanted):
    assert completed(machine, 1, handles(1), outdated=True) is None
    wanted[:] = [Merge(0, 1)]
    assert completed(machine, 2, handles(2), outdated=True) == Migrate()
    assert machine.migrated(False) == Store(Epoch(2), Merge(0, 1), 0)
    assert completed(machine, 3, handles(3), outdated=True) == Migrate()
    assert machine.migrated(True) is None
    machine.stored([delta("merged")])
    assert completed(machine, 4, handles(3)) is None


def a_base_comes_after_an_attempt_that_failed_and_the_job_fails_after_many(machine, wanted, monkeypatch):
    monkeypatch.setattr(upkeep, "_MOST_FAILURES", 2)
    wanted[:] = [Merge(0, 2), Merge(0, 2), Merge(0, 2), Merge(0, 2)]
    assert completed(machine, 1, handles(3)) == Store(Epoch(1), Merge(0, 2), 0)
    assert not machine.failed()
    assert completed(machine, 2, handles(3)) == Flush()
    assert machine.flushed(True) == Store(Epoch(2), Base(), 3)
    machine.stored([delta("base")])
    assert completed(machine, 3, handles(3)) == Store(Epoch(3), Merge(0, 2), 0), "an attempt that succeeds forgives"
    assert not machine.failed()
    completed(machine, 4, handles(3))
    machine.flushed(True)
    assert machine.failed()


@dataclass
class Life:
    """A subtask whose epochs each change something: what is in its files, its store, and what its checkpoints promise."""

    chance: random.Random
    contents: dict[str, frozenset[int]] = field(default_factory=dict)
    """The epochs whose changes are in a file."""
    store: frozenset[int] = frozenset()
    """The epochs whose changes are in the local store."""
    durable: list[KeyedHandle] = field(default_factory=list)
    """The handles of the last complete checkpoint."""
    epoch: int = 0
    files: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new process restores the checkpoint; the store of the former one may be there still."""
        self.machine = Upkeep(kept=0, kind=KIND)
        self.machine.restore(self.durable, 0, 127)
        self.pending: frozenset[int] | None = None
        self.flushes = -1
        if self.chance.random() < 0.5:
            self.store = self.inside([each for handle in self.durable for each in handle.base])

    def inside(self, files: Sequence[Handle]) -> frozenset[int]:
        return frozenset().union(*(self.contents[each.path] for each in files if isinstance(each, IndexedFile)))

    def file(self, content: frozenset[int]) -> IndexedFile:
        self.files += 1
        self.contents[str(self.files)] = content
        return delta(self.files, self.chance.choice([0, 100, 100_000]))

    def promised(self, handles: Sequence[KeyedHandle]) -> frozenset[int]:
        return self.inside([each for handle in handles for each in (*handle.base, *handle.deltas)])

    def run(self) -> None:
        """An epoch, which may fail or end the process between any two steps."""
        self.epoch += 1
        if self.pending is not None and self.chance.random() < 0.4:
            if self.chance.random() < 0.2:
                self.machine.failed()
            else:
                self.machine.stored([self.file(self.pending)])
            self.pending = None
        *others, own = self.machine.handles
        before = self.promised(self.machine.handles)
        changes = self.file(frozenset([self.epoch]))
        made = [*others, msgspec.structs.replace(own, deltas=[*own.deltas, changes])]
        if self.chance.random() < 0.1:
            self.epoch -= 1  # it failed; another process goes on, or this one
            return self.begin() if self.chance.random() < 0.5 else None
        self.durable = made
        assert before | {self.epoch} == self.promised(made) == set(range(1, self.epoch + 1))
        if self.chance.random() < 0.1:
            return self.begin()
        step = self.machine.completed(
            Checkpoint(
                Epoch(self.epoch),
                made,
                fetching=self.chance.random() < 0.1,
                restored=self.chance.random() < 0.2,
                lacking=self.chance.choice([0, 1 << 30]),
                outdated=self.chance.random() < 0.3,
            )
        )
        while step is not None:
            if self.chance.random() < 0.05:
                return self.begin()
            step = self.carry_out(step)
        return None

    def carry_out(self, step: Flush | Migrate | Store) -> Migrate | Store | None:
        if isinstance(step, Migrate):
            return self.machine.migrated(self.chance.random() < 0.5)
        if isinstance(step, Flush):
            if self.flushes < 0:
                self.flushes, self.until = self.chance.randrange(4), self.epoch
            self.flushes -= 1
            if self.flushes >= 0:
                return self.machine.flushed(False)
            self.store = frozenset(range(1, self.until + 1))
            return self.machine.flushed(True)
        own = self.machine.handles[-1]
        assert self.pending is None
        if isinstance(step.what, Merge):
            self.pending = self.inside(own.deltas[step.what.first : step.what.end])
        else:
            replaced = [each for handle in self.machine.handles[:-1] for each in (*handle.base, *handle.deltas)]
            assert self.store >= self.inside([*replaced, *own.base, *own.deltas[: step.covered]])
            self.pending = self.store
        return None


@pytest.mark.parametrize("seed", range(examples(40)))
def a_checkpoint_has_every_epoch_whatever_is_stored_fails_or_dies_meanwhile(seed, monkeypatch):
    monkeypatch.setattr(upkeep, "due", compactions.anything(seed))
    life = Life(random.Random(seed))
    for _ in range(120):
        life.run()
    assert life.files > life.epoch
