"""The tools for stored state, on what real jobs have stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.inprocess import LEDGERS
from engine.programs import everything, records, sessions, sessions_model, windows
from engine.small_programs import Remember, program
from engine.test_same_results import IN_FILES, config, lab, visible
from engine.test_savepoints import run
from holdfast.cli.app import NOT_FOUND, USAGE
from holdfast.cli.commands import app
from holdfast.common import Types
from holdfast.errors import ConfigurationError, CorruptFile, Fenced
from holdfast.state_api import (
    delete_savepoint,
    describe,
    diff,
    find_orphans,
    list_snapshots,
    open_snapshot,
    prune,
    verify,
)

DATA = records(5, 300, keys=20)


@pytest.fixture(params=["rocksdb", "hashmap"])
def job(request):
    with lab(sessions(DATA, cut=20), budget=40, parallelism=2, config=config(request.param, "64")) as made:
        yield made


def directory(job) -> str:
    return str(job.directory / "checkpoints" / "job")


def the_retained_checkpoints_and_the_savepoints_are_listed(job):
    savepoint = run(job, 5)
    listed = list_snapshots(str(job.directory))
    checkpoints = [each for each in listed if each.kind == "checkpoint"]
    assert [each.checkpoint_id for each in checkpoints] == sorted((c.checkpoint_id for c in checkpoints), reverse=True)
    assert len(checkpoints) == 3
    assert [each.path for each in listed if each.kind == "savepoint"] == [savepoint]
    assert all(not each.problem and each.job_name == "job" and each.size for each in listed)
    for each in listed:
        opened = open_snapshot(each.path)
        assert (opened.kind, opened.checkpoint.checkpoint_id) == (each.kind, each.checkpoint_id)
    assert open_snapshot(directory(job)).path == checkpoints[0].path
    assert list_snapshots(directory(job)) == checkpoints


def a_savepoint_that_was_never_finished_is_listed_as_such_and_can_be_deleted(job):
    savepoint = Path(run(job, 3).removeprefix("file://"))
    (savepoint / "_metadata").unlink()
    (savepoint / "_in-progress").write_text("")
    (line,) = [each for each in list_snapshots(str(savepoint.parent)) if each.kind == "savepoint"]
    assert "unfinished" in line.problem
    assert delete_savepoint(str(savepoint)) > 1
    assert not list(savepoint.iterdir())


def a_finished_savepoint_is_deleted_and_nothing_else_is(job, tmp_path):
    savepoint = Path(run(job, 3).removeprefix("file://"))
    delete_savepoint(str(savepoint))
    assert not list(savepoint.iterdir())
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        delete_savepoint(str(tmp_path))
    assert (tmp_path / "mine.txt").exists()


def the_states_of_each_operator_are_described(job):
    savepoint = run(job, 4)
    for path in (directory(job), savepoint):
        (keyed,) = [each for each in describe(open_snapshot(path)) if each.key_type]
        assert keyed.max_parallelism == 128
        named = {each.name: each for each in keyed.states}
        assert {each.kind for each in named.values()} >= {"timers"}
        assert keyed.size == sum(keyed.sizes.values()) > 0
        assert "keyed" in keyed.sizes or "shared files" in keyed.sizes


def the_difference_of_two_snapshots_names_states_types_and_positions(tmp_path):
    values = [("a", n, n) for n in range(6)]
    with lab(program(Remember(Types.LONG()), values)) as first:
        first._run_until("after complete", 3)
        long = open_snapshot(directory(first))
    with lab(program(Remember(Types.STRING()), [(k, n, str(v)) for k, n, v in values[:5]])) as second:
        second._run_until("after complete", 2)
        string = open_snapshot(directory(second))
        found = {(each.where, each.what): (each.before, each.after) for each in diff(string, long, sizes=False)}
    assert ("value of STRING", "value of LONG") in found.values()
    assert any(where.startswith("source ") for where, _ in found)
    assert not diff(long, long, sizes=False)


def a_damaged_file_is_found(job):
    job.config |= IN_FILES
    run(job, 5)
    snapshot = open_snapshot(directory(job))
    assert verify(snapshot) == []
    files = sorted({file.path for file in snapshot.checkpoint.files()})
    at = job.directory / "checkpoints"
    (at / files[0]).unlink()
    data = bytearray((at / files[-1]).read_bytes())
    data[len(data) // 2] ^= 1
    (at / files[-1]).write_bytes(data)
    assert sorted(Path(error.path).name for error in verify(snapshot)) == sorted(Path(files[n]).name for n in (0, -1))


def the_old_checkpoints_are_pruned_and_the_job_goes_on_from_the_kept_one(job):
    job._run_until("after complete", 6)
    stale = job.directory / "checkpoints" / "job" / "state"
    before = {path.name for path in stale.iterdir()}
    lost = stale / f"{1:010d}-{1:020d}-op-00000-{'a' * 32}.delta"
    lost.write_bytes(b"left by a dead attempt")
    assert [Path(each.path).name for each in find_orphans(directory(job)) if each.path.endswith(lost.name)] == [lost.name]
    (line,) = [each for each in orphans_by_command(directory(job)) if each["path"].endswith(lost.name)]
    assert line["size"] == len(b"left by a dead attempt")
    assert lost.exists()
    done = prune(directory(job))
    assert done.kept == 1
    assert done.deleted > 0
    assert {path.name for path in stale.iterdir()} <= before
    assert len(list_snapshots(directory(job))) == 1
    assert not find_orphans(directory(job))
    assert orphans_by_command(list_snapshots(directory(job))[0].path) == []
    prune(directory(job))
    job.run()
    assert visible() == sessions_model(DATA)


def a_directory_without_a_job_has_no_orphans_to_look_for(tmp_path):
    with pytest.raises(ConfigurationError, match="not the directory of a job"):
        find_orphans(str(tmp_path / "job"))


def orphans_by_command(place):
    listed = CliRunner().invoke(app, ["checkpoints", "orphans", place, "--json"])
    assert listed.exit_code == 0, listed.output
    return json.loads(listed.stdout)


def the_command_for_orphans_refuses_what_is_no_job(job, tmp_path):
    savepoint = run(job, 3)
    for place, code, said in [(savepoint, USAGE, "is a savepoint"), (str(tmp_path), NOT_FOUND, "There is no checkpoint")]:
        refused = CliRunner().invoke(app, ["checkpoints", "orphans", place])
        assert refused.exit_code == code, refused.output
        assert said in str(refused.exception) + refused.output


def a_driver_that_still_runs_is_fenced_by_prune(job):
    coordinator = job.coordinator()
    make = coordinator._make_executor

    def making(info, plan):
        executor = make(info, plan)
        run_epoch, left = executor.run, [4]

        def running(assignment):
            left[0] -= 1
            if left[0] == 0:
                prune(directory(job))
            return run_epoch(assignment)

        executor.run = running
        return executor

    coordinator._make_executor = making
    with pytest.raises(Fenced):
        coordinator.run()
    job.run()
    assert visible() == sessions_model(DATA)


def test_nothing_is_pruned_if_the_checkpoint_to_keep_is_damaged(job):
    job.config |= IN_FILES
    job._run_until("after complete", 6)
    newest = open_snapshot(directory(job))
    path = next(newest.checkpoint.files()).path
    (job.directory / "checkpoints" / path).unlink()
    before = len(list_snapshots(directory(job)))
    with pytest.raises(CorruptFile):
        prune(directory(job))
    assert len(list_snapshots(directory(job))) == before


def a_path_that_names_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        open_snapshot(str(tmp_path / "nothing"))
    with pytest.raises(CorruptFile, match="missing"):
        open_snapshot(str(tmp_path / "job" / "log" / f"{7:020d}"))
    with pytest.raises(ConfigurationError, match="no completed checkpoint"):
        prune(str(tmp_path / "nothing"))
    assert list_snapshots(str(tmp_path)) == []


def the_states_of_windows_are_described():
    with lab(windows(DATA, cut=20), budget=40) as job:
        savepoint = run(job, 4)
        contents = describe(open_snapshot(savepoint))
        names = {state.name for content in contents for state in content.states}
        assert "window-contents" in names
    assert everything(DATA)
    assert LEDGERS["out"]
    shutil.rmtree(savepoint.removeprefix("file://"), ignore_errors=True)
