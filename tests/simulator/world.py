"""The surroundings of a simulated job: chance, processes, a store that misbehaves.

Everything that happens outside a process goes through `World.hazard`: there the process may crash, other processes
may run on (so that this one seems paused), and what is under way in the network may arrive.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import partial

from holdfast.checkpoint.entries import Completed, Takeover, decode_entry
from holdfast.checkpoint.manifests import load
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.log_router import LogRouter
from holdfast.checkpoint.stores.storage import AlreadyExists, Data, RetryPolicy, Storage, Unavailable
from holdfast.checkpoint.stores.topic import Place, Record, RecordKey, TopicFold
from holdfast.errors import ConfigurationError
from holdfast.testing.memory_store import MemoryStore
from holdfast.testing.memory_topic import MemoryTopic

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
                ("records stay", 1.0),
            )
        }
        self.delivery = self.random.choice((0.5, 0.05, 0.01))
        """How soon what is under way in the network arrives."""
        self.processes: list[Process] = []
        self.running: set[int] = set()
        self.backups: dict[str, bytes] = {}
        """The damaged files, as they were."""
        self.repaired: set[str] = set()
        """Files that were damaged and then put back."""
        self.states: dict[str, dict[int, int]] = {}
        """By token the state that a task ended with."""
        self.visible: Callable[[], list[tuple[int, int]]] = list
        """The output that is visible by now."""
        self.saved: CheckpointMetadata | None = None
        """The latest savepoint."""
        self.in_flight: list[Callable[[], None]] = []
        self.outage_until = 0.0
        self.store = SimulatedStore(self)
        self.topic = SimulatedTopic(self) if random.Random(f"log {seed}").random() < 0.5 else None
        """Where the checkpoint log is; None: in the store."""

    def chance(self, name: str) -> bool:
        return not self.calm and self.random.random() < self.rates[name]

    def storage(self) -> Storage:
        """A process's own access to the store."""

        def sleep(seconds: float) -> None:
            self.time += seconds

        topic = self.topic
        store = self.store if topic is None else LogRouter(self.store, lambda name: topic, str)
        return Storage(store, RetryPolicy(budget=3.0), sleep=sleep, clock=lambda: self.time)

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
        self.logged: dict[str, bytes] = {}
        """The files that ever were in the topic."""
        self._truth = Storage(_Truth(self, world.backups))

    def put(self, path: str, data: Data) -> None:
        self.change(lambda: MemoryStore.put(self, path, data))

    def put_new(self, path: str, data: Data) -> None:
        def run() -> None:
            MemoryStore.put_new(self, path, data)
            position = self._world.paths.parse_log_entry(path)
            if position == self.log_end + 1:
                with suppress(ConfigurationError):  # it says that the log is in the topic
                    self.note(position, bytes(data))

        self.change(run)

    def note(self, position: int, data: bytes) -> None:
        """The log has grown."""
        entry = decode_entry(data, str(position))
        self.log_end = position
        if isinstance(entry, Completed) and not entry.trial:
            self.newest = self.completed[position] = load(self._truth, entry.checkpoint).checkpoint
        elif isinstance(entry, Takeover):
            self.newest = self.completed.get(entry.restored)

    def get(self, path: str) -> bytes:
        self.before()
        return super().get(path)

    def list(self, prefix: str) -> list[str]:
        self.before()
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

        self.change(run)

    def before(self) -> None:
        world = self._world
        world.hazard()
        if not world.calm and world.time < world.outage_until:
            raise Unavailable("outage")
        if world.chance("unavailable"):
            if world.random.random() < 0.1:
                world.outage_until = world.time + world.random.choice((1.0, 5.0))
            raise Unavailable("503")

    def change(self, run: Callable[[], None]) -> None:
        world = self._world
        self.before()
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
        self._logged = store.logged

    def get(self, path: str) -> bytes:
        for found in (self._backups, self._logged):
            if path in found:
                return found[path]
        return super().get(path)


class SimulatedTopic(MemoryTopic):
    """A topic whose leader is slow and forgets to answer. It notes the true log."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._fold: TopicFold | None = None

    def create(self) -> str:
        self._world.store.before()
        return super().create()

    def id(self) -> str:
        self._world.store.before()
        return super().id()

    def append(self, records: list[tuple[bytes, bytes]]) -> int:
        last = 0

        def run(key: bytes, value: bytes) -> None:
            nonlocal last
            last = MemoryTopic.append(self, [(key, value)])
            self._note(last, key)

        for key, value in records:
            self._world.store.change(partial(run, key, value))
        return last

    def bounds(self) -> tuple[int, int]:
        self._world.store.before()
        return super().bounds()

    def read(self, start: int, end: int) -> list[Record]:
        self._world.store.before()
        return super().read(start, end)

    def truncate(self, offset: int) -> None:
        def run() -> None:
            fold, store = self._fold, self._world.store
            assert fold is not None, "nothing to delete"
            newest = [position for position in (store.log_end,) if fold.entries[position].first < offset]
            assert not newest, "the end of the log is deleted"
            for file in store.newest.files() if store.newest else ():
                place = fold.files.get(file.path)
                kept = (
                    place is None or place.first >= offset or file.path in store.objects or file.path in self._world.backups
                )
                assert kept, f"deleted, but needed: {file.path}"
            MemoryTopic.truncate(self, offset)

        if self._world.chance("records stay"):
            raise Unavailable("the records are not deleted for now")
        self._world.store.change(run)

    def _note(self, offset: int, key: bytes) -> None:
        decoded = RecordKey.decode(key)
        if self._fold is None:
            self._fold = TopicFold(decoded.log, decoded.position, offset, whole=True)
        fold = self._fold
        before, files = fold.last, len(fold.files)
        fold.add(offset, key)
        if fold.last != before:
            self._world.store.note(fold.last, self._content(fold.entries[fold.last]))
        elif len(fold.files) != files:
            self._world.store.logged[decoded.path] = self._content(fold.files[decoded.path])

    def _content(self, place: Place) -> bytes:
        found = MemoryTopic.read(self, place.first, place.last + 1)
        return b"".join(record.value for record in found if RecordKey.decode(record.key).attempt == place.attempt)


def _late(run: Callable[[], None]) -> None:
    try:
        run()
    except AlreadyExists:
        return  # nobody waits for the answer
