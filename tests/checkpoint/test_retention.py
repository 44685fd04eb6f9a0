from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint import manifests, milestones
from holdfast.checkpoint.files import write_file
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.retention import Retention, orphans, surplus_entries, verify_files
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CheckpointError, CorruptFile, StorageError
from holdfast.testing.faulty_storage import Fault
from holdfast.testing.memory_store import MemoryStore

from .conftest import checkpoint, quick


class Job:
    """A driver that writes one delta an epoch, on a base that all share."""

    def __init__(self, storage, paths, retained=2):
        self.storage, self.paths = storage, paths
        self.log = CheckpointLog(storage, paths, retained)
        self.log.take_over()
        self.retention = Retention(storage, paths, self.log)
        self.base = None

    def file(self, epoch=None, generation=None, kind="delta"):
        owned = self.log.owned
        path = self.paths.state_file(generation or owned.generation, epoch or owned.next_id, "op", 0, new_attempt(), kind)
        return write_file(self.storage, path, b"state")

    def epoch(self, output=False):
        self.base = self.base or self.file(kind="base")
        owned = self.log.owned
        made = checkpoint(owned.next_id, owned.generation, self.base, self.file(), output=output)
        self.log.complete(made)
        return made

    def stored(self):
        return set(self.storage.list(self.paths.state_prefix))


def paths_of(*checkpoints):
    return {file.path for c in checkpoints for file in c.files()}


def manifests_of(*checkpoints):
    return {manifest.path for c in checkpoints for manifest in c.manifests}


def test_the_last_checkpoints_stay_with_the_files_they_share_with_older_ones(storage, paths):
    job = Job(storage, paths)
    made = [job.epoch() for _ in range(5)]
    assert job.retention.collect() > 0
    assert job.stored() == paths_of(*made[-2:])


def test_a_held_checkpoint_stays_until_it_is_let_go(storage, paths):
    job = Job(storage, paths)
    held = job.epoch()
    with job.retention.hold(held.checkpoint_id):
        made = [job.epoch() for _ in range(3)]
        job.retention.collect()
        job.retention.sweep()
        assert job.stored() == paths_of(held, *made[-2:])
        verify_files(storage, held)
    job.retention.collect()
    assert job.stored() == paths_of(*made[-2:])


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


ACTS = ["epochs", "epochs", "collect", "sweep", "hold", "renew", "release", "wait", "restart"]


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 30)), max_size=20))
@settings(deadline=None)
def test_a_held_checkpoint_can_be_read_until_its_hold_ends_by_itself(retained, acts):
    paths, storage, clock = JobPaths.of("a job"), quick(MemoryStore()), Clock()
    job = Job(storage, paths, retained)
    job.retention = Retention(storage, paths, job.log, clock)
    alive: dict[str, tuple[Any, float]] = {}
    """The holds that have not ended, with the checkpoint and the end of each."""
    with pytest.raises(CheckpointError, match="no checkpoint has been completed yet"):
        job.retention.hold_newest(1)
    starting = Retention(storage, paths, CheckpointLog(storage, paths, retained))
    with pytest.raises(CheckpointError, match="the job is starting"):
        starting.hold_newest(1)
    newest = job.epoch()
    for act, amount in acts:
        any_hold = list(alive)[amount % len(alive)] if alive else ""
        if act == "epochs":
            for _ in range(amount):
                newest = job.epoch()
        elif act == "collect":
            job.retention.collect()
        elif act == "sweep":
            job.retention.sweep()
        elif act == "wait":
            clock.now += amount
            alive = {number: held for number, held in alive.items() if held[1] > clock.now}
        elif act == "restart":
            job.log.take_over()
        elif act == "hold":
            hold = job.retention.hold_newest(amount)
            assert (hold.checkpoint_id, hold.path) == (newest.checkpoint_id, job.log.locate(newest.checkpoint_id))
            alive[hold.id] = newest, clock.now + amount
        elif any_hold and act == "renew":
            job.retention.holds.renew(any_hold, amount)
            alive[any_hold] = alive[any_hold][0], clock.now + amount
        elif any_hold:
            job.retention.holds.remove(any_hold)
            del alive[any_hold]
            with pytest.raises(KeyError):
                job.retention.holds.renew(any_hold, amount)
        for held, _ in alive.values():
            assert read_checkpoint(storage, paths, held.checkpoint_id) == held
            verify_files(storage, held)
        assert job.retention.holds.checkpoints() == {held.checkpoint_id for held, _ in alive.values()}
    clock.now += 1000
    job.retention.sweep()
    assert job.stored() == paths_of(*job.log.owned.retained)


