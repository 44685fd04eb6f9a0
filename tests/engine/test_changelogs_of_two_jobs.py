"""Two jobs of one name in two checkpoint storages write one changelog: neither takes the other's rows for its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compactions
import holdfast.runtime.task.changelogs
import holdfast.state.backends.upkeep
import holdfast.state.changelogs.keyed_changelog
from effort import examples
from holdfast.checkpoint.changelog import Marker, MarkerKey
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state.changelogs.changelog import matches, name_of, others
from holdfast.state.keys.key_groups import KeyGroupRange

from .changelog_model import Broker
from .inprocess import CRASH_POINTS, LEDGERS, Crash, Lab
from .programs import records, sessions, sessions_model
from .test_changelog import changelogs, check_log
from .test_same_results import few, lab, seeds, visible

widths = st.sampled_from([1, 2, 3])
meetings = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(CRASH_POINTS), st.integers(1, 3), st.booleans(), widths),
    min_size=1,
    max_size=4,
)
"""After so many checkpoints of one job, a driver of the other begins and dies: at which point, the n-th time; whether it had
lost its disk, and its parallelism."""


@pytest.fixture(autouse=True)
def early_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdfast.state.backends.upkeep, "due", compactions.anything(1))


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's transactions end at once."""
    monkeypatch.setattr(holdfast.state.changelogs.keyed_changelog, "PATIENCE", 0.0)


@pytest.fixture(autouse=True)
def original() -> Iterator[None]:
    new_changelog = holdfast.runtime.task.changelogs.new_changelog
    yield
    holdfast.runtime.task.changelogs.new_changelog = new_changelog


@settings(few, max_examples=examples(4))
@given(
    seed=seeds,
    copied=st.booleans(),
    before=st.integers(1, 4),
    met=meetings,
    wiped=st.booleans(),
    width=widths,
    last=widths,
)
def the_jobs_that_share_a_changelog_never_take_each_others_rows(seed, copied, before, met, wiped, width, last):
    """The other job began of itself, or is a copy of this one in another directory, from which both go on."""
    broker = Broker(seed)
    mine, theirs = records(seed, 300, keys=20), records(seed if copied else seed + 1, 300, keys=20)
    options: dict[str, Any] = {"budget": 20, "config": changelogs(broker, "2kb")}
    LEDGERS["theirs"].committed.clear()
    with lab(sessions(mine, cut=20), parallelism=width, **options) as job:
        assert not job._run_until("after complete", before)
        other = Lab(sessions(theirs, cut=20, ledger="theirs"), job.directory / "other", ledgers=("theirs",), **options)
        if copied:
            shutil.copytree(job.directory / "checkpoints", other.directory / "checkpoints")
            LEDGERS["theirs"].committed.update(LEDGERS["out"].committed)
        meet(job, other, met)
        if wiped:
            shutil.rmtree(job.disk, ignore_errors=True)
        job.parallelism = last
        job.run()
        other.run()
        assert visible() == sessions_model(mine)
        assert visible("theirs") == sessions_model(theirs)
        check_log(job, broker, shared=True)
        check_log(other, broker, shared=True)


def meet(job: Lab, other: Lab, met: list[tuple[int, str, int, bool, int]]) -> None:
    """Run a driver of the job that dies after the last driver of the other one."""
    coordinator = job.coordinator()
    complete, left = coordinator._log.complete, list(met)
    wait = [left[0][0]]

    def completing(*checkpoint: Any) -> None:
        complete(*checkpoint)
        wait[0] -= 1
        if wait[0]:
            return
        _, point, count, wiped, other.parallelism = left.pop(0)
        if wiped:
            shutil.rmtree(other.disk, ignore_errors=True)
        other._run_until(point, count)
        if not left:
            raise Crash
        wait[0] = left[0][0]

    coordinator._log.complete = completing  # type: ignore[method-assign]
    try:
        coordinator.run()
    except Crash:
        pass
    finally:
        job.close()


def a_marker_of_an_earlier_release_still_tells_what_the_log_holds() -> None:
    """It names no writer. The job that goes on reads its rows, and marks the log anew."""
    state = [KeyedHandle(0, 127, deltas=[ContainedFile("job/state/1.delta", 1, b"")])]
    groups = KeyGroupRange(0, 127)
    old = msgspec.msgpack.decode(msgspec.msgpack.encode([name_of(state), "seed", []]), type=Marker)
    written = {MarkerKey(partition, 0, 127): old for partition in range(2)}
    assert matches(state, groups, written, 2, 128)
    assert not matches([KeyedHandle(0, 127, deltas=[ContainedFile("job/state/2.delta", 1, b"")])], groups, written, 2, 128)
    ours = {MarkerKey(partition, 0, 127, "ours"): Marker("newer", "seed", [], "") for partition in range(2)}
    assert not matches(state, groups, {**written, **ours}, 2, 128)
    newer = [KeyedHandle(0, 127, deltas=[ContainedFile("job/state/2.delta", 1, b"")])]
    knowing = {key: Marker(name_of(newer), "seed", [], others(key, written)) for key in ours}
    assert matches(newer, groups, {**written, **knowing}, 2, 128)
    unknowing = {key: Marker(name_of(newer), "seed", []) for key in ours}
    assert not matches(newer, groups, {**written, **unknowing}, 2, 128)
