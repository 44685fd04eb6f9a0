"""The checkpoint protocol under seeded chance: thousands of lives of a job, each crashed wherever it hurts.

make test EFFORT=100 ARGS=tests/simulator               more seeds than the 300 of a run, which are others each time
SIMULATOR_SEED=4711 pytest tests/simulator              one seed again
"""

from __future__ import annotations

import os
import random
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from effort import examples
from holdfast.checkpoint import log, manifests, milestones, retention, takeover
from holdfast.checkpoint.container import unpack
from holdfast.checkpoint.handles import InlineFile
from holdfast.checkpoint.retention import referenced
from holdfast.checkpoint.stores import storage, topic
from holdfast.runtime.protocol import machine
from holdfast.runtime.protocol.instructions import Commit
from holdfast.runtime.protocol.job_state import JobState

from .driver import Driver
from .job import KEYS, SUBTASKS, generate, model
from .kafka import Brokers, install
from .task import keyed_state
from .world import World

BLOCKS = 20
_MOST_STEPS = 300_000
"""Of a driver in peace; the longest of 900 lives took 23,489."""


@pytest.fixture(autouse=True)
def short_periods(monkeypatch):
    """Milestones every 3, 9, 27 positions and a sweep every 4, so that short lives cross many."""
    monkeypatch.setattr(milestones, "_BASE", 3)
    monkeypatch.setattr(machine, "_SWEEP_EVERY", 4)
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 500)  # `live` draws it
    monkeypatch.setattr(retention, "_TRIM_EVERY", 3)
    monkeypatch.setattr(topic, "LARGEST_PART", 300)


def live(seed: int, prepare: Callable[[Brokers], None] = lambda brokers: None) -> None:
    """A job's life: drivers come, crash and overtake each other; in the end a last one finishes in peace."""
    world = World(seed)
    with pytest.MonkeyPatch.context() as patch:
        names = random.Random(seed)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128)))
        patch.setattr(storage, "_random", random.Random(seed))
        patch.setattr(log, "time", SimpleNamespace(monotonic=lambda: world.time))
        brokers = install(patch, world)
        prepare(brokers)
        live_in(world, brokers)


def live_in(world: World, brokers: Brokers) -> None:
    manifests.LARGEST_LAYER = world.random.choice((0, 800, 1200, 2000, 10_000))
    numbers = generate(world)
    for _ in range(world.random.randrange(1, 6)):
        if not any(p.gi_code.co_name == "run" for p in world.processes) or world.random.random() < 0.4:
            world.processes.append(Driver(world, numbers).run())
        for _ in range(world.random.randrange(5, 400)):
            world.step_any()
    world.calm = True
    for late in world.in_flight:
        late()
    for _ in range(2):
        last = Driver(world, numbers)
        world.processes.append(last.run())
        moves = (world.step_any() for _ in range(_MOST_STEPS))
        assert not all(moves), "the job stands still, or never ends"
    judge(world, brokers, numbers, last)


def judge(world: World, brokers: Brokers, numbers: dict[str, list[int]], last: Driver) -> None:
    assert last.finished
    every = [key for keys in numbers.values() for key in keys]
    for key in range(KEYS):
        counts = [count for k, count in brokers.visible if k == key]
        assert counts == list(range(1, every.count(key) + 1)), f"output of key {key}: {counts}"
    completed = last.machine.completed
    assert completed is not None
    assert completed.sources["numbers"].enumerator == {split: len(keys) for split, keys in numbers.items()}
    for subtask in range(SUBTASKS):
        restored: dict[int, int] = {}
        for file in keyed_state(completed, subtask).handles():
            stored = file.data if isinstance(file, InlineFile) else world.store.objects.get(file.path, b"")
            data = world.backups.get(file.path, stored)
            restored.update(msgspec.msgpack.decode(unpack(data, file.path), type=dict[int, int]))
        assert restored == model(numbers, subtask, completed.sources["numbers"].enumerator)
    assert not brokers.dangling, f"dangling transactions: {brokers.dangling}"
    # Nothing referenced is missing, nothing unreferenced is left.
    needed = referenced(last.log.owned.retained)
    stored = set(world.store.objects)
    state = {path for path in stored if path.startswith(world.paths.state_prefix)}
    logged = set(last.storage.list(world.paths.state_prefix)) - state
    missing = needed - state - logged - set(world.backups)  # those that chance took away and nobody has asked for yet
    assert not missing
    assert not (state | logged) - needed, f"left behind: {(state | logged) - needed}"
    entries = {path for path in stored if path.startswith(world.paths.log_prefix)}
    kept = {path for path in stored if path.startswith(f"{world.paths.directory}/kept/")}  # until the log is trimmed again
    others = stored - state - entries - {world.paths.visible} - kept
    assert not others, f"left behind: {others}"
    positions = {world.paths.parse_log_entry(path) for path in entries}
    end, owned = world.store.log_end, last.log.owned
    # Checkpoints that a fall-back passed over go when the one that it went back to is retained no longer.
    surplus = {p for p in positions if p < owned.oldest and p not in owned.takeovers and not milestones.is_milestone(p, end)}
    assert not surplus, f"log entries left behind: {surplus}"


def run_seed(seed: int) -> None:
    try:
        live(seed)
    except BaseException as error:
        error.add_note(f"replay with SIMULATOR_SEED={seed}") if hasattr(error, "add_note") else print(seed)
        raise


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_seed_gives_each_record_once_and_leaves_nothing_behind(block):
    if "SIMULATOR_SEED" in os.environ:
        if block == 0:
            run_seed(int(os.environ["SIMULATOR_SEED"]))
        return
    for seed in random.sample(range(10**9), examples(300) // BLOCKS):
        run_seed(seed)


def first_found(prepare: Callable[[Brokers], None]) -> str:
    """What the simulator says first against a job with a fault."""
    for seed in range(2000):
        try:
            live(seed, prepare)
        except AssertionError as error:
            return str(error)
    return ""


def a_sink_whose_transactions_share_an_identity_is_found():
    """The rule before KIP-890: a commit that arrives late ends another transaction of the same producer epoch."""

    def keep_epochs(brokers):
        brokers.raises_epochs = False

    assert first_found(keep_epochs)


def a_machine_that_completes_a_checkpoint_beside_the_commit_before_it_is_found(monkeypatch):
    monkeypatch.setattr(machine.CoordinatorMachine, "_commit_under_way", False)
    assert first_found(lambda brokers: None)


def a_machine_that_goes_back_to_the_log_beside_its_own_commit_is_found(monkeypatch):
    advance = machine.CoordinatorMachine._advance

    def impatient(self):
        if self.state is JobState.RESTARTING:
            self._exchange._awaited = {key for key in self._exchange._awaited if key[0] is not Commit}
        advance(self)

    monkeypatch.setattr(machine.CoordinatorMachine, "_advance", impatient)
    assert re.search(r"Committed|Commit\(", first_found(lambda brokers: None))


def a_start_that_gives_up_the_jobs_checkpoints_before_it_has_one_is_found(monkeypatch):
    def at_once(facts, going_back, savepoint):
        return replace(takeover.started(facts, going_back, savepoint), trial=False)

    monkeypatch.setattr(log, "started", at_once)
    assert first_found(lambda brokers: None)
