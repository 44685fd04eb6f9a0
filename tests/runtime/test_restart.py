from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError, Fenced, IncompatibleState, InputLost
from holdfast.runtime.protocol.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    GiveUp,
    NoRestart,
    Restart,
    RestartState,
    decide,
    is_bug,
    restart_strategy,
)

FAILURE = RuntimeError("x")
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


def answers(strategy, times, state=None):
    """The delay after each failure, None for giving up."""
    state = state or RestartState()
    found = []
    for now in times:
        decision, state = decide(strategy, state, now, FAILURE)
        found.append(decision.delay_ms if isinstance(decision, Restart) else None)
    return found


def exponential(**settings):
    return ExponentialDelay(**{"uniform": lambda low, high: 0.0, **settings})


def test_none_gives_up_at_once():
    assert answers(NoRestart(), [0]) == [None]


def test_fixed_delay_restarts_so_often_and_no_more():
    assert answers(FixedDelay(attempts=2, delay_ms=500), [0, 1, HOUR * 9, HOUR * 10]) == [500, 500, None, None]


def test_failure_rate_gives_up_when_an_interval_has_too_many():
    rate = FailureRate(max_failures=2, interval_ms=MINUTE, delay_ms=7)
    assert answers(rate, [0, 40 * SECOND, 70 * SECOND, 80 * SECOND]) == [7, 7, 7, None]


def test_exponential_delay_grows_to_its_maximum():
    assert answers(exponential(max_ms=4000, multiplier=2.0), range(5)) == [1000, 2000, 4000, 4000, 4000]


def test_exponential_delay_starts_over_after_calm():
    strategy = exponential(multiplier=2.0, reset_threshold_ms=HOUR)
    assert answers(strategy, [0, 1, 2, 3 + HOUR, 2 * HOUR + 7000]) == [1000, 2000, 4000, 8000, 16000]
    assert answers(strategy, [0, 1, 2 + HOUR + 2000, 3 + HOUR + 2000]) == [1000, 2000, 1000, 2000]


def test_exponential_delay_gives_up_after_its_attempts_and_calm_renews_them():
    strategy = exponential(attempts=2)
    assert answers(strategy, [0, 1, 2]) == [1000, 1500, None]
    assert answers(strategy, [0, 1, 2 * HOUR, 2 * HOUR + 1]) == [1000, 1500, 1000, 1500]


@given(st.floats(-1, 1), st.integers(1, 60))
def test_jitter_keeps_the_delay_within_its_bounds(draw, failures):
    strategy = ExponentialDelay(jitter=0.5, uniform=lambda low, high: draw * high)
    for delay in answers(strategy, range(failures)):
        assert 1000 <= delay <= 60_000


@pytest.mark.parametrize("failure", [Fenced("x"), IncompatibleState("x"), InputLost("x")])
def test_failures_that_a_restart_cannot_fix_end_the_job_under_every_strategy(failure):
    decision, _ = decide(exponential(), RestartState(), 0, failure)
    assert isinstance(decision, GiveUp)
    assert type(failure).__name__ in decision.reason


