from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.checkpoint import log as checkpoint_log
from holdfast.checkpoint import manifests
from holdfast.checkpoint.entries import FORMAT_VERSION, Takeover, encode_entry
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.ids import CheckpointId, LogPosition, epoch_of
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.takeover import FromSavepoint, LogFacts, next_takeover
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, Fenced, IncompatibleState, StorageError
from holdfast.testing.faulty_storage import Fault, FaultyStorage

from .conftest import checkpoint, quick


def new_driver(storage, paths, retained=3):
    log = CheckpointLog(storage, paths, retained)
    return log, log.take_over()


def complete(log, output=False, *files):
    made = checkpoint(log.owned.next_id, log.owned.generation, *files, output=output)
    log.complete(made)
    return made


def damaged(*ids):
    def verify(checkpoint):
        if checkpoint.checkpoint_id in ids:
            raise CorruptFile(f"file-of-{checkpoint.checkpoint_id}", "missing")

    return verify


def test_the_first_driver_starts_with_empty_state(storage, paths):
    _, taken = new_driver(storage, paths)
    assert (taken.generation, taken.restored, taken.next_id) == (1, None, 2)


def test_a_driver_restores_its_predecessors_checkpoints(storage, paths):
    first, _ = new_driver(storage, paths)
    complete(first)
    newest = complete(first, output=True)
    second, taken = new_driver(storage, paths)
    assert (taken.generation, taken.restored, taken.next_id) == (2, newest, 5)
    assert [c.checkpoint_id for c in second.owned.retained] == [3, 2]


def test_an_overtaken_driver_completes_nothing_more(storage, paths):
    first, _ = new_driver(storage, paths)
    complete(first)
    assert first.still_mine()
    second, taken = new_driver(storage, paths)
    assert not first.still_mine()
    with pytest.raises(Fenced, match=r"another driver \(generation 2; this one is 1\).*different names"):
        complete(first)
    assert not first.still_mine()
    with pytest.raises(CheckpointError, match="call take_over first"):
        complete(first)
    assert complete(second).checkpoint_id == taken.next_id
    assert second.still_mine()


def test_a_driver_is_told_at_once_that_it_was_overtaken_unless_another_thread_is_finding_out(memory, paths):
    first, _ = new_driver(quick(memory), paths)
    first.check_ownership_at_once()
    new_driver(quick(memory), paths)
    with ThreadPoolExecutor(1) as pool, first._lock:
        pool.submit(first.check_ownership_at_once).result(timeout=60)
    with pytest.raises(Fenced, match="another driver took over"):
        first.check_ownership_at_once()


def test_the_first_checkpoint_after_a_takeover_stores_its_changes_only(memory, paths, monkeypatch):
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 1000)
    before, files = ([ContainedFile(f"state/{uuid.uuid4().hex}", 1, bytes(16)) for _ in range(50)] for _ in range(2))
    first, _ = new_driver(quick(memory), paths)
    complete(first, False, *before)
    complete(first, False, *files)
    stored = first.owned.retained[0].manifests
    assert stored != first.owned.retained[1].manifests
    second, _ = new_driver(quick(memory), paths)
    complete(second, False, *files, ContainedFile("state/new", 1, bytes(16)))
    assert second.owned.retained[0].manifests == stored
    third, taken = new_driver(quick(memory), paths)
    assert {file.path for file in taken.restored.files()} == {"state/new", *(file.path for file in (*files, *stored))}
    assert third.owned.retained == second.owned.retained


def test_an_overtaken_driver_does_not_take_the_job_back(storage, paths):
    first, _ = new_driver(storage, paths)
    complete(first)
    assert first.take_over().generation == 2  # it restarts in place: the job is still its own
    second, _ = new_driver(storage, paths)
    complete(second)
    with pytest.raises(Fenced, match=r"another driver \(generation 3\) took over"):
        first.take_over()
    assert not first.still_mine()
    complete(second)
    assert second.still_mine()


