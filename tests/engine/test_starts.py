"""Starts that fail: whatever a start asks for, and wherever it ends, the job's own checkpoints are there for the next one.

One generator: a job with checkpoints of its own is started in every way, every storage call of that start may fail or be the
last one, the program may be the wrong one, and the user may end it. Then the job is started plainly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.manifests import load
from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import CorruptFile, HoldfastError, IncompatibleState, StorageError

from .inprocess import Crash, Lab
from .programs import records, sessions, sessions_model, stream
from .test_same_results import IN_FILES, few, lab, visible
from .test_savepoints import at_epoch, request, run

DATA = records(5, 200, keys=10)
PROGRAM = sessions(DATA, cut=20)
MODEL = sessions_model(DATA)
CALLS = ("put", "put_new", "get", "size", "list", "delete")


def wrong(env: StreamExecutionEnvironment) -> None:
    """A program that has nothing of the job's."""
    env.from_collection(["x"]).uid("other").map(lambda value: value).print()


def with_states_alone(env: StreamExecutionEnvironment) -> None:
    """A program whose checkpoints have no output."""
    stream(env, DATA, 20).key_by(lambda record: record[0]).reduce(max).uid("latest").filter(lambda _: False).print()


class Calls:
    """The storage calls of a driver, of which one fails: the process dies before or after it, or the store refuses it."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, how: str) -> None:
        self._left, self._how = number, how
        self._dead = False
        for name in CALLS:
            patch.setattr(DirectoryStore, name, self._counted(getattr(DirectoryStore, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(store: DirectoryStore, *arguments: Any) -> Any:
            if self._dead:
                raise Crash
            self._left -= 1
            if self._left != 0:
                return call(store, *arguments)
            if self._how == "refused":
                raise StorageError("refused")
            self._dead = True
            if self._how == "dies after":
                call(store, *arguments)
            raise Crash

        return counted


def newest_of(job: Lab) -> CheckpointId:
    """The newest of the job's own checkpoints."""
    return job.coordinator()._log.read_retained()[0].checkpoint_id


def go_back(job: Lab, checkpoint_id: CheckpointId, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job, "_start_from", lambda *_: checkpoint_id)


def damage(savepoint: Path) -> None:
    file = min(savepoint.glob("*.dump"))
    content = file.read_bytes()
    file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])


def start(job: Lab, *, ends_in: int, ended_in: int = 0, stopped: bool = False) -> None:
    """One driver: it dies after so many epochs, or is cancelled or stopped in one of them, unless it has failed before."""
    coordinator = job.coordinator()
    if ended_in:
        stop = partial(request, job, coordinator, stop=True, drain=False, directory=job.directory / "stopped")
        at_epoch(coordinator, ended_in, stop if stopped else coordinator.cancel)

    def dies() -> None:
        raise Crash

    at_epoch(coordinator, ends_in, dies)
    try:
        coordinator.run()
    except (Crash, HoldfastError):
        pass
    finally:
        job.close()


@settings(few, max_examples=examples(8))
@given(
    way=st.sampled_from(["savepoint", "claimed savepoint", "older checkpoint"]),
    fault=st.tuples(st.integers(0, 70), st.sampled_from(["dies before", "dies after", "refused"])),
    program=st.sampled_from([PROGRAM, PROGRAM, PROGRAM, wrong]),
    damaged=st.integers(0, 5).map(lambda n: n == 0),
    ended_in=st.integers(0, 3),
    stopped=st.booleans(),
    ends_in=st.integers(1, 3),
    own=st.tuples(st.sampled_from(["after complete", "after commit"]), st.integers(2, 4)),
    again=st.booleans(),
)
@example("savepoint", (12, "dies before"), PROGRAM, False, 0, False, 3, ("after commit", 3), False)
@example("claimed savepoint", (0, "refused"), PROGRAM, False, 0, False, 1, ("after complete", 3), True)
@example("older checkpoint", (0, "refused"), wrong, False, 0, False, 3, ("after complete", 3), False)
@example("claimed savepoint", (42, "dies after"), PROGRAM, False, 2, False, 3, ("after complete", 4), False)
def test_whatever_becomes_of_a_start_the_next_plain_one_forgets_nothing(
    way, fault, program, damaged, ended_in, stopped, ends_in, own, again
):
    with lab(PROGRAM, budget=40) as job, pytest.MonkeyPatch.context() as patch:
        savepoint = Path(run(job, 2).removeprefix("file://"))
        then = visible()
        assert not job._run_until(*own)
        before = newest_of(job)
        files = len(list(savepoint.iterdir()))
        if damaged:
            damage(savepoint)
        if way == "older checkpoint":
            go_back(job, job.coordinator()._log.read_retained()[-1].checkpoint_id, patch)
            then = Counter()
        else:
            job.savepoint, job.claim = str(savepoint), way == "claimed savepoint"
        job.build = program
        for _ in range(2 if again else 1):
            with pytest.MonkeyPatch.context() as faults:
                coordinator, job.coordinator = job.coordinator, partial(_armed, job, job.coordinator, faults, fault)
                try:
                    start(job, ends_in=ends_in, ended_in=ended_in, stopped=stopped)
                finally:
                    job.coordinator = coordinator
        patch.undo()
        job.build, job.savepoint = PROGRAM, ""
        obeyed = newest_of(job) != before
        left = len(list(savepoint.iterdir())) if savepoint.exists() else 0
        assert left == files or (obeyed and job.claim)  # some are left if the process died amid the deletion
        job.run()
        if obeyed:  # then what is newer than what it began with comes once more
            assert not MODEL - visible()
            assert not (visible() - MODEL) - (MODEL - then)
            assert not job.claim or not savepoint.exists() or not list(savepoint.iterdir())
        else:
            assert visible() == MODEL


