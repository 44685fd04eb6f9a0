"""A simulated driver: carries out the instructions of the real coordinator machine.

It uses the real checkpoint log, retention and metadata. Its threads (the coordinator's, the commit, the clean-up) take
turns by chance; a crash in one of them ends them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace

import msgspec

from holdfast.checkpoint.files import read_file, write_file
from holdfast.checkpoint.ids import CheckpointId, epoch_of
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.metadata import CheckpointMetadata, KeyedHandle, SubtaskState
from holdfast.checkpoint.paths import new_attempt
from holdfast.checkpoint.retention import Retention, verify_files
from holdfast.checkpoint.takeover import FromSavepoint
from holdfast.connectors.base import Committable, JobInfo
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.errors import CorruptFile, Fenced, HoldfastError, StorageError, UserCodeError
from holdfast.runtime.plan.task_messages import EpochAssignment, TaskReport
from holdfast.runtime.protocol import events, instructions
from holdfast.runtime.protocol.events import Event, Failed, Instant, PlannedInput
from holdfast.runtime.protocol.instructions import Instruction, Notice
from holdfast.runtime.protocol.job_state import JobState
from holdfast.runtime.protocol.machine import CoordinatorMachine
from holdfast.runtime.protocol.pacing import Pace
from holdfast.runtime.protocol.rescale_request import RescaleRequest
from holdfast.runtime.protocol.restart import FixedDelay
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest
from holdfast.state.keys.key_groups import key_group_range

from .job import COUNT, PLAN, SUBTASKS, Enumerator, Input, model
from .kafka import OUTPUT
from .task import Frames, Slot, read_source
from .world import Crash, Process, World

Step = Generator[None, None, Event]
_ATTEMPTS = 4


class Driver:
    """A driver process; `run` ends when the job does, or when another driver has it."""

    def __init__(self, world: World, numbers: Input) -> None:
        self.world = world
        self.numbers = numbers
        self.finished = False
        self.log: CheckpointLog
        self.machine: CoordinatorMachine

    def run(self) -> Process:
        """Run drivers, one after the other, until the job is finished, cancelled or fenced."""
        while True:
            failure = yield from self._live()
            self.finished = self.machine.state is JobState.FINISHED
            if failure is None or isinstance(failure, Fenced) or self.trial:
                return
            assert isinstance(failure, CorruptFile), repr(failure)
            self._repair(failure.path.removeprefix("memory:/"))

    def _repair(self, path: str) -> None:
        """Put a damaged file back, as the error asks for."""
        world = self.world
        if path in world.backups:
            world.store.objects[path] = world.backups.pop(path)
            world.repaired.add(path)
        elif path not in world.repaired:  # a driver that overtook this one, or the reverse, may have put it back
            not_chance = f"{path} is damaged, and it was not chance"
            assert not path.startswith(world.paths.log_prefix), not_chance
            assert not self._owns_the_job(), not_chance

    def _owns_the_job(self) -> bool:
        calm, self.world.calm = self.world.calm, True  # no outage hits the test's own look at the log
        try:
            return self.log.still_mine()
        finally:
            self.world.calm = calm

    # ---- the life of one driver

    def _live(self) -> Generator[None, None, BaseException | None]:
        world = self.world
        self.storage = world.storage()
        self.log = CheckpointLog(self.storage, world.paths, num_retained=world.random.choice((1, 2, 3)), now_ms=int)
        self.retention = Retention(self.storage, world.paths, self.log)
        self.machine = CoordinatorMachine(PLAN, FixedDelay(10**9, 5), Pace(1.0, 1000))
        self.inbox: deque[Event] = deque()
        self.committer: KafkaCommitter | None = None
        self.enumerator: Enumerator | None = None
        self.slots: list[Slot] = []
        self.delayed = False
        self.cleaning = 0
        self.asked = 0
        self.runs, self.cannot_open = [PLAN], False
        self.failure: BaseException | None = None
        self.threads: list[Process] = [self._main()]
        self.trial = world.random.choice(("savepoint", "older")) if world.chance("trial") else ""
        self.lazy = world.random.choice((0.0, 0.5, 0.95))
        while self.threads:
            thread = world.random.choice(self.threads)
            if thread is not self.threads[0] and world.random.random() < self.lazy:
                thread = self.threads[0]  # what runs in the background may be slow
            try:
                next(thread)
            except StopIteration:
                self.threads.remove(thread)
            yield
        self._close_parts()
        return self.failure

    def _main(self) -> Process:
        """The coordinator's thread."""
        todo = deque(self._tell(events.Start()))
        while True:
            if self.world.chance("cancel"):
                self.inbox.append(events.Cancel())
            if self.world.chance("savepoint"):
                self._ask_for_savepoint()
            if self.world.chance("rescale"):  # to the same parallelism: the protocol is what counts here
                self.asked += 1
                self.inbox.append(events.RescaleRequested(RescaleRequest(self.asked, replace(PLAN))))
            self._read_inbox(todo)
            if not todo:
                if self.delayed and self.world.random.random() < 0.5:
                    self.delayed = False
                    todo.extend(self._tell(events.DelayOver()))
                yield
                continue
            instruction = todo.popleft()
            if isinstance(instruction, instructions.End):
                self.failure = instruction.failure
                return
            if isinstance(instruction, Notice):
                continue
            answer: Event | None
            try:
                answer = yield from self._carry_out(instruction)
            except HoldfastError as error:
                answer = Failed(instruction, error)
            yield
            self._read_inbox(todo)
            if answer is not None:
                todo.extend(self._tell(answer))

    def _read_inbox(self, todo: deque[Instruction]) -> None:
        """Pass other threads' events to the machine, until it ends: as in the coordinator, later ones come too late."""
        while self.inbox and not any(isinstance(each, instructions.End) for each in todo):
            todo.extend(self._tell(self.inbox.popleft()))

    def _tell(self, event: Event) -> list[Instruction]:
        now = self.world.time
        return self.machine.handle(event, Instant(round(now * 1000), now))

    def _carry_out(self, instruction: Instruction) -> Generator[None, None, Event | None]:
        match instruction:
            case instructions.TakeOver(deep, plan):
                # The functions of a rescaled job may not open; those of a plan that has run do.
                self.cannot_open = all(plan is not each for each in self.runs) and self.world.chance("refuse")
                if not self.cannot_open:
                    self.runs.append(plan)
                return (yield from self._take_over(deep))
            case instructions.Recover(_, committables, passed_over):
                self.committer = KafkaCommitter(OUTPUT, self.job, "out")
                yield
                self.committer.recover([*passed_over, *committables])
                yield
                self.retention.sweep()
                return events.Recovered()
            case instructions.Open(sources):
                if "numbers" in sources:
                    self.enumerator = Enumerator(self.world, self.numbers, sources["numbers"])
                self.slots = [self._slot(subtask) for subtask in range(SUBTASKS)]
                return events.Opened()
            case instructions.Verify(checkpoint):
                self._verify(checkpoint, False)
                yield
                return events.Verified(checkpoint.checkpoint_id)
            case instructions.Plan():
                assert self.enumerator is not None
                if self.world.chance("unavailable"):
                    raise HoldfastError("the source is away")
                return events.Planned({"numbers": PlannedInput(self.enumerator.plan(), self.enumerator.snapshot())})
            case instructions.Run(assignment):
                return (yield from self._run_epoch(assignment))
            case instructions.Confirm(epoch):
                self.log.check_ownership()
                return events.Confirmed(epoch)
            case instructions.Complete(checkpoint):
                return self._complete(checkpoint)
            case instructions.Commit():
                self.threads.append(self._commit(instruction))
                return None
            case instructions.Acknowledge(epoch):
                return events.Acknowledged(epoch)
            case instructions.WriteSavepoint():
                self._begin_savepoint(instruction)
                return None
            case instructions.Sleep():
                return events.Woke()
            case instructions.Delay():
                self.delayed = True
                return None
            case _:
                raise NotImplementedError(instruction)

    # ---- from the log to a running job

    def _take_over(self, deep: bool) -> Step:
        self._close_parts()
        while self.cleaning:
            yield
        going_back, savepoint = self._asked_for()
        taken = self.log.take_over(lambda checkpoint: self._verify(checkpoint, deep), going_back, savepoint)
        self.job = JobInfo(
            "simulated",
            "simulated",
            taken.generation,
            "memory:",
            identity=taken.job,
            inline_bytes=self.world.random.choice((0, 20_000)),
        )
        restored, next_id = taken.restored, taken.next_id
        yield
        if savepoint is not None and taken.begins_from_savepoint:
            copy = self._copy_savepoint(next_id, taken.generation)
            yield
            self.log.complete(copy, savepoint.name)
            restored, next_id = self.log.owned.retained[0], self.log.owned.next_id
        passed_over = [] if taken.passed_over is None else [Committable(*each) for each in taken.passed_over.committables]
        return events.TookOver(self.job, restored, next_id, "", taken.trial, passed_over)

    def _asked_for(self) -> tuple[CheckpointId | None, FromSavepoint | None]:
        """What the user of this driver asks to start from: mostly nothing. Such a driver dies before its trial ends."""
        if not self.trial:
            return None, None
        if self.trial == "savepoint" and self.world.saved:
            return None, FromSavepoint("memory:/savepoint", 1)
        entries = self.log.read_retained()
        return (entries[-1].checkpoint_id if len(entries) > 1 else None), None

    def _copy_savepoint(self, checkpoint_id: CheckpointId, generation: int) -> CheckpointMetadata:
        saved = self.world.saved
        assert saved is not None
        uid = COUNT.chain[0].uid
        subtasks = []
        for n in range(SUBTASKS):
            counts = model(self.numbers, n, saved.sources["numbers"].enumerator)
            path = self.world.paths.state_file(generation, epoch_of(checkpoint_id), "count", n, new_attempt(), "base")
            groups = key_group_range(COUNT.max_parallelism, SUBTASKS, n)
            file = write_file(self.storage, path, msgspec.msgpack.encode(counts))
            subtasks.append(SubtaskState([KeyedHandle(groups.first, groups.last, base=[file])]))
        operators = {**saved.operators, uid: msgspec.structs.replace(saved.operators[uid], subtasks=subtasks)}
        return msgspec.structs.replace(
            saved, checkpoint_id=checkpoint_id, generation=generation, operators=operators, committables=[], manifests=[]
        )

    def _verify(self, checkpoint: CheckpointMetadata, deep: bool) -> None:
        verify_files(self.storage, checkpoint)
        if deep:
            for file in checkpoint.files():
                read_file(self.storage, file)

    def _close_parts(self) -> None:
        for slot in self.slots:
            slot.close()
        self.slots = []
        if self.committer is not None:
            self.committer.close()
            self.committer = None

    def _slot(self, subtask: int) -> Slot:
        return Slot(self.world, self.numbers, self.job, subtask)

    # ---- epochs

    def _run_epoch(self, assignment: EpochAssignment) -> Step:
        """One Spark job: the sources' stage, then the keyed one. Spark runs lost tasks again."""
        reports, sent = [], []
        if self.cannot_open:
            yield
            refusal = UserCodeError("no licence for so many subtasks")
            return events.Ran(assignment.epoch, [TaskReport((COUNT.id, 0), "attempt", refusal)])
        for subtask in range(SUBTASKS):
            report, frames = read_source(self.numbers, assignment, subtask)
            reports.append(report)
            sent.append(frames)
        for subtask in range(SUBTASKS):
            if self.world.chance("task"):  # a sender's frames were lost: its readers do not all read the same run of it
                again = self.world.random.randrange(SUBTASKS)
                reports[again], sent[again] = read_source(self.numbers, assignment, again)
            reports.append((yield from self._run_task(assignment, subtask, list(sent))))
        return events.Ran(assignment.epoch, reports)

    def _run_task(
        self, assignment: EpochAssignment, subtask: int, frames: list[Frames]
    ) -> Generator[None, None, TaskReport]:
        """Run attempts of a task until one reports; the others may go on without anybody waiting for them."""
        world = self.world
        out: list[TaskReport] = []
        for _ in range(_ATTEMPTS):
            attempt = self.slots[subtask].run(assignment, frames, out)
            if world.chance("task"):
                world.processes.append(self._slot(subtask).run(assignment, frames, out))
            while True:
                try:
                    next(attempt)
                except StopIteration:
                    break
                except Crash:
                    self.slots[subtask] = self._slot(subtask)
                    break
                if world.chance("task"):
                    if world.random.random() < 0.5:
                        world.processes.append(attempt)  # it hangs, and wakes up when nobody waits for it any more
                    self.slots[subtask] = self._slot(subtask)
                    break
                yield
            if out:
                return out[0]
        raise HoldfastError(f"epoch {assignment.epoch}, subtask {subtask}: no attempt came to its end")

    def _complete(self, checkpoint: CheckpointMetadata) -> Event:
        if self.log.owned.trial:
            raise Crash  # what is newer than the state that it began with would come twice, as the user wants it
        self.log.complete(checkpoint)
        # Every input record once, every state right: what is complete must be what the model says.
        positions = checkpoint.sources["numbers"].enumerator
        for subtask, attempt in enumerate(checkpoint.operators[COUNT.chain[0].uid].attempts):
            assert self.world.states[attempt] == model(self.numbers, subtask, positions), "a completed state is wrong"
        return events.Completed(checkpoint.checkpoint_id)

    def _commit(self, instruction: instructions.Commit) -> Process:
        """The commit's thread."""
        yield
        assert self.committer is not None, "the job went back to the log before it was told Committed"
        try:
            if instruction.committables:
                self.log.output_becomes_visible(CheckpointId(instruction.epoch))
            self.committer.commit(instruction.committables)
        except HoldfastError as error:
            self.inbox.append(Failed(instruction, error))
            return
        self.threads.append(self._clean_up(instruction))
        self.cleaning += 1
        self.inbox.append(events.Committed(instruction.epoch))

    def _clean_up(self, instruction: instructions.Commit) -> Process:
        """The clean-up's thread."""
        yield
        try:
            self.retention.collect()
            if instruction.sweep_from is not None:
                self.retention.sweep(instruction.sweep_from)
        except StorageError:
            pass  # made up for by a later sweep
        finally:
            self.cleaning -= 1
        completed = self.machine.completed
        if completed is not None and self.world.chance("corrupt"):
            corrupt_one(self.world, [file.path for file in self.log.owned.retained[0].files()])

    # ---- savepoints

    def _ask_for_savepoint(self) -> None:
        stop, drain = self.world.random.random() < 0.2, self.world.random.random() < 0.5
        self.asked += 1
        if not self.trial:
            request = SavepointRequest(self.asked, "memory:/savepoint", stop, stop and drain)
            self.inbox.append(events.SavepointRequested(request))

    def _begin_savepoint(self, instruction: instructions.WriteSavepoint) -> None:
        hold = ExitStack()
        checkpoint = hold.enter_context(self.retention.hold(instruction.checkpoint_id))
        self._check_visible(checkpoint, instruction.request.stop)
        self.threads.append(self._write_savepoint(instruction, hold, checkpoint))

    def _check_visible(self, checkpoint: CheckpointMetadata, stop: bool) -> None:
        """All output of the checkpoint is visible; of a job that stops, no other is."""
        positions = checkpoint.sources["numbers"].enumerator
        due = {key: n for subtask in range(SUBTASKS) for key, n in model(self.numbers, subtask, positions).items()}
        for key, count in due.items():
            seen = sum(k == key for k, _ in self.world.visible())
            assert seen == count if stop and self._owns_the_job() else seen >= count, "not the output of the savepoint"

    def _write_savepoint(
        self, instruction: instructions.WriteSavepoint, hold: ExitStack, checkpoint: CheckpointMetadata
    ) -> Process:
        """The savepoint's thread: reads a checkpoint's files for some epochs."""
        while self.world.random.random() < 0.98:
            yield
        with hold:
            try:
                verify_files(self.storage, checkpoint)
            except CorruptFile as error:
                damaged = error.path.removeprefix("memory:/") in self.world.backups
                assert damaged or not self._owns_the_job(), "a file was deleted while it was read"
                self.inbox.append(Failed(instruction, error))
            except StorageError as error:
                self.inbox.append(Failed(instruction, error))
            else:
                self.world.saved = checkpoint
                self.inbox.append(events.SavepointWritten(instruction.request.number))


def corrupt_one(world: World, files: list[str]) -> None:
    """Damage one of a checkpoint's files; a backup exists."""
    stored = [path for path in files if path in world.store.objects]
    if not stored or world.backups:
        return
    path = world.random.choice(stored)
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
