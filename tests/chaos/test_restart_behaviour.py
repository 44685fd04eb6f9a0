"""What a job does about failures, strategy by strategy; and what it tells: log, exceptions, final error."""

from __future__ import annotations

import logging

import pytest

from engine.inprocess import LEDGERS, Lab, LedgerSink, SplitSource
from holdfast.common import WatermarkStrategy
from holdfast.errors import HoldfastError, JobFailed, UserCodeError
from holdfast.rest import shapes
from holdfast.runtime.protocol.instructions import Delay
from holdfast.runtime.protocol.restart import restart_strategy

NUMBERS = list(range(1, 21))


class Failing:
    """An executor whose runs of chosen numbers (from 1) fail, before or after the tasks did their work."""

    def __init__(self, executor, failures, runs, after):
        self._executor = executor
        self._failures = failures
        self._runs = runs
        self._after = after

    def run(self, order):
        self._runs.append(order.restarts)
        error = self._failures.get(len(self._runs))
        if error is not None and not self._after:
            raise error
        reports = self._executor.run(order)
        if error is not None:
            raise error
        return reports


class Job:
    def __init__(self, tmp_path, request, config, failures, after=False, build=None):
        self.name = request.node.name
        LEDGERS.pop(self.name, None)
        self.runs = []
        self.lab = Lab(build or self._build, tmp_path, config=config, ledgers=(self.name,))
        self.coordinator = self.lab.coordinator(5, restart_strategy(self.lab.plan().config))
        make = self.coordinator._make_executor
        self.coordinator._make_executor = lambda job, plan: Failing(make(job, plan), failures, self.runs, after)

    def _build(self, env):
        source = env.from_source(SplitSource({"a": NUMBERS}), WatermarkStrategy.no_watermarks(), "numbers")
        source.key_by(lambda n: n % 3).map(lambda n: n * 10).sink_to(LedgerSink(self.name))

    def run(self):
        try:
            self.coordinator.run()
        finally:
            self.lab.close()
        return sorted(LEDGERS[self.name].values)

    @property
    def exceptions(self):
        return shapes.exceptions(self.lab.metrics.snapshot())


def lost(number):
    return HoldfastError(f"executor {number} lost")


def fast(kind, **settings):
    return {
        "restart-strategy.type": kind,
        **{f"restart-strategy.{kind}.{k.replace('_', '-')}": v for k, v in settings.items()},
    }


RESULT = [n * 10 for n in NUMBERS]


def test_without_restarts_the_first_failure_ends_the_job_and_is_reported(tmp_path, request):
    job = Job(tmp_path, request, {"restart-strategy.type": "none"}, {2: lost(1)})
    with pytest.raises(HoldfastError, match="executor 1 lost"):
        job.run()
    assert len(job.runs) == 2
    assert [entry["stacktrace"] for entry in job.exceptions["exceptionHistory"]["entries"]] == ["executor 1 lost"]


@pytest.mark.parametrize("after", [False, True], ids=["before the work", "after the work"])
def test_fixed_delay_restarts_in_place_and_every_record_counts_once(tmp_path, request, after):
    settings = fast("fixed-delay", attempts="2", delay="1 ms")
    job = Job(tmp_path, request, settings, {2: lost(1), 3: lost(2)}, after)
    assert job.run() == RESULT
    assert job.runs[:4] == [0, 0, 1, 2]


def test_fixed_delay_gives_up_after_its_attempts_and_says_why(tmp_path, request):
    settings = fast("fixed-delay", attempts="2", delay="1 ms")
    job = Job(tmp_path, request, settings, {n: ValueError(f"failure {n}") for n in range(2, 9)})
    with pytest.raises(JobFailed, match=r"2 restarts have been made.*fixed-delay\.attempts.*failure 4") as caught:
        job.run()
    assert isinstance(caught.value.__cause__, ValueError)
    told = [entry["stacktrace"] for entry in job.exceptions["exceptionHistory"]["entries"]]
    assert told == ["failure 4", "failure 3", "failure 2"]


def test_failure_rate_restarts_while_failures_are_rare_and_gives_up_otherwise(tmp_path, request):
    settings = fast("failure-rate", max_failures_per_interval="2", failure_rate_interval="10 min", delay="1 ms")
    job = Job(tmp_path, request, settings, {1: ValueError("first"), 3: ValueError("second"), 5: ValueError("third")})
    with pytest.raises(JobFailed, match=r"3 failures within.*max-failures-per-interval.*third"):
        job.run()


def test_exponential_delay_is_the_default_and_waits_longer_each_time(tmp_path, request):
    settings = {
        f"restart-strategy.exponential-delay.{k}": v for k, v in (("initial-backoff", "1 ms"), ("max-backoff", "3 ms"))
    }
    settings["restart-strategy.exponential-delay.jitter-factor"] = "0"
    settings["restart-strategy.exponential-delay.backoff-multiplier"] = "2"
    job = Job(tmp_path, request, settings, {n: lost(n) for n in range(1, 7)})
    delays = []
    carry_out = job.coordinator._carry_out

    def carrying_out(instruction):
        if isinstance(instruction, Delay):
            delays.append(round(1000 * instruction.seconds))
        return carry_out(instruction)

    job.coordinator._carry_out = carrying_out
    assert job.run() == RESULT
    assert delays == [1, 2, 3, 3, 3, 3]


def test_a_failure_is_in_the_log_with_its_task_and_the_time_until_the_restart(tmp_path, request, caplog):
    caplog.set_level(logging.WARNING, "holdfast")
    job = Job(tmp_path, request, fast("fixed-delay", attempts="9", delay="1 ms"), {2: lost(7)})
    job.run()
    assert any("restart in 0.0 s" in r.message and "executor 7 lost" in r.message for r in caplog.records)


def test_the_users_error_names_task_operator_and_record_everywhere(tmp_path, request, caplog):
    def build(env):
        source = env.from_source(SplitSource({"a": NUMBERS}), WatermarkStrategy.no_watermarks(), "numbers")
        divided = source.key_by(lambda n: n % 3).map(lambda n: 1 // (n - 7)).name("divide").uid("divide-uid")
        divided.sink_to(LedgerSink(request.node.name))

    caplog.set_level(logging.WARNING, "holdfast")
    job = Job(tmp_path, request, fast("fixed-delay", attempts="2", delay="1 ms"), {}, build=build)
    with pytest.raises(UserCodeError) as caught:
        job.run()
    latest = job.exceptions["exceptionHistory"]["entries"][0]
    for text in (str(caught.value), latest["stacktrace"]):
        assert "ZeroDivisionError" in text
        assert "divide-uid" in text
        assert "split a, record 6" in text
    assert latest["taskName"].startswith("divide")
    assert any("divide" in r.message and "ZeroDivisionError" in r.message for r in caplog.records)
    assert len(job.exceptions["exceptionHistory"]["entries"]) >= 3


def test_after_a_failing_commit_the_job_restarts_from_its_checkpoint_without_duplicates(tmp_path, request):
    from engine.inprocess import COMMIT_HOOK

    failures = iter([False, True, False, True])

    def hook(point):
        if point == "before commit" and next(failures, False):
            raise ConnectionError("the sink is away")

    job = Job(tmp_path, request, fast("fixed-delay", attempts="5", delay="1 ms"), {})
    COMMIT_HOOK[job.name] = hook
    try:
        assert job.run() == RESULT
    finally:
        COMMIT_HOOK.pop(job.name)
    assert any("the sink is away" in e["stacktrace"] for e in job.exceptions["exceptionHistory"]["entries"])