def _armed(job: Lab, make: Callable[[], Any], faults: pytest.MonkeyPatch, fault: tuple[int, str]) -> Any:
    """A driver whose storage has a fault from its start on; the test's own looks at the storage have none."""
    made = make()
    Calls(faults, *fault)
    return made


@pytest.fixture
def job():
    """A job with a savepoint and newer checkpoints of its own, whose driver has died."""
    with lab(PROGRAM, budget=40) as made:
        made.savepoint = run(made, 2)
        savepoint, made.savepoint = made.savepoint, ""
        made._run_until("after commit", 3)
        yield made, Path(savepoint.removeprefix("file://"))


def a_driver_goes_on_while_a_start_with_another_program_is_refused(job):
    here, savepoint = job
    owner = here.coordinator()._log
    owner.take_over()
    for asked in ("", str(savepoint)):
        here.savepoint, here.build = asked, wrong
        with pytest.raises(IncompatibleState, match="which the program does not have"):
            here.coordinator().run()
        assert owner.still_mine()


def a_damaged_savepoint_leaves_the_job_its_own_checkpoints(job):
    here, savepoint = job
    damage(savepoint)
    here.savepoint = str(savepoint)
    with pytest.raises(CorruptFile, match="put it back from a copy of the savepoint"):
        here.coordinator().run()
    here.savepoint = ""
    here.run()
    assert visible() == MODEL


def the_output_that_was_complete_becomes_visible_although_the_job_starts_from_a_savepoint(job):
    here, savepoint = job
    here._run_until("after complete", 3)
    before = visible()
    here.savepoint = str(savepoint)
    start(here, ends_in=1)
    assert visible() - before, "what the newest checkpoint had prepared"
    here.savepoint = ""
    here.run()
    assert visible() == MODEL


@pytest.mark.parametrize("dies", ["before", "within", "refused"])
def a_claimed_savepoint_is_deleted_by_the_next_driver_if_the_first_could_not(job, dies, monkeypatch):
    here, savepoint = job
    here.savepoint, here.claim = str(savepoint), True
    delete = DirectoryStore.delete

    def fails(store: DirectoryStore, paths: Any) -> None:
        if "savepoint-" in store.uri:
            if dies == "within":
                delete(store, paths)
            raise StorageError("refused") if dies == "refused" else Crash
        delete(store, paths)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "delete", fails)
        here._run_until("after commit", 3)
    assert list(savepoint.iterdir())
    here.savepoint = ""
    here.run()
    assert not savepoint.exists() or not list(savepoint.iterdir())


def judged(job: Lab) -> tuple[bool, str]:
    """What is said of the program and the newest checkpoint beforehand: whether it can go on, and what prevents it."""
    try:
        found = job.check()
    except CorruptFile as error:
        return False, str(error)
    return found.restorable, "\n".join((*found.problems, *found.notes))


@pytest.mark.parametrize("damaged", ["entry", "entry, shortened", "file"])
def a_check_says_of_damage_to_the_newest_checkpoint_what_a_start_does_with_the_way_out(damaged, monkeypatch):
    with lab(PROGRAM, budget=40, config=dict(IN_FILES)) as here:
        here._run_until("after commit", 3)
        log = here.coordinator()._log
        newest, older = log.read_retained()[:2]
        path = Path(log.locate(newest.checkpoint_id).removeprefix("file://"))
        if damaged == "file":
            path = here.directory / "checkpoints" / min(files_of(here, newest) - files_of(here, older))
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damaged == "entry" else content[:-9])
        with pytest.raises(CorruptFile) as refused:
            here.coordinator().run()
        restorable, said = judged(here)
        assert not restorable
        for each in (str(refused.value), said):
            assert str(path) in each
            assert "written again" in each or "repeated output" in each
            assert f"execution.state-recovery.path to {log.locate(older.checkpoint_id)}" in each
        here.config["execution.state-recovery.path"] = log.locate(older.checkpoint_id)
        assert judged(here)[0]
        go_back(here, older.checkpoint_id, monkeypatch)
        here.run()


def a_check_passes_over_a_damaged_checkpoint_without_output_as_a_start_does():
    with lab(PROGRAM, budget=40, config=dict(IN_FILES)) as here:
        here.build = with_states_alone
        here._run_until("after commit", 3)
        newest, older = here.coordinator()._log.read_retained()[:2]
        path = here.directory / "checkpoints" / min(files_of(here, newest) - files_of(here, older))
        path.unlink()
        restorable, said = judged(here)
        assert restorable
        assert f"checkpoint {newest.checkpoint_id} is passed over" in said
        assert str(path) in said
        here.run()


def files_of(job: Lab, record: Any) -> set[str]:
    return {file.path for file in load(job.storage, record).checkpoint.files()}
