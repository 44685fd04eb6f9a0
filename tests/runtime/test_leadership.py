"""One driver owns the job and the others stand by: who takes over when, and that only one does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awaiting import until
from holdfast.checkpoint.ids import LogPosition, position_of
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import RetryPolicy, Storage, Unavailable
from holdfast.errors import ConfigurationError, Fenced
from holdfast.runtime.driver.launch import Launch
from holdfast.runtime.driver.leadership import Heartbeat, Leadership, Watch
from holdfast.runtime.plan.settings import HeartbeatSettings, JobSettings
from holdfast.testing.memory_store import MemoryStore

PATHS = JobPaths.of("job")
QUICK = HeartbeatSettings(interval=0.05, timeout=1.5)
"""The timeout is so long that a busy machine does not make an owner look dead."""


class Driver:
    """A driver as the others see it: its log, its heartbeat, and what becomes of it."""

    def __init__(
        self,
        store: MemoryStore,
        name: str,
        died: Callable[[str], bool] = lambda job_id: False,
        launch: Launch | None = None,
    ) -> None:
        storage = Storage(store, RetryPolicy(0.2, 0.01, 0.05))
        self.log = CheckpointLog(storage, PATHS)
        self.leadership = Leadership(storage, PATHS, self.log, name, QUICK, died, launch)
        self.name = name
        self.lost: list[Exception] = []
        self.ended: list[Heartbeat | None] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.ended.append(self.leadership.stand_by(self.lost.append))
        if self.leadership.leads:
            self.log.take_over()

    def start(self) -> Driver:
        self._thread.start()
        return self

    def join(self) -> Driver:
        self._thread.join(600)
        assert not self._thread.is_alive(), f"{self.name} still stands by"
        return self

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def dies(self) -> None:
        """Its process is gone: no more heartbeats, and no last word."""
        self.leadership._ended.set()
        self.leadership._thread.join()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def the_first_driver_owns_the_job_at_once_and_the_others_stand_by(store: MemoryStore) -> None:
    first = Driver(store, "first").start().join()
    assert first.leadership.leads
    second = Driver(store, "second").start()
    until(lambda: first.leadership._beat.number > 12)  # longer than the timeout
    assert second.waits
    assert not first.lost
    second.leadership.stop()
    assert second.join().ended == [None]
    assert not second.leadership.leads


def a_standby_driver_takes_over_from_a_dead_one_which_is_fenced(store: MemoryStore) -> None:
    first = Driver(store, "first").start().join()
    second = Driver(store, "second").start()
    until(lambda: second.leadership._owners is not None)
    first.dies()
    assert second.join().leadership.leads
    with pytest.raises(Fenced):
        first.log.check_ownership()


def test_of_many_standby_drivers_one_takes_over_and_the_others_stand_by_for_it(store: MemoryStore) -> None:
    owner = Driver(store, "0").start().join()
    others = [Driver(store, str(n)).start() for n in range(1, 6)]
    while others:
        until(lambda: all(d.leadership._owners and d.leadership._owners.job_id == owner.name for d in others))  # noqa: B023
        owner.dies()
        until(lambda: any(d.leadership.leads for d in others))
        (owner,) = [d for d in others if d.leadership.leads]
        others.remove(owner)
        owner.join()
    generations = [owner.log.owned.generation]
    assert generations == [12]  # a claim and a take-over by each of six drivers, and nobody else's


def a_driver_that_steps_down_is_followed_without_a_wait(store: MemoryStore) -> None:
    first = Driver(store, "first").start().join()
    second = Driver(store, "second")
    second.leadership._watch = Watch(0.0)  # for it, no time passes: it will never find the first one dead
    second.start()
    until(lambda: second.leadership._owners is not None)
    first.leadership.end("SUSPENDED")
    assert second.join().leadership.leads


@pytest.mark.parametrize("state", ["FINISHED", "CANCELED", "FAILED"])
def a_job_that_ends_ends_its_standby_drivers_and_begins_again_with_the_next_one(store: MemoryStore, state: str) -> None:
    first = Driver(store, "first").start().join()
    others = [Driver(store, name).start() for name in ("second", "third")]
    until(lambda: all(driver.leadership._owners is not None for driver in others))
    first.leadership.end(state, "why")
    for driver in others:
        (told,) = driver.join().ended
        assert told is not None
        assert (told.state, told.failure, told.job_id) == (state, "why", "first")
    assert Driver(store, "later").start().join().leadership.leads


def a_driver_that_died_on_this_machine_is_followed_without_a_wait(store: MemoryStore) -> None:
    first = Driver(store, "first").start().join()
    first.dies()
    second = Driver(store, "second", died="first".__eq__)
    second.leadership._watch = Watch(0.0)
    assert second.start().join().leadership.leads


def a_driver_that_was_paused_stops_by_itself_when_another_one_has_taken_over(store: MemoryStore) -> None:
    first = Driver(store, "first").start().join()
    rival = CheckpointLog(Storage(store), PATHS)
    rival.take_over()
    until(lambda: first.lost)
    assert isinstance(first.lost[0], Fenced)


def a_driver_that_verifies_a_large_checkpoint_has_a_heartbeat_meanwhile(store: MemoryStore) -> None:
    first = Driver(store, "first").start().join()
    with first.log._lock:  # as during its take-over, which has put its record and now looks at every file
        next_entry = PATHS.log_entry(position_of(first.log.owned.next_id))
        store.objects[next_entry] = store.objects[PATHS.log_entry(LogPosition(1))]
        number = first.leadership._beat.number
        until(lambda: first.leadership._beat.number > number + 3)
        assert not first.lost
    until(lambda: first.lost)


def test_what_a_dead_owner_completed_before_its_last_heartbeat_is_no_sign_of_life(store: MemoryStore) -> None:
    first = Driver(store, "first").start().join()
    second = Driver(store, "second").start()
    until(lambda: second.leadership._owners is not None)
    first.log.take_over()  # the log grows, and heartbeats go on
    number = first.leadership._beat.number
    until(lambda: first.leadership._beat.number > number + 2)
    first.dies()
    last = first.leadership._beat
    watch: Any = second.leadership._watch
    until(lambda: watch._last[1] == last)
    silent = [0.0]
    while second.waits:
        silent.append(second.leadership._watch.silent)
    assert second.leadership.leads
    assert silent == sorted(silent)


def a_driver_without_heartbeat_that_completes_checkpoints_is_alive(store: MemoryStore) -> None:
    old = CheckpointLog(Storage(store), PATHS)
    old.take_over()
    standby = Driver(store, "standby").start()
    until(lambda: standby.leadership._end is not None)
    for _ in range(12):
        old.take_over()  # any growth of the log will do
        time.sleep(QUICK.timeout / 6)
    assert standby.waits
    assert standby.join().leadership.leads


def an_outage_of_the_storage_is_not_the_death_of_the_owner(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Driver(store, "first").start().join()
    second = Driver(store, "second").start()
    until(lambda: second.leadership._owners is not None)

    def away(*_: object) -> bytes:
        raise Unavailable("away")

    with monkeypatch.context() as outage:
        for call in ("get", "put", "size", "list"):
            outage.setattr(store, call, away)
        time.sleep(2 * QUICK.timeout)
    number = first.leadership._beat.number
    until(lambda: first.leadership._beat.number > number + 3)
    assert second.waits
    assert first.log.still_mine()
    second.leadership.stop()


def an_unreadable_heartbeat_is_like_a_missing_one(store: MemoryStore) -> None:
    first = Driver(store, "first").start().join()
    first.dies()
    store.objects[PATHS.heartbeat(first.log.driver)] = b"not a heartbeat"
    assert Driver(store, "second").start().join().leadership.leads


def test_heartbeats_of_earlier_owners_are_deleted(store: MemoryStore) -> None:
    for number in range(4):
        driver = Driver(store, str(number)).start().join()
        driver.leadership.end("FINISHED")
    assert len([path for path in store.objects if path.startswith(PATHS.leader_prefix)]) == 1


@given(
    st.lists(st.tuples(st.floats(0.001, 30), st.booleans()), min_size=1, max_size=40),
    st.floats(0.1, 2.0),
)
def test_the_watch_counts_only_time_in_which_it_saw_that_nothing_changed(
    looks: list[tuple[float, bool]], most: float
) -> None:
    watch = Watch(most)
    now, content, unchanged = 0.0, 0, 0
    watch.observe(content, now)
    for pause, changes in looks:
        now += pause
        content += changes
        unchanged = 0 if changes else unchanged + 1
        watch.observe(content, now)
        assert 0 <= watch.silent <= unchanged * most + 1e-9
        if changes:
            assert watch.silent == 0


def the_silence_of_an_owner_begins_with_the_first_observation() -> None:
    watch = Watch(4.0)
    watch.accept("an owner without a heartbeat")
    watch.observe("an owner without a heartbeat", 1_000.0)
    assert watch.silent == 0
    watch.observe("an owner without a heartbeat", 1_001.0)
    assert watch.silent == 1


def a_claim_fails_if_the_log_has_grown_since_its_end_was_read(store: MemoryStore) -> None:
    owner = CheckpointLog(Storage(store), PATHS)
    owner.take_over()
    first, second = (CheckpointLog(Storage(store), PATHS) for _ in range(2))
    seen = first.end()
    assert seen.owner == owner.driver
    assert second.claim(seen)
    assert not first.claim(seen)
    assert first.end(seen).owner == second.driver
    assert second.take_over().generation == 3
    assert second.claim(second.end())  # its own: an answer was lost


def a_timeout_must_leave_room_for_a_late_heartbeat() -> None:
    with pytest.raises(ConfigurationError, match=r"heartbeat\.timeout is 1500 ms: give at least twice heartbeat\.interval"):
        JobSettings.of({"heartbeat.interval": "1 s", "heartbeat.timeout": "1500 ms"})


def launch(directory: Path, restarts_failed: bool = False, name: str = "1") -> Launch:
    return Launch(name, {}, "", False, True, restarts_failed, str(directory / f"{name}.seen"))


@pytest.mark.parametrize("state", ["CANCELED", "FINISHED"])
@pytest.mark.parametrize("restarts_failed", [True, False])
def a_driver_that_its_launcher_starts_again_does_not_begin_what_has_ended_meanwhile(
    store: MemoryStore, tmp_path: Path, state: str, restarts_failed: bool
) -> None:
    mine = launch(tmp_path, restarts_failed)
    first = Driver(store, "first", launch=mine).start().join()
    first.dies()
    second = Driver(store, "second", died="first".__eq__).start().join()
    second.leadership.end(state)
    (told,) = Driver(store, "first again", launch=mine).start().join().ended
    assert told is not None
    assert (told.state, told.job_id) == (state, "second")
    assert Driver(store, "started by the user", launch=launch(tmp_path, name="2")).start().join().leadership.leads


def a_launcher_begins_a_failed_job_again_only_if_it_is_told_to(store: MemoryStore, tmp_path: Path) -> None:
    for restarts_failed in (True, False):
        mine = launch(tmp_path, restarts_failed)
        first = Driver(store, "first", launch=mine).start().join()
        first.leadership.end("FAILED", "why")
        second = Driver(store, "second", launch=mine).start().join()
        assert second.leadership.leads == restarts_failed
        second.leadership.end("CANCELED")
        Path(mine.first_seen).unlink()


def a_launch_whose_first_driver_dies_before_it_owns_the_job_still_begins_it(store: MemoryStore, tmp_path: Path) -> None:
    Driver(store, "earlier").start().join().leadership.end("CANCELED")
    mine = launch(tmp_path)
    assert Driver(store, "dies", launch=mine).leadership.look()
    assert Driver(store, "again", launch=mine).start().join().leadership.leads


def an_overtaken_driver_leaves_its_successors_last_heartbeat_alone(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Driver(store, "first")
    listed, goes_on = threading.Event(), threading.Event()
    forget = first.leadership._forget_earlier_owners

    def paused() -> bool:
        listed.set()
        goes_on.wait()
        return forget()

    monkeypatch.setattr(first.leadership, "_forget_earlier_owners", paused)
    first.start().join()
    listed.wait()
    second = Driver(store, "second", died="first".__eq__).start()
    until(lambda: second.leadership.leads)
    second.join().leadership.end("CANCELED")
    goes_on.set()
    until(lambda: bool(first.lost))
    assert PATHS.heartbeat(second.log.driver) in store.objects
