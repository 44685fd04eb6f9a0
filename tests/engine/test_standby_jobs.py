"""Two drivers of one job in this process: what becomes of the job, and of the driver that stands by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from awaiting import until
from holdfast.common import Configuration, WatermarkStrategy
from holdfast.common.job_status import JobStatus
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.errors import ConfigurationError, Fenced, HoldfastError, JobFailed
from holdfast.runtime.driver.savepoints import SavepointWriter
from holdfast.runtime.protocol import events
from holdfast.testing.in_process import InProcessEnvironment


def settings(directory: Path) -> dict[str, str]:
    return {
        "execution.checkpointing.dir": str(directory / "checkpoints"),
        "high-availability.type": "STORAGE",
        "heartbeat.interval": "50 ms",
        "heartbeat.timeout": "20 s",
        "restart-strategy.type": "none",
    }


def start(directory: Path) -> Any:
    """A driver of a job that fails as soon as there is a file."""
    flag = directory / "fail"

    def checked(payment: Any) -> Any:
        if flag.exists():
            raise ValueError("no amount")
        return payment

    env = InProcessEnvironment(Configuration.from_dict(settings(directory)))
    payments = env.from_source(PaymentsSource(rate_per_second=200), WatermarkStrategy.no_watermarks(), "payments")
    payments.map(checked).filter(lambda p: False).print()
    return env.execute_async("kept")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Any, Any]:
    """The owner of a running job, and a driver that stands by."""
    owner = start(tmp_path)
    until(lambda: owner.metrics.snapshot().counts.completed)
    standby = start(tmp_path)
    until(lambda: standby._leadership._owners is not None)
    return owner, standby


def result(client: Any) -> Any:
    return client.get_job_execution_result().result()


def status(client: Any) -> JobStatus:
    found: JobStatus = client.get_job_status().result()
    return found


def a_driver_that_is_interrupted_leaves_the_job_to_the_other_one_which_resumes(pair: tuple[Any, Any]) -> None:
    owner, standby = pair
    owner._interrupt().result()
    assert status(owner) is JobStatus.SUSPENDED
    until(lambda: standby.metrics.snapshot().counts.completed)
    assert standby.metrics.snapshot().restored is not None
    standby.cancel().result()
    assert status(standby) is JobStatus.CANCELED


def a_cancelled_job_ends_for_the_driver_that_stands_by(pair: tuple[Any, Any]) -> None:
    owner, standby = pair
    owner.cancel().result()
    result(standby)
    assert [status(each) for each in pair] == [JobStatus.CANCELED] * 2
    assert not standby._leadership.leads


def a_cancellation_is_not_undone_by_an_interrupt(pair: tuple[Any, Any]) -> None:
    owner, standby = pair
    cancelled = owner.cancel()
    owner._interrupt().result()
    cancelled.result()
    result(standby)
    assert [status(each) for each in pair] == [JobStatus.CANCELED] * 2


def a_job_stopped_with_a_savepoint_ends_for_the_driver_that_stands_by(pair: tuple[Any, Any], tmp_path: Path) -> None:
    owner, standby = pair
    assert owner.stop_with_savepoint(False, str(tmp_path / "savepoints")).result()
    result(standby)
    assert [status(each) for each in pair] == [JobStatus.FINISHED] * 2


def a_stop_with_a_savepoint_is_not_undone_by_an_interrupt(
    pair: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, standby = pair
    handle = owner._coordinator._machine.handle

    def interrupted(event: Any, now: Any) -> Any:
        given = handle(event, now)
        if isinstance(event, events.SavepointWritten):
            owner._interrupt()
        return given

    monkeypatch.setattr(owner._coordinator._machine, "handle", interrupted)
    assert owner.stop_with_savepoint(False, str(tmp_path / "savepoints")).result()
    result(standby)
    assert [status(each) for each in pair] == [JobStatus.FINISHED] * 2


def a_stop_with_a_savepoint_fails_if_another_driver_has_the_job_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {key: value for key, value in settings(tmp_path).items() if not key.startswith("high-availability")}

    def begin() -> Any:
        env = InProcessEnvironment(Configuration.from_dict(plain))
        payments = env.from_source(PaymentsSource(rate_per_second=200), WatermarkStrategy.no_watermarks(), "payments")
        payments.map(lambda p: p).filter(lambda p: False).print()
        job: Any = env.execute_async("kept")
        until(lambda: job.metrics.snapshot().counts.completed)
        return job

    owner = begin()
    write, rivals = SavepointWriter.write, []

    def writing(*arguments: Any) -> None:
        write(*arguments)
        rivals.append(begin())

    monkeypatch.setattr(SavepointWriter, "write", writing)
    with pytest.raises(Fenced):
        owner.stop_with_savepoint(False, str(tmp_path / "savepoints")).result()
    with pytest.raises(Fenced):
        result(owner)
    rivals[0].cancel().result()


def a_job_that_fails_for_good_fails_for_the_driver_that_stands_by_with_its_error(
    pair: tuple[Any, Any], tmp_path: Path
) -> None:
    owner, standby = pair
    (tmp_path / "fail").touch()
    with pytest.raises(HoldfastError, match="no amount"):
        result(owner)
    with pytest.raises(JobFailed, match="ValueError: no amount"):
        result(standby)
    assert [status(each) for each in pair] == [JobStatus.FAILED] * 2


def a_driver_that_is_overtaken_loses_the_job_and_not_the_others(pair: tuple[Any, Any], tmp_path: Path) -> None:
    owner, standby = pair
    plain = {key: value for key, value in settings(tmp_path).items() if not key.startswith("high-availability")}
    env = InProcessEnvironment(Configuration.from_dict(plain))
    env.from_source(PaymentsSource(rate_per_second=200), WatermarkStrategy.no_watermarks(), "payments").map(
        lambda p: p
    ).filter(lambda p: False).print()
    rival: Any = env.execute_async("kept")  # it does not stand by: it takes the job over at once
    with pytest.raises(HoldfastError):
        result(owner)
    assert status(owner) is JobStatus.SUSPENDED
    assert not standby._leadership.leads
    standby._interrupt().result()
    assert status(standby) is JobStatus.SUSPENDED
    rival.cancel().result()


def test_standby_drivers_need_a_place_to_see_each_other() -> None:
    env = InProcessEnvironment(Configuration.from_dict({"high-availability.type": "STORAGE"}))
    env.from_collection([1]).print()
    with pytest.raises(ConfigurationError, match=r"set execution\.checkpointing\.dir to a directory that all of them reach"):
        env.execute("alone")