def test_a_hold_waits_for_no_clean_up(memory, paths):
    job = Job(quick(memory), paths)
    newest = job.epoch()
    begun, goes_on = threading.Event(), threading.Event()

    def slow_list(prefix):
        begun.set()
        assert goes_on.wait(600)
        return []

    memory.list = slow_list

    def hold():
        with job.retention.hold(newest.checkpoint_id), job.retention.hold() as held:
            number = job.retention.hold_newest(60).id
            job.retention.holds.renew(number, 60)
            job.retention.holds.remove(number)
            return held

    with ThreadPoolExecutor(2) as threads:
        sweep = threads.submit(job.retention.sweep)
        assert begun.wait(600)
        try:
            assert threads.submit(hold).result(60) == newest
            assert not sweep.done()
        finally:
            goes_on.set()


def later_driver(first: Job, clock: Clock) -> Job:
    """A driver that has taken over, and begun as the coordinator does."""
    later = Job(first.storage, first.paths, retained=1)
    later.base, later.retention = first.base, Retention(first.storage, first.paths, later.log, clock)
    later.retention.adopt_holds()
    later.retention.sweep()
    return later


def a_checkpoint_that_is_displaced_as_its_hold_begins_is_not_the_one_that_is_held(memory, paths, monkeypatch):
    job = Job(quick(memory), paths, retained=1)
    job.epoch()
    newer = []
    add = job.retention.holds.add

    def displacing(*arguments):
        monkeypatch.undo()
        newer.append(job.epoch())
        return add(*arguments)

    monkeypatch.setattr(job.retention.holds, "add", displacing)
    with job.retention.hold() as held:
        assert held.checkpoint_id == newer[0].checkpoint_id


def test_later_drivers_keep_a_held_checkpoint_for_the_whole_time_of_its_hold(memory, paths):
    clock = Clock()
    first = Job(quick(memory), paths, retained=1)
    first.retention = Retention(first.storage, paths, first.log, clock)
    held = first.epoch()
    hold = first.retention.hold_newest(60)
    released = first.retention.hold_newest(3600)
    first.retention.renew(hold.id, 90)
    first.retention.holds.remove(released.id)
    first.epoch()
    first.retention.collect()  # the log keeps the entry of a checkpoint that is displaced and held
    job = first
    for _ in range(2):
        clock.now += 80
        job = later_driver(job, clock)
        job.epoch()
        job.retention.sweep()
        assert read_checkpoint(job.storage, paths, held.checkpoint_id) == held
        verify_files(job.storage, held)
        assert [(each.id, left) for each, left in job.retention.holds.current()] == [(hold.id, 90)]
    clock.now += 80
    assert job.retention.renew(hold.id, 90).path == hold.path
    clock.now += 80
    job.retention.adopt_holds()  # a restart does not begin it anew
    assert [left for _, left in job.retention.holds.current()] == [10]
    clock.now += 10
    job.retention.collect()
    assert list(job.storage.list(paths.holds_prefix)) == []
    with pytest.raises(CorruptFile, match="missing"):
        verify_files(job.storage, held)


def test_a_fenced_driver_promises_no_hold_and_one_whose_checkpoint_is_gone_is_dropped(memory, paths):
    first = Job(quick(memory), paths, retained=1)
    first.epoch()
    second = Job(quick(memory), paths, retained=1)
    second.base = first.base
    with pytest.raises(CheckpointError, match="another driver"):
        first.retention.hold_newest(60)
    assert first.retention.holds.current() == []
    second.epoch()
    second.retention.sweep()  # it began before the hold was stored
    assert len(list(second.storage.list(paths.holds_prefix))) == 1
    third = later_driver(second, Clock())
    assert third.retention.holds.current() == []
    assert list(third.storage.list(paths.holds_prefix)) == []


def test_a_checkpoint_that_is_gone_cannot_be_held(storage, paths):
    job = Job(storage, paths)
    gone = job.epoch()
    for _ in range(3):
        job.epoch()
        job.retention.collect()
    with pytest.raises(KeyError), job.retention.hold(gone.checkpoint_id):
        pass