def test_giving_up_names_the_key_that_decides():
    decision, _ = decide(FixedDelay(attempts=0), RestartState(), 0, FAILURE)
    assert isinstance(decision, GiveUp)
    assert "restart-strategy.fixed-delay.attempts" in decision.reason


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ExponentialDelay()),
        ({"restart-strategy": "none"}, NoRestart()),
        ({"restart-strategy.type": "off"}, NoRestart()),
        (
            {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "2 s"},
            FixedDelay(1, 2000),
        ),
        (
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": "3",
                "restart-strategy.failure-rate.failure-rate-interval": "5 min",
                "restart-strategy.failure-rate.delay": "10 s",
            },
            FailureRate(3, 5 * MINUTE, 10 * SECOND),
        ),
        (
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.initial-backoff": "10 s",
                "restart-strategy.exponential-delay.max-backoff": "2 min",
                "restart-strategy.exponential-delay.backoff-multiplier": "2.0",
                "restart-strategy.exponential-delay.reset-backoff-threshold": "10 min",
                "restart-strategy.exponential-delay.jitter-factor": "0.2",
                "restart-strategy.exponential-delay.attempts-before-reset-backoff": "8",
            },
            ExponentialDelay(10 * SECOND, 2 * MINUTE, 2.0, 10 * MINUTE, 0.2, 8),
        ),
    ],
)
def test_flinks_keys_choose_the_strategy(settings, expected):
    assert restart_strategy(settings) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"restart-strategy.type": "sometimes"}, "none, fixed-delay, failure-rate, exponential-delay"),
        ({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "-1"}, "at least 0"),
        ({"restart-strategy.exponential-delay.backoff-multiplier": "0.5"}, "at least 1"),
        ({"restart-strategy.exponential-delay.jitter-factor": "2"}, "between 0 and 1"),
        ({"restart-strategy.exponential-delay.max-backoff": "1 ms"}, "at least 1000"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        restart_strategy(settings)


def raised_in(module, error="KeyError('broker')"):
    """The error, as code of this module raises it when Holdfast calls it."""
    place = {"__name__": module}
    exec(f"def call():\n    raise {error}", place)
    try:
        exec("call()", {"__name__": "holdfast.runtime.driver.coordinator", "call": place["call"]})
    except Exception as raised:
        return raised
    raise AssertionError


def an_error_in_holdfasts_own_code_is_a_bug():
    assert is_bug(raised_in("holdfast.connectors.kafka.source.enumerator"))
    assert is_bug(raised_in("holdfast", "AssertionError()"))


@pytest.mark.parametrize("module", ["confluent_kafka.admin", "holdfast_plugin", "my_connector"])
def the_same_error_in_a_client_library_or_a_connector_of_the_user_is_no_bug(module):
    assert not is_bug(raised_in(module))


def a_failure_that_holdfast_reports_is_no_bug():
    assert not is_bug(raised_in("holdfast.runtime.task.task", "RuntimeError('the slot is gone')"))


modules = st.lists(
    st.sampled_from(["holdfast", "holdfast.runtime.task.task", "holdfast.connectors.kafka.cluster", "holdfast_plugin"])
    | st.sampled_from(["confluent_kafka.admin", "kafka.net.manager", "boto3", "pyspark", "__main__", "holdfastx.y"]),
    min_size=1,
    max_size=5,
)
kinds = st.sampled_from(
    [KeyError, TypeError, AttributeError, IndexError, AssertionError, OSError, RuntimeError, TimeoutError]
)


@given(modules, kinds)
def test_only_errors_of_mistakes_and_only_where_holdfasts_own_code_raises_them_are_bugs(names, kind):
    """However deep the calls are nested: Holdfast calls a library, which may call Holdfast back."""

    def broken():
        raise kind("x")

    call = broken
    for name in reversed(names):
        place = {"__name__": name, "inner": call, "kind": kind}
        body = "raise kind('x')" if call is broken else "inner()"
        exec(f"def call():\n    {body}", place)
        call = place["call"]
    with pytest.raises(kind) as raised:
        call()
    mistake = kind in (KeyError, TypeError, AttributeError, IndexError, AssertionError)
    assert is_bug(raised.value) == (mistake and names[-1].partition(".")[0] == "holdfast")


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("fixed-delay", {"attempts": 0, "delay": 0}),
        ("failure-rate", {"max-failures-per-interval": 1, "failure-rate-interval": 1, "delay": 0}),
        (
            "exponential-delay",
            {"initial-backoff": 1, "backoff-multiplier": 1.0, "reset-backoff-threshold": 1, "jitter-factor": 0.0},
        ),
    ],
)
def the_least_settings_of_a_strategy_are_taken_and_smaller_ones_refused(kind, least):
    given = {"restart-strategy.type": kind}
    given |= {f"restart-strategy.{kind}.{name}": str(value) for name, value in least.items()}
    restart_strategy(given)
    for name, value in least.items():
        option = f"restart-strategy.{kind}.{name}"
        smaller = value - 1 if isinstance(value, int) else value - 0.1
        with pytest.raises(ConfigurationError, match=option):
            restart_strategy({**given, option: str(smaller)})