def test_a_driver_that_slept_through_any_number_of_checkpoints_is_still_fenced(memory, paths):
    storage = quick(memory)
    sleeper, _ = new_driver(storage, paths)
    complete(sleeper)
    second, _ = new_driver(storage, paths, retained=1)
    retention = Retention(storage, paths, second)
    retention.sweep()
    for _ in range(200):
        complete(second)
        retention.collect()
    with pytest.raises(Fenced):
        complete(sleeper)


def test_a_driver_paused_during_its_take_over_does_not_occupy_an_old_position(memory, paths):
    old, _ = new_driver(quick(memory), paths, retained=1)
    complete(old)
    retention = Retention(quick(memory), paths, old)

    def meanwhile(method, path):
        if method == "put_new" and not slept:
            slept.append(path)
            for _ in range(100):
                complete(old)
                retention.collect()
            assert path not in memory.objects
        return None

    slept: list[str] = []
    new, taken = new_driver(quick(FaultyStorage(memory, meanwhile)), paths)
    assert taken.restored == old.owned.retained[0]
    assert taken.next_id == old.owned.next_id + 1
    assert slept[0] not in memory.objects
    with pytest.raises(Fenced):
        complete(old)
    complete(new)


def test_of_drivers_started_at_the_same_time_the_last_one_wins(storage, paths):
    logs = [CheckpointLog(storage, paths) for _ in range(4)]
    outcomes: dict[int, object] = {}

    def start(i):
        try:
            outcomes[i] = logs[i].take_over()
        except Fenced as error:
            outcomes[i] = error

    threads = [threading.Thread(target=start, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = {i: t for i, t in outcomes.items() if not isinstance(t, Fenced)}
    generations = [t.generation for t in taken.values()]
    assert len(set(generations)) == len(generations)
    winner = max(taken, key=lambda i: taken[i].generation)
    for i in taken:
        if i != winner:
            with pytest.raises(Fenced):
                complete(logs[i])
    complete(logs[winner])


def test_a_completion_whose_answer_was_lost_is_a_completion(faulty, memory, paths):
    log, _ = new_driver(quick(faulty), paths)
    faulty.on_call(1, "put_new", Fault.LOST_ANSWER)
    made = complete(log)
    _, taken = new_driver(quick(memory), paths)
    assert taken.restored == made


def test_a_takeover_whose_answer_was_lost_is_a_takeover(faulty, paths):
    faulty.on_call(1, "put_new", Fault.LOST_ANSWER)
    log, taken = new_driver(quick(faulty), paths)
    assert taken.generation == 1
    complete(log)


def test_a_restart_whose_takeover_had_an_unknown_outcome_is_not_fenced_by_itself(memory, paths):
    answering = [True]
    faulty = FaultyStorage(memory, lambda method, _: None if answering[0] or method != "put_new" else Fault.LOST_ANSWER)
    log, _ = new_driver(quick(faulty), paths)
    answering[0] = False
    memory_get, memory.get = memory.get, lambda path: (_ for _ in ()).throw(StorageError("away"))
    with pytest.raises(StorageError):
        log.take_over()
    memory.get = memory_get
    answering[0] = True
    log.take_over()
    complete(log)


def test_after_an_unknown_outcome_the_driver_has_to_take_over_again(memory, paths):
    answering = [True]
    faulty = FaultyStorage(memory, lambda method, _: None if answering[0] or method != "put_new" else Fault.LOST_ANSWER)
    storage = quick(faulty)
    log, _ = new_driver(storage, paths)
    answering[0] = False
    memory_put, memory.get = memory.get, lambda path: (_ for _ in ()).throw(StorageError("away"))
    with pytest.raises(StorageError):
        complete(log)
    memory.get = memory_put
    answering[0] = True
    with pytest.raises(CheckpointError, match="call take_over first"):
        complete(log)
    taken = log.take_over()
    assert taken.restored is not None
    assert taken.restored.checkpoint_id == 2
    complete(log)


def test_metadata_that_cannot_be_stored_does_not_cost_the_driver_its_job(storage, paths):
    log, _ = new_driver(storage, paths)
    bad = checkpoint(log.owned.next_id, 1)
    bad.sources["source"] = type(bad.sources["source"])(object())
    with pytest.raises(ConfigurationError, match=r"metadata cannot be stored.*plain data"):
        log.complete(bad)
    bad = checkpoint(log.owned.next_id, 1)
    bad.committables.append(("sink", 0, "\udcff"))
    with pytest.raises(ConfigurationError, match=r"metadata cannot be stored.*plain data"):
        log.complete(bad)
    complete(log)


def test_a_checkpoint_out_of_turn_is_refused(storage, paths):
    log, _ = new_driver(storage, paths)
    with pytest.raises(CheckpointError, match="next is 2 of generation 1"):
        log.complete(checkpoint(7, 1))


def test_a_listing_that_shows_nothing_costs_time_only(memory, paths):
    storage = quick(memory)
    log, _ = new_driver(storage, paths, retained=2)
    retention = Retention(storage, paths, log)
    for _ in range(150):
        newest = complete(log)
        retention.collect()
    memory.list = lambda prefix: []
    _, taken = new_driver(storage, paths)
    assert taken.restored == newest


def test_a_listing_that_fails_costs_time_only(memory, paths):
    log, _ = new_driver(quick(memory), paths)
    newest = complete(log)
    faulty = FaultyStorage(memory, lambda method, _: Fault.REFUSED if method == "list" else None)
    assert new_driver(quick(faulty), paths)[1].restored == newest


def test_a_damaged_checkpoint_without_output_is_passed_over(storage, paths):
    first, _ = new_driver(storage, paths)
    good = complete(first, output=True)
    complete(first)
    complete(first)
    log = CheckpointLog(storage, paths)
    taken = log.take_over(damaged(3, 4))
    assert taken.restored == good
    assert [c.checkpoint_id for c in log.owned.retained] == [2]
    # The choice is in the log: it holds even for a driver that does not look.
    assert CheckpointLog(storage, paths).take_over().restored == good
    assert new_driver(storage, paths)[1].restored == good


def test_a_damaged_checkpoint_with_output_stops_the_job_and_says_what_to_do(storage, paths):
    first, _ = new_driver(storage, paths)
    complete(first)
    complete(first, output=True)
    complete(first)
    with pytest.raises(CorruptFile) as raised:
        CheckpointLog(storage, paths).take_over(damaged(3, 4))
    assert raised.value.path == "file-of-3"
    message = str(raised.value)
    assert "checkpoint 3, whose output may be visible already" in message
    assert f"execution.state-recovery.path to {storage.locate(paths.log_entry(2))}" in message
    # Put back, it is used.
    taken = CheckpointLog(storage, paths).take_over(damaged(4))
    assert taken.restored is not None
    assert taken.restored.checkpoint_id == 3


def test_without_an_intact_checkpoint_the_newest_damaged_file_is_named(storage, paths):
    first, _ = new_driver(storage, paths)
    complete(first)
    complete(first)
    with pytest.raises(CorruptFile, match=r"file-of-3: missing; and no older retained checkpoint is intact"):
        CheckpointLog(storage, paths).take_over(damaged(2, 3))


@pytest.mark.parametrize("harm", ["altered", "missing"])
def test_a_damaged_log_entry_stops_the_job_with_its_name(memory, paths, harm):
    storage = quick(memory)
    first, _ = new_driver(storage, paths)
    complete(first)
    complete(first)
    complete(first)
    path = paths.log_entry(3)
    if harm == "missing":
        del memory.objects[path]
    else:
        memory.objects[path] = memory.objects[path][:-1] + b"\0"
    with pytest.raises(CorruptFile, match=r"log/00000000000000000003: .*from a backup"):
        CheckpointLog(storage, paths).take_over()


def test_the_identity_of_a_job_is_the_same_for_all_its_drivers_and_that_of_no_other_job(storage, paths):
    first, taken = new_driver(storage, paths)
    complete(first)
    complete(first)
    later = [
        CheckpointLog(storage, paths).take_over(damaged(3)),
        CheckpointLog(storage, paths).take_over(),
        CheckpointLog(storage, paths).take_over(restore_from=2),
    ]
    assert {each.job for each in later} == {taken.job}
    assert taken.job == first.driver
    assert new_driver(storage, JobPaths.of("another"))[1].job != taken.job


def test_a_log_of_a_release_without_identities_gets_one(storage, paths):
    storage.put_new(paths.log_entry(1), encode_entry(Takeover(format_version=FORMAT_VERSION, generation=1, driver="old")))
    second, taken = new_driver(storage, paths)
    assert taken.job == second.driver
    assert new_driver(storage, paths)[1].job == taken.job


def test_the_user_goes_back_to_a_checkpoint_once(storage, paths):
    first, _ = new_driver(storage, paths)
    complete(first)
    complete(first, output=True)
    log = CheckpointLog(storage, paths)
    taken = log.take_over(restore_from=2)
    assert taken.restored is not None
    assert taken.restored.checkpoint_id == 2
    newest = complete(log)
    # The setting is still there when the job starts again: it has been obeyed.
    again = CheckpointLog(storage, paths)
    assert again.take_over(restore_from=2).restored == newest
    assert [c.checkpoint_id for c in again.owned.retained] == [newest.checkpoint_id]


@pytest.mark.parametrize("wrong", [1, 9])
def test_going_back_to_a_missing_checkpoint_is_refused(storage, paths, wrong):
    first, _ = new_driver(storage, paths)
    complete(first)
    with pytest.raises(ConfigurationError, match=f"{wrong:020d} is not a completed checkpoint"):
        CheckpointLog(storage, paths).take_over(restore_from=wrong)


def test_retaining_nothing_is_refused(storage, paths):
    with pytest.raises(ConfigurationError, match="num-retained is 0"):
        CheckpointLog(storage, paths, 0)


def test_two_jobs_in_one_storage_do_not_meet(storage, paths):
    first, _ = new_driver(storage, paths)
    _, other = new_driver(storage, type(paths).of("another job"))
    assert other.generation == 1
    complete(first)


@pytest.mark.parametrize("calls", [1, 2, 5, 10, 20, 21, 22, 23, 24, 25])
def test_a_driver_that_takes_over_slowly_from_a_fast_one_finds_nothing_damaged(memory, paths, calls):
    """The old driver goes on, and cleans up, in the middle of so many of the new one's reads."""
    old, _ = new_driver(quick(memory), paths, retained=1)
    complete(old)
    retention = Retention(quick(memory), paths, old)
    count = [0]

    def meanwhile(method, path):
        count[0] += 1
        if count[0] % calls == 0 and count[0] < 400 and old.still_mine():
            for _ in range(40):
                complete(old)
                retention.collect()
        return None

    new, taken = new_driver(quick(FaultyStorage(memory, meanwhile)), paths)
    assert taken.restored == old.owned.retained[0]
    with pytest.raises(Fenced):
        complete(old)
    complete(new)


# ---- starts on trial


def ids(log):
    return [c.checkpoint_id for c in log.read_retained()]


@pytest.fixture
def three(storage, paths):
    """A log with the checkpoints 2, 3 and 4, whose driver is gone."""
    log, _ = new_driver(storage, paths)
    return [complete(log, output=True) for _ in range(3)]


SAVEPOINT = FromSavepoint("file:///savepoint", 40)


def copied(log, taken):
    """Complete the copy of the savepoint."""
    log.complete(checkpoint(taken.next_id, taken.generation), SAVEPOINT.name)


@pytest.mark.parametrize("request_", [{"restore_from": 2}, {"savepoint": SAVEPOINT}])
def test_a_start_on_trial_keeps_the_jobs_checkpoints_until_its_first_own_one(storage, paths, three, request_):
    log = CheckpointLog(storage, paths)
    taken = log.take_over(**request_)
    assert taken.trial
    assert taken.passed_over is not None
    assert taken.passed_over.checkpoint_id == 4
    assert ids(log) == [4, 3, 2]
    if taken.begins_from_savepoint:
        copied(log, taken)
        assert ids(log) == [4, 3, 2]
    assert log.started_from() == ""
    plain = CheckpointLog(storage, paths)
    assert plain.take_over().restored == three[-1]
    assert complete(plain).checkpoint_id == ids(log)[0]
    assert [c.checkpoint_id for c in plain.owned.retained][1:] == [4, 3]


def test_the_first_own_checkpoint_ends_a_trial(storage, paths, three):
    log = CheckpointLog(storage, paths)
    copied(log, log.take_over(savepoint=SAVEPOINT))
    own = complete(log)
    assert ids(log) == [own.checkpoint_id]
    assert log.started_from() == SAVEPOINT.name
    again = CheckpointLog(storage, paths).take_over(savepoint=SAVEPOINT)
    assert (again.restored, again.trial, again.begins_from_savepoint) == (own, False, False)


def test_a_savepoint_is_copied_once_however_often_its_trial_is_begun(storage, paths, three):
    log = CheckpointLog(storage, paths)
    taken = log.take_over(savepoint=SAVEPOINT)
    copied(log, taken)
    for driver in (log, CheckpointLog(storage, paths), CheckpointLog(storage, paths)):
        again = driver.take_over(savepoint=SAVEPOINT)
        assert (again.begins_from_savepoint, again.trial) == (False, True)
        assert again.restored is not None
        assert again.restored.checkpoint_id == taken.next_id
    assert driver.take_over(damaged(taken.next_id), savepoint=SAVEPOINT).begins_from_savepoint


def test_a_savepoint_whose_copy_has_lost_its_manifest_is_copied_again(memory, paths, monkeypatch):
    monkeypatch.setattr(manifests, "LARGEST_LAYER", 0)
    complete(new_driver(quick(memory), paths)[0], output=True)
    log = CheckpointLog(quick(memory), paths)
    copied(log, log.take_over(savepoint=SAVEPOINT))
    (manifest,) = log.owned.retained[0].manifests
    quick(memory).delete([manifest.path])
    assert CheckpointLog(quick(memory), paths).take_over(savepoint=SAVEPOINT).begins_from_savepoint


def test_a_savepoint_that_was_written_anew_at_its_path_is_another_one(storage, paths, three):
    first, anew = (SAVEPOINT._replace(name=f"{SAVEPOINT.name}#digest={digest}") for digest in "ab")
    log = CheckpointLog(storage, paths)
    log.complete(checkpoint(log.take_over(savepoint=first).next_id, 41), first.name)
    assert CheckpointLog(storage, paths).take_over(savepoint=anew).begins_from_savepoint  # another one is on trial
    log = CheckpointLog(storage, paths)
    log.complete(checkpoint((taken := log.take_over(savepoint=first)).next_id, taken.generation), first.name)
    complete(log)
    assert not CheckpointLog(storage, paths).take_over(savepoint=first).begins_from_savepoint
    assert CheckpointLog(storage, paths).take_over(savepoint=anew).begins_from_savepoint


def test_a_log_that_has_a_savepoints_directory_alone_has_started_from_it(storage, paths, three):
    log = CheckpointLog(storage, paths)
    copied(log, log.take_over(savepoint=SAVEPOINT))
    complete(log)
    named = SAVEPOINT._replace(name=f"{SAVEPOINT.name}#digest=a")
    assert not CheckpointLog(storage, paths).take_over(savepoint=named).begins_from_savepoint


def test_a_trial_without_checkpoints_to_go_back_to_is_none(storage, paths):
    log = CheckpointLog(storage, paths)
    taken = log.take_over(savepoint=SAVEPOINT)
    assert not taken.trial
    copied(log, taken)
    restored = CheckpointLog(storage, paths).take_over().restored
    assert restored is not None
    assert restored.checkpoint_id == taken.next_id


def test_going_back_is_obeyed_once_although_an_earlier_request_was_obeyed_too(storage, paths, three):
    first = CheckpointLog(storage, paths)
    first.take_over(restore_from=2)
    complete(first)
    newest = complete(first)
    second = CheckpointLog(storage, paths)
    second.take_over(restore_from=newest.checkpoint_id - 1)  # a trial that comes to nothing
    assert CheckpointLog(storage, paths).take_over(restore_from=2).restored == newest


def test_nothing_is_deleted_during_a_trial(storage, paths, three):
    log = CheckpointLog(storage, paths)
    taken = log.take_over(savepoint=SAVEPOINT)
    retention = Retention(storage, paths, log)
    storage.put(paths.state_file(1, epoch_of(4), "op", 0, "0", "delta"), b"of checkpoint 4")
    copied(log, taken)
    assert (retention.sweep(), retention.collect()) == (0, 0)
    complete(log)
    assert retention.sweep() == 1


def test_a_refused_program_leaves_the_log_and_its_driver_alone(storage, paths):
    owner, _ = new_driver(storage, paths)
    newest = complete(owner)

    def refuse(checkpoint):
        assert checkpoint == newest
        raise IncompatibleState("another program")

    with pytest.raises(IncompatibleState):
        CheckpointLog(storage, paths).take_over(judge=refuse)
    assert owner.still_mine()


# ---- logs whose newest entry is damaged or lost


@pytest.fixture
def broken(memory, paths, request, monkeypatch):
    """A log with the checkpoints 2, 3 and 4, of which the newest is damaged in one of these ways."""
    monkeypatch.setattr(checkpoint_log, "_NOTED_S", 0.0)
    storage = quick(memory)
    log, _ = new_driver(storage, paths)
    for _ in range(3):
        log.output_becomes_visible(complete(log, output=True).checkpoint_id)
    newest = paths.log_entry(4)
    if request.param == "altered":
        memory.objects[newest] = memory.objects[newest][:-1] + b"\0"
    elif request.param == "older":
        memory.objects[newest] = memory.objects[paths.log_entry(3)]
    elif request.param == "a take-over":
        memory.objects[newest] = memory.objects[paths.log_entry(1)]
    else:
        del memory.objects[newest]
    return storage


every_way = pytest.mark.parametrize("broken", ["altered", "older", "a take-over", "lost"], indirect=True)


@every_way
def test_a_log_without_its_newest_entry_is_refused_with_the_way_out_and_its_price(broken, paths):
    way_out = r"log/0*4: .*backup.*newer than checkpoint 3 is written again.*state-recovery.path to .*log/0*3"
    for look in (CheckpointLog(broken, paths).take_over, CheckpointLog(broken, paths).read_retained):
        with pytest.raises(CorruptFile, match=way_out):
            look()


@every_way
@pytest.mark.parametrize("request_", [{"restore_from": 3}, {"savepoint": SAVEPOINT}])
def test_a_start_from_elsewhere_does_not_need_the_newest_entry(broken, paths, request_):
    log = CheckpointLog(broken, paths)
    taken = log.take_over(**request_)
    assert taken.generation > 1
    if taken.begins_from_savepoint:
        copied(log, taken)
    with pytest.raises(CorruptFile, match="backup"):  # as long as the trial lasts, nothing is given up
        CheckpointLog(broken, paths).take_over()
    log = CheckpointLog(broken, paths)
    taken = log.take_over(**request_)
    if taken.begins_from_savepoint:
        copied(log, taken)
    own = complete(log)
    assert CheckpointLog(broken, paths).take_over(**request_).restored == own


@every_way
def test_a_request_that_was_obeyed_before_is_no_answer_to_the_damage(broken, memory, paths):
    log = CheckpointLog(broken, paths)
    log.take_over(restore_from=3)
    complete(log)
    newest = complete(log, output=True)
    memory.objects[paths.log_entry(newest.checkpoint_id)] = b"damaged"
    with pytest.raises(CorruptFile, match="backup"):
        CheckpointLog(broken, paths).take_over(restore_from=3)


def a_claim_that_was_paused_before_its_put_does_not_occupy_an_old_position(memory, paths):
    old, _ = new_driver(quick(memory), paths, retained=1)
    complete(old)
    retention = Retention(quick(memory), paths, old)
    slept: list[str] = []

    def meanwhile(method, path):
        if method == "put_new" and not slept:
            slept.append(path)
            for _ in range(100):
                complete(old)
                retention.collect()
            assert path not in memory.objects
        return None

    claimant = CheckpointLog(quick(FaultyStorage(memory, meanwhile)), paths)
    assert not claimant.claim(claimant.end())
    assert slept[0] not in memory.objects
    complete(old)


def the_latest_takeovers_are_remembered():
    positions = tuple(map(LogPosition, range(1, 2002)))
    facts = LogFacts(LogPosition(2001), 2001, "", (), positions, CheckpointId(0))
    assert next_takeover(facts, "driver", 0).takeovers == list(positions[-1000:])