def test_orphans_of_failed_attempts_and_dead_drivers_are_swept(storage, paths):
    first = Job(storage, paths)
    made = first.epoch()
    dead = first.file()
    second = Job(storage, paths)
    second.base = first.base
    failed = second.file()
    running = second.file(epoch=second.log.owned.next_id + 1)
    newest = second.epoch()
    second.retention.sweep()
    assert second.stored() == paths_of(made, newest) | {running.path}
    assert dead.path not in second.stored()
    assert failed.path not in second.stored()


def test_a_manifest_goes_with_the_last_checkpoint_that_names_it(storage, paths, monkeypatch):
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)
    job = Job(storage, paths)
    for _ in range(6):
        job.epoch()
        job.retention.collect()
    kept = job.log.owned.retained
    assert all(c.manifests for c in kept)
    assert job.stored() == paths_of(*kept)
    assert sum(".manifest" in path for path in job.stored()) <= 4


def test_a_manifest_whose_log_entry_was_never_put_is_swept(faulty, paths, monkeypatch):
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)
    first = Job(quick(faulty), paths)
    made = first.epoch()
    before = first.stored()
    faulty.on_call(1, "put_new", Fault.REFUSED)
    with pytest.raises(StorageError):
        first.epoch()
    (orphan,) = (path for path in first.stored() - before if path.endswith(".manifest"))
    second = Job(quick(faulty), paths)
    second.retention.sweep()
    assert orphan not in second.stored()
    assert second.stored() == paths_of(*second.log.owned.retained) >= paths_of(made)


def test_the_entry_of_a_damaged_older_checkpoint_stays_while_the_log_refers_to_it(memory, paths, monkeypatch):
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)
    monkeypatch.setattr(milestones, "_BASE", 3)
    storage = Storage(memory)
    first = Job(storage, paths, retained=3)
    for _ in range(8):
        first.epoch()
    *kept, damaged = first.log.owned.retained
    storage.delete(manifests_of(damaged) - manifests_of(*kept))
    second = Job(storage, paths, retained=3)
    second.retention.sweep()  # and dies before it completes a checkpoint
    third = Job(storage, paths, retained=3)
    assert [c.checkpoint_id for c in third.log.owned.retained] == [c.checkpoint_id for c in kept]


def test_a_background_upload_is_left_alone_while_it_is_under_way(storage, paths):
    job = Job(storage, paths)
    begun = job.log.owned.next_id
    upload = job.file(kind="base")
    for _ in range(4):
        job.epoch()
        job.retention.sweep(oldest_open_epoch=begun)
    assert upload.path in job.stored()
    job.retention.sweep()
    assert upload.path not in job.stored()


def test_files_of_a_later_driver_are_never_touched(storage, paths):
    old = Job(storage, paths)
    old.epoch()
    new = Job(storage, paths)
    new.base = old.base
    theirs = new.file(epoch=1)
    made = new.epoch()
    old.retention.sweep(oldest_open_epoch=10**6)
    assert paths_of(made) | {theirs.path} <= new.stored()


def test_a_clean_up_that_fails_is_made_up_for(faulty, paths, caplog):
    job = Job(quick(faulty), paths, retained=1)
    job.epoch()
    newest = job.epoch()
    faulty.on_call(1, "delete", Fault.REFUSED)
    with caplog.at_level(logging.WARNING):
        assert job.retention.collect() == 0
    assert "the next clean-up will retry" in caplog.text
    assert len(job.stored()) == 3
    job.retention.sweep()
    assert job.stored() == paths_of(newest)


class Killed(BaseException):
    """The process dies here."""


class MortalStore(MemoryStore):
    """Dies once ``lives`` objects have been deleted."""

    lives = 1_000_000

    def delete(self, paths):
        for path in paths:
            if not self.lives:
                raise Killed
            self.lives -= 1
            super().delete([path])


