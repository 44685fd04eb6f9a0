"""The simulated job: count the records of each key and write (key, count), exactly once.

The driver uses the real checkpoint log, retention, metadata and state files. Tasks are processes of their own: they
may fail, hang and wake up later, or run twice.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint.files import read_file, write_file
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.metadata import CheckpointMetadata, KeyedHandle, OperatorState, SourceState, SubtaskState
from holdfast.checkpoint.paths import new_attempt
from holdfast.checkpoint.retention import Retention, verify_files
from holdfast.errors import CheckpointError, CorruptFile, Fenced, StorageError

from .world import BrokerTimeout, Process, ProducerFenced, World

SUBTASKS = 2
KEYS = 5
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class TaskFailed(Exception):
    """An epoch has to be run again."""


@dataclass
class Report:
    delta: list[ContainedFile]
    """None if nothing changed."""
    committable: str | None
    state: dict[int, int]


@dataclass
class Upload:
    """A materialisation in the background: its files are in a checkpoint only some epochs after it began."""

    begun: int
    subtask: int
    files: list[ContainedFile]


def records(world_input: list[int], subtask: int, first: int, end: int) -> list[int]:
    return [key for key in world_input[first:end] if key % SUBTASKS == subtask]


def model(world_input: list[int], subtask: int, end: int) -> dict[int, int]:
    """What the state must be after the first ``end`` records."""
    counts: dict[int, int] = {}
    for key in records(world_input, subtask, 0, end):
        counts[key] = counts.get(key, 0) + 1
    return counts


def task(
    world: World, generation: int, epoch: int, subtask: int, keys: list[int], before: dict[int, int], out: list[Report]
) -> Process:
    """One attempt of a keyed task."""
    storage = world.storage()
    name = f"{generation}-{epoch}-{subtask}-{new_attempt()}"
    state = dict(before)
    output = []
    try:
        if keys:
            world.broker.begin(name, generation, epoch)
            yield
        for key in keys:
            state[key] = state.get(key, 0) + 1
            output.append((key, state[key]))
        changed = {key: state[key] for key in set(keys)}
        delta = []
        if changed:
            path = world.paths.state_file(generation, epoch, "count", subtask, new_attempt(), "delta")
            delta = [write_file(storage, path, _encode(changed))]
        yield
        if keys:
            world.broker.prepare(name, output)
            yield
        out.append(Report(delta, name if keys else None, state))
    except (StorageError, ProducerFenced, BrokerTimeout):
        return


@dataclass
class Driver:
    """A driver process; `run` ends when the input does, or when it is fenced."""

    world: World
    input: list[int]
    finished: bool = False
    state: list[dict[int, int]] = field(default_factory=list)
    position: int = 0
    previous: CheckpointMetadata | None = None
    uploads: list[Upload] = field(default_factory=list)
    hold: ExitStack | None = None

    def run(self) -> Process:
        world = self.world
        self.storage = world.storage()
        self.log = CheckpointLog(self.storage, world.paths, num_retained=world.random.choice((1, 2, 3)), now_ms=int)
        self.retention = Retention(self.storage, world.paths, self.log)
        while not self.finished:
            try:
                yield from self.lead()
            except (Fenced, ProducerFenced):
                return
            except CorruptFile as error:
                self.repair(error.path.removeprefix("memory:/"))
            except (StorageError, TaskFailed, CheckpointError, BrokerTimeout):
                pass  # restart in place
            yield

    def repair(self, path: str) -> None:
        """Put a damaged file back, as the error asks for."""
        world = self.world
        if path in world.backups:
            world.store.objects[path] = world.backups.pop(path)
        else:
            not_chance = f"{path} is damaged, and it was not chance"
            assert not path.startswith(world.paths.log_prefix), not_chance
            assert not self.log.still_mine(), not_chance

    def lead(self) -> Process:
        world = self.world
        if self.hold:  # another driver may have been here and known nothing of it
            self.hold.close()
            self.hold = None
        taken = self.log.take_over(self.verify)
        yield
        self.generation = taken.generation
        self.restore(taken.restored)
        world.broker.fence(taken.generation)
        committables = self.names(taken.restored)
        yield
        self.commit(committables)
        world.broker.abort_others(set(committables), taken.generation, None)
        yield
        self.retention.sweep()
        while self.position < len(self.input):
            yield from self.epoch()
        world.broker.abort_others(set(), self.generation, self.log.owned.next_id)
        self.retention.sweep()
        self.finished = True

    def verify(self, checkpoint: CheckpointMetadata) -> None:
        verify_files(self.storage, checkpoint)
        for file in checkpoint.files():
            read_file(self.storage, file)

    def restore(self, checkpoint: CheckpointMetadata | None) -> None:
        self.previous = checkpoint
        self.uploads = []
        self.position = checkpoint.sources["numbers"].enumerator if checkpoint else 0
        self.state = []
        for subtask in range(SUBTASKS):
            counts: dict[int, int] = {}
            if checkpoint:
                for file in checkpoint.operators["count"].subtasks[subtask].files():
                    counts.update(_decode(read_file(self.storage, file), type=dict[int, int]))
            assert counts == model(self.input, subtask, self.position), "the restored state is wrong"
            self.state.append(counts)

    def epoch(self) -> Process:
        world = self.world
        checkpoint_id = self.log.owned.next_id
        end = min(len(self.input), self.position + world.random.choice((0, 1, 2, 3, 5)))
        reports = []
        for subtask in range(SUBTASKS):
            reports.append((yield from self.run_task(checkpoint_id, subtask, end)))
        previous = self.previous
        subtasks = []
        for subtask, report in enumerate(reports):
            (old,) = previous.operators["count"].subtasks[subtask].keyed if previous else [KeyedHandle(subtask, subtask)]
            subtasks.append(SubtaskState([self.next_state(checkpoint_id, subtask, old, report)]))
        checkpoint = CheckpointMetadata(
            checkpoint_id=checkpoint_id,
            generation=self.generation,
            job_id="simulated",
            job_name="simulated",
            created_at=int(world.time * 1000),
            sources={"numbers": SourceState(end)},
            operators={"count": OperatorState("count", parallelism=SUBTASKS, subtasks=subtasks)},
            committables=[("out", i, r.committable) for i, r in enumerate(reports) if r.committable],
        )
        self.log.complete(checkpoint)
        checkpoint = self.log.owned.retained[0]
        self.position, self.previous = end, checkpoint
        self.state = [report.state for report in reports]
        # Every input record once, every state right: what is complete must be what the model says.
        for subtask in range(SUBTASKS):
            assert self.state[subtask] == model(self.input, subtask, end)
        yield
        self.read_while_held(checkpoint)
        if world.random.random() < 0.3 and not self.log.still_mine():
            raise Fenced("another driver has taken over")
        names = self.names(checkpoint)
        self.commit(names)
        yield
        world.broker.abort_others(set(names), self.generation, checkpoint_id)
        if world.random.random() < 0.3:
            self.begin_upload(checkpoint_id)
        self.retention.collect()
        if world.random.random() < 0.2:
            open_epochs = [upload.begun for upload in self.uploads]
            self.retention.sweep(min([checkpoint_id + 1, *open_epochs]))
        if world.chance("corrupt"):
            corrupt_one(world, checkpoint)
        yield

    def next_state(self, epoch: int, subtask: int, old: KeyedHandle, report: Report) -> KeyedHandle:
        deltas = [*old.deltas, *report.delta]
        ready = [u for u in self.uploads if u.subtask == subtask]
        if ready and self.world.random.random() < 0.5:
            upload = ready[-1]
            self.uploads = [u for u in self.uploads if u.subtask != subtask]
            since = [d for d in deltas if self.epoch_of(d) > upload.begun]
            return KeyedHandle(subtask, subtask, base=upload.files, base_epoch=upload.begun, deltas=since)
        return KeyedHandle(subtask, subtask, base=old.base, base_epoch=old.base_epoch, deltas=deltas)

    def epoch_of(self, file: ContainedFile) -> int:
        name = self.world.paths.parse_state_file(file.path)
        assert name is not None
        return name.epoch

    def begin_upload(self, epoch: int) -> None:
        """Materialise a subtask at the end of ``epoch``, sharing the half of the files that did not change."""
        subtask = self.world.random.randrange(SUBTASKS)
        if any(upload.subtask == subtask for upload in self.uploads):
            return
        assert self.previous is not None
        (stored,) = self.previous.operators["count"].subtasks[subtask].keyed
        base = stored.base
        shared = [f for f in base[:1] if self.read(f).items() <= self.state[subtask].items()]
        known = self.read(shared[0]) if shared else {}
        rest = {key: count for key, count in self.state[subtask].items() if known.get(key) != count}
        path = self.world.paths.state_file(self.generation, epoch, "count", subtask, new_attempt(), "base")
        self.uploads.append(Upload(epoch, subtask, [*shared, write_file(self.storage, path, _encode(rest))]))

    def read(self, file: ContainedFile) -> dict[int, int]:
        return _decode(read_file(self.storage, file), type=dict[int, int])

    def read_while_held(self, checkpoint: CheckpointMetadata) -> None:
        """A savepoint: holds a checkpoint for some epochs and finds its files there in the end."""
        if self.hold is None:
            if self.world.random.random() < 0.1:
                self.hold = ExitStack()
                self.held = checkpoint
                self.hold.enter_context(self.retention.hold(checkpoint.checkpoint_id))
        elif self.world.random.random() < 0.2:
            try:
                verify_files(self.storage, self.held)
            except CorruptFile as error:
                damaged = error.path.removeprefix("memory:/") in self.world.backups
                assert damaged or not self.log.still_mine(), "a file was deleted while it was read"
            self.hold.close()
            self.hold = None

    def run_task(self, epoch: int, subtask: int, end: int) -> Process:
        """Run attempts of a task until one reports; the others may go on without anybody waiting for them."""
        world = self.world
        keys = records(self.input, subtask, self.position, end)
        out: list[Report] = []
        for _ in range(4):
            attempt = task(world, self.generation, epoch, subtask, keys, self.state[subtask], out)
            twice = world.chance("task")
            if twice:
                world.processes.append(task(world, self.generation, epoch, subtask, keys, self.state[subtask], out))
            for _ in attempt:
                if world.chance("task"):
                    fate = world.random.choice(("killed", "hangs"))
                    if fate == "hangs":
                        world.processes.append(attempt)
                    break
                yield
            if out:
                return out[0]
        raise TaskFailed(f"epoch {epoch}, subtask {subtask}")

    def names(self, checkpoint: CheckpointMetadata | None) -> list[str]:
        return [data for _, _, data in checkpoint.committables] if checkpoint else []

    def commit(self, names: list[str]) -> None:
        for name in names:
            self.world.broker.commit(name, self.generation)


def corrupt_one(world: World, checkpoint: CheckpointMetadata) -> None:
    """Damage a file of a checkpoint; a backup exists."""
    files = [file.path for file in checkpoint.files() if file.path in world.store.objects]
    if not files or world.backups:
        return
    path = world.random.choice(files)
    good = world.store.objects[path]
    world.backups[path] = good
    kind = world.random.choice(("missing", "truncated", "altered"))
    if kind == "missing":
        del world.store.objects[path]
    elif kind == "truncated":
        world.store.objects[path] = good[: world.random.randrange(len(good))]
    else:
        at = world.random.randrange(len(good))
        world.store.objects[path] = good[:at] + bytes([good[at] ^ 1 << world.random.randrange(8)]) + good[at + 1 :]
