"""The checkpoint protocol under seeded chance: thousands of lives of a job, each crashed wherever it hurts.

SIMULATOR_SEEDS=100000 pytest tests/simulator           more seeds than the 10,000 of every run
SIMULATOR_SEED=4711 pytest tests/simulator              one seed again
"""

from __future__ import annotations

import os

import pytest

from holdfast.checkpoint import manifests, tail
from holdfast.checkpoint.retention import referenced

from .job import KEYS, Driver, model
from .world import World

BLOCKS = 20


@pytest.fixture(autouse=True)
def short_milestones(monkeypatch):
    """Milestones every 3, 9, 27 positions, so that short lives cross many."""
    monkeypatch.setattr(tail, "_BASE", 3)
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 500)  # `live` draws it


def live(seed: int) -> World:
    """A job's life: drivers come, crash and overtake each other; in the end a last one finishes in peace."""
    world = World(seed)
    manifests.LARGEST_LAYER = world.random.choice((0, 500, 700, 1000, 5000))
    numbers = [world.random.randrange(KEYS) for _ in range(world.random.randrange(5, 60))]
    for _ in range(world.random.randrange(1, 6)):
        if not any(p.gi_code.co_name == "run" for p in world.processes) or world.random.random() < 0.4:
            world.processes.append(Driver(world, numbers).run())
        for _ in range(world.random.randrange(5, 120)):
            world.step_any()
    world.calm = True
    for late in world.in_flight:
        late()
    world.processes.append(Driver(world, numbers).run())
    while world.step_any():
        pass
    last = Driver(world, numbers)
    world.processes.append(last.run())
    while world.step_any():
        pass
    judge(world, numbers, last)
    return world


def judge(world: World, numbers: list[int], last: Driver) -> None:
    assert last.finished
    for key in range(KEYS):
        counts = [count for k, count in world.broker.visible if k == key]
        assert counts == list(range(1, numbers.count(key) + 1)), f"output of key {key}: {counts}"
    assert last.state == [model(numbers, subtask, len(numbers)) for subtask in range(len(last.state))]
    dangling = [n for n, (_, _, status, _) in world.broker.transactions.items() if status in ("open", "prepared")]
    assert not dangling, f"dangling transactions: {dangling}"
    # Nothing referenced is missing, nothing unreferenced is left.
    needed = referenced(last.log.owned.retained)
    stored = set(world.store.objects)
    state = {path for path in stored if path.startswith(world.paths.state_prefix)}
    missing = needed - state - set(world.backups)  # those that chance took away and nobody has asked for yet
    assert not missing
    assert not state - needed, f"left behind: {state - needed}"
    positions = {world.paths.parse_log_entry(path) for path in stored - state}
    end, owned = world.store.log_end, last.log.owned
    # Checkpoints that a fall-back passed over go when the one that it went back to is retained no longer.
    oldest = min((c.checkpoint_id for c in owned.retained), default=0)
    surplus = {p for p in positions if p < oldest and p not in owned.takeovers and not tail.is_milestone(p, end)}
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
    seeds = int(os.environ.get("SIMULATOR_SEEDS", "10000"))
    for seed in range(block * seeds // BLOCKS, (block + 1) * seeds // BLOCKS):
        run_seed(seed)