@pytest.mark.parametrize("layers", [False, True], ids=["whole entries", "manifests"])
@pytest.mark.parametrize("clean_up", ["collect", "sweep"])
def a_driver_killed_after_any_deletion_leaves_whole_checkpoints_and_the_next_one_deletes_the_rest(
    paths, monkeypatch, clean_up, layers
):
    if layers:
        monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)
    lives, died = 0, True
    while died:
        store = MortalStore()
        job = Job(quick(store), paths)
        for _ in range(9):
            job.epoch()
        job.file(epoch=1)  # of a failed attempt
        newest = job.log.owned.retained
        store.lives = lives
        try:
            getattr(job.retention, clean_up)()
            died = False
        except Killed:
            lives += 1
        store.lives = 1_000_000
        following = Job(quick(store), paths)
        assert [c.checkpoint_id for c in following.log.owned.retained] == [c.checkpoint_id for c in newest]
        for each in following.log.owned.retained:
            verify_files(following.storage, each)
        following.base = job.base
        made = following.epoch()
        verify_files(following.storage, made)
        following.retention.sweep()
        assert following.stored() == paths_of(*following.log.owned.retained)
    assert lives >= 7


def test_part_files_of_killed_processes_are_swept(tmp_path, paths):
    from holdfast.checkpoint.stores.storage import Storage

    storage = Storage.open(str(tmp_path))
    job = Job(storage, paths)
    job.epoch()
    keep = job.epoch()
    left = [
        paths.part_file(paths.state_file(1, 1, "op", 0, new_attempt(), "delta")),
        paths.part_file(paths.log_entry(2)),
    ]
    running = paths.part_file(paths.state_file(1, job.log.owned.next_id, "op", 0, new_attempt(), "delta"))
    stale_probe = paths.probe(1_000)
    for path in (*left, running, stale_probe):
        storage.put(path, b"half")
    job.retention.sweep()
    everything = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert everything.isdisjoint({*left, stale_probe})
    assert running in everything
    assert paths_of(keep) <= everything


def test_the_log_stays_short_and_its_end_is_found(memory, paths):
    storage = quick(memory)
    job = Job(storage, paths)
    job.retention.sweep()
    for _ in range(1200):
        newest = job.epoch()
        job.retention.collect()
    assert len(memory.list(paths.log_prefix)) < 80
    assert len(job.stored()) == 3
    memory.list = lambda prefix: []
    assert CheckpointLog(storage, paths).take_over().restored == newest


def test_files_of_other_owners_are_left_alone(paths):
    listing = [f"{paths.state_prefix}README", "other/state/0000000001-00000000000000000001-op-00000-a.delta"]
    assert orphans(paths, listing, (), generation=9, oldest_open_epoch=9) == []


def test_takeovers_and_retained_entries_are_not_surplus():
    assert surplus_entries(range(1, 100), tail=99, oldest=97, needed=(1, 50)) == [
        p for p in range(2, 96) if p not in (50, 32, 64)
    ]


@pytest.mark.parametrize("harm", ["missing", "truncated"])
def test_a_checkpoint_with_a_lost_or_cut_file_is_not_intact(memory, paths, harm):
    storage = quick(memory)
    job = Job(storage, paths)
    made = job.epoch()
    verify_files(storage, made)
    path = job.base.path
    if harm == "missing":
        del memory.objects[path]
    else:
        memory.objects[path] = memory.objects[path][:-1]
    with pytest.raises(CorruptFile, match=f"{path}: {harm}"):
        verify_files(storage, made)


def test_a_clean_up_in_the_background_keeps_what_is_completed_meanwhile(memory, paths):
    job = Job(quick(memory), paths, retained=1)
    deltas = []

    def complete_one():
        owned = job.log.owned
        deltas.append(job.file())
        made = checkpoint(owned.next_id, owned.generation, *deltas[-3:])
        job.log.complete(made)
        return made

    stop = threading.Event()
    errors = []
    scanned = set()

    def clean_up():
        job.retention.collect()
        job.retention.sweep()

    def scan():
        with job.retention.hold() as held:
            for _ in range(3):
                assert read_checkpoint(job.storage, paths, held.checkpoint_id) == held
                verify_files(job.storage, held)
        scanned.add(held.checkpoint_id)

    def repeat(act):
        try:
            while not stop.is_set():
                act()
        except BaseException as error:
            errors.append(error)

    complete_one()
    threads = [threading.Thread(target=repeat, args=[act]) for act in (clean_up, scan)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            verify_files(job.storage, complete_one())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert len(scanned) > 1
    job.retention.collect()
    assert job.stored() == paths_of(*job.log.owned.retained)
