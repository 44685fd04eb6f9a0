"""The surroundings of a simulated job: chance, processes, a store that misbehaves.

Everything that happens outside a process goes through `World.hazard`: there the process may crash, other processes
may run on (so that this one seems paused), and what is under way in the network may arrive.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable

from holdfast.checkpoint.entries import Completed, Takeover, decode_entry
from holdfast.checkpoint.manifests import load
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import AlreadyExists, Data, RetryPolicy, Storage, Unavailable
from holdfast.testing.memory_store import MemoryStore

Process = Generator[None, None, None]


class Crash(BaseException):
    """The process dies here."""


class World:
    """Chance and time, and the processes that live."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.paths = JobPaths.of("simulated")
        self.calm = False
        self.time = 0.0
        self.rates = {
            name: self.random.choice((0.0, 0.0, high / 4, high))
            for name, high in (
                ("crash", 0.02),
                ("switch", 0.25),
                ("unavailable", 0.08),
                ("lost", 0.08),
                ("delayed", 0.06),
                ("stale listing", 0.5),
                ("corrupt", 0.3),
                ("task", 0.3),
                ("cancel", 0.01),
                ("savepoint", 0.02),
                ("rescale", 0.02),
                ("refuse", 0.5),
                ("expired", 0.01),
                ("repeated", 0.5),
                ("trial", 0.4),
            )
        }
        self.delivery = self.random.choice((0.5, 0.05, 0.01))
        """How soon what is under way in the network arrives."""
        self.processes: list[Process] = []
        self.running: set[int] = set()
        self.backups: dict[str, bytes] = {}
        self.states: dict[str, dict[int, int]] = {}
        """By token the state that a task ended with."""
        self.visible: Callable[[], list[tuple[int, int]]] = list
        """The output that is visible by now."""
        self.saved: CheckpointMetadata | None = None
        """The latest savepoint."""
        self.in_flight: list[Callable[[], None]] = []
        self.outage_until = 0.0
        self.store = SimulatedStore(self)

    def chance(self, name: str) -> bool:
        return not self.calm and self.random.random() < self.rates[name]

    def storage(self) -> Storage:
        """A process's own access to the store."""

        def sleep(seconds: float) -> None:
            self.time += seconds

        return Storage(self.store, RetryPolicy(budget=3.0), sleep=sleep, clock=lambda: self.time)

    def hazard(self) -> None:
        """Something may happen between two steps of a process."""
        self.time += 0.01
        if self.calm:
            return
        if self.chance("switch"):
            if self.in_flight and self.random.random() < self.delivery:
                self.in_flight.pop(self.random.randrange(len(self.in_flight)))()
            else:
                for _ in range(self.random.choice((1, 1, 1, 3, 3, 30, 300))):
                    self.step_any()
        if self.chance("crash"):
            raise Crash

    def step_any(self) -> bool:
        """Let one of the processes that are not in the middle of something go one step further."""
        idle = [p for p in self.processes if id(p) not in self.running]
        if not idle:
            return False
        process = self.random.choice(idle)
        self.running.add(id(process))
        try:
            next(process)
        except (StopIteration, Crash):
            self.processes.remove(process)
        finally:
            self.running.discard(id(process))
        return True


class SimulatedStore(MemoryStore):
    """A store that is slow, forgets to answer, and whose listings lag behind. It notes the true log."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._deleted: list[str] = []
        self.completed: dict[int, CheckpointMetadata] = {}
        """All that ever were."""
        self.newest: CheckpointMetadata | None = None
        """The one that a driver that starts now goes on from."""
        self.log_end = 0
        self._truth = Storage(_Truth(self, world.backups))

    def put(self, path: str, data: Data) -> None:
        self._change(lambda: MemoryStore.put(self, path, data))

    def put_new(self, path: str, data: Data) -> None:
        def run() -> None:
            MemoryStore.put_new(self, path, data)
            position = self._world.paths.parse_log_entry(path)
            if position == self.log_end + 1:
                self.log_end = position
                entry = decode_entry(bytes(data), path)
                if isinstance(entry, Completed) and not entry.trial:
                    self.newest = self.completed[position] = load(self._truth, entry.checkpoint).checkpoint
                elif isinstance(entry, Takeover):
                    self.newest = self.completed.get(entry.restored)

        self._change(run)

    def get(self, path: str) -> bytes:
        self._before()
        return super().get(path)

    def list(self, prefix: str) -> list[str]:
        self._before()
        found = super().list(prefix)
        if self._world.chance("stale listing"):
            keep = self._world.random.random()
            found = [path for path in found if self._world.random.random() < keep]
            found += [path for path in self._deleted[-50:] if path.startswith(prefix)]
        return found

    def delete(self, paths: Iterable[str]) -> None:
        every = list(paths)

        def run() -> None:
            for path in every:
                needed = {file.path for file in self.newest.files()} if self.newest else set()
                assert path not in needed, f"deleted, but needed: {path}"
                MemoryStore.delete(self, [path])
                self._deleted.append(path)

        self._change(run)

    def _before(self) -> None:
        world = self._world
        world.hazard()
        if not world.calm and world.time < world.outage_until:
            raise Unavailable("outage")
        if world.chance("unavailable"):
            if world.random.random() < 0.1:
                world.outage_until = world.time + world.random.choice((1.0, 5.0))
            raise Unavailable("503")

    def _change(self, run: Callable[[], None]) -> None:
        world = self._world
        self._before()
        if world.chance("delayed"):
            world.in_flight.append(lambda: _late(run))
            raise Unavailable("time-out; the request is still under way")
        run()
        world_lost = world.chance("lost")
        world.hazard()
        if world_lost:
            raise Unavailable("the answer was lost")


class _Truth(MemoryStore):
    """What was stored, whatever chance has done to it."""

    def __init__(self, store: SimulatedStore, backups: dict[str, bytes]) -> None:
        self.objects = store.objects
        self._backups = backups

    def get(self, path: str) -> bytes:
        return self._backups[path] if path in self._backups else super().get(path)


def _late(run: Callable[[], None]) -> None:
    try:
        run()
    except AlreadyExists:
        return  # nobody waits for the answer
