"""Restart strategies: whether a failed job starts again, and when. They are Flink's four, with Flink's configuration keys.

Each is a pure state machine: `decide` takes its state, the time and the failure, and returns the decision and the next
state. The coordinator waits, restarts and logs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from holdfast.common.config_options import ConfigOption, RestartOptions
from holdfast.common.configuration import Configuration
from holdfast.errors import ConfigurationError, Fenced, IncompatibleState, InputLost, SparkGone

__all__ = [
    "Decision",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "GiveUp",
    "NoRestart",
    "Restart",
    "RestartState",
    "RestartStrategy",
    "decide",
    "is_bug",
    "restart_strategy",
]

N = TypeVar("N", int, float)
_ENDLESS = 2**31 - 1
"""Flink's Integer.MAX_VALUE: the number of attempts that means no limit."""
_HOPELESS = (ConfigurationError, Fenced, IncompatibleState, InputLost, SparkGone)
"""Failures that always end the job: a restart cannot fix them, or another driver owns the job."""


_BUGS = (AttributeError, NameError, ImportError, AssertionError, TypeError, KeyError, IndexError)
_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class RestartState:
    """The memory of a strategy; a job starts with ``RestartState()``."""

    restarts: int = 0
    """Restarts since the start, or since the backoff was last reset."""
    backoff_ms: float = 0.0
    """The latest backoff without its jitter."""
    failures: tuple[int, ...] = ()
    """Times of the failures that still count, in ms, in ascending order."""


@dataclass(frozen=True)
class Restart:
    """Restart after a delay."""

    delay_ms: int


@dataclass(frozen=True)
class GiveUp:
    """End the job."""

    reason: str
    """The reason, for the final error."""


Decision = Restart | GiveUp


class RestartStrategy(Protocol):
    """Decides what to do about a failure."""

    def next(self, state: RestartState, now_ms: int) -> tuple[Decision, RestartState]:
        """Decide about a failure at ``now_ms``; returns the decision and the next state."""


@dataclass(frozen=True)
class NoRestart:
    """The first failure ends the job."""

    def next(self, state: RestartState, now_ms: int) -> tuple[Decision, RestartState]:
        """Decide about a failure."""
        return GiveUp("the restart strategy is 'none'"), state


@dataclass(frozen=True)
class FixedDelay:
    """A limited number of restarts, each after the same delay."""

    attempts: int = 1
    delay_ms: int = 1000

    def next(self, state: RestartState, now_ms: int) -> tuple[Decision, RestartState]:
        """Decide about a failure."""
        if state.restarts >= self.attempts:
            return GiveUp(
                f"{state.restarts} restarts have been made, {RestartOptions.FIXED_DELAY_ATTEMPTS.key} allows no more"
            ), state
        return Restart(self.delay_ms), replace(state, restarts=state.restarts + 1)


@dataclass(frozen=True)
class FailureRate:
    """Restarts as long as no interval has more failures than allowed."""

    max_failures: int = 1
    interval_ms: int = 60_000
    delay_ms: int = 1000

    def next(self, state: RestartState, now_ms: int) -> tuple[Decision, RestartState]:
        """Decide about a failure."""
        recent = (*(at for at in state.failures if now_ms - at <= self.interval_ms), now_ms)
        after = replace(state, failures=recent, restarts=state.restarts + 1)
        if len(recent) > self.max_failures:
            return GiveUp(
                f"{len(recent)} failures within {self.interval_ms} ms; {RestartOptions.FAILURE_RATE_MAX.key} "
                f"allows {self.max_failures}"
            ), after
        return Restart(self.delay_ms), after


@dataclass(frozen=True)
class ExponentialDelay:
    """Restarts after a growing delay; it is reset after a long enough run without a failure."""

    initial_ms: int = 1000
    max_ms: int = 60_000
    multiplier: float = 1.5
    reset_threshold_ms: int = 3_600_000
    jitter: float = 0.1
    attempts: int = _ENDLESS
    uniform: Callable[[float, float], float] = field(default=random.SystemRandom().uniform, compare=False)
    """Draws the jitter; tests replace it."""

    def next(self, state: RestartState, now_ms: int) -> tuple[Decision, RestartState]:
        """Decide about a failure."""
        # The job has run only since the end of the backoff, so the threshold counts from there.
        if state.failures and now_ms - state.failures[-1] >= self.reset_threshold_ms + state.backoff_ms:
            state = RestartState()
        if state.restarts >= self.attempts:
            return GiveUp(
                f"{state.restarts} restarts have been made without {self.reset_threshold_ms} ms of calm; "
                f"{RestartOptions.EXPONENTIAL_ATTEMPTS.key} allows no more"
            ), state
        backoff = min(state.backoff_ms * self.multiplier, self.max_ms) if state.restarts else float(self.initial_ms)
        jittered = backoff + self.uniform(-self.jitter, self.jitter) * backoff
        delay = round(min(max(jittered, self.initial_ms), self.max_ms))
        return Restart(delay), RestartState(state.restarts + 1, backoff, (now_ms,))


def is_bug(failure: BaseException) -> bool:
    """Whether the error is a bug in Holdfast, which a restart would meet again.

    The innermost frame decides: a restart may cure the same error in a client library or a user's connector.
    """
    if not isinstance(failure, _BUGS):
        return False
    raised_by = ""
    trace = failure.__traceback__
    while trace is not None:
        raised_by = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
    return raised_by.partition(".")[0] == _PACKAGE


def decide(
    strategy: RestartStrategy, state: RestartState, now_ms: int, failure: BaseException
) -> tuple[Decision, RestartState]:
    """Decide about a failure of the job.

    Args:
        strategy: The strategy of the job.
        state: The state after the previous decision; ``RestartState()`` at first.
        now_ms: The time of the failure by a monotonic clock, in ms.
        failure: The failure. Some failures end the job under every strategy.

    Returns:
        The decision and the next state.
    """
    if isinstance(failure, _HOPELESS):
        return GiveUp(f"a restart cannot help against {type(failure).__name__}"), state
    return strategy.next(state, now_ms)


def restart_strategy(settings: Mapping[str, str]) -> RestartStrategy:
    """The strategy configured by ``restart-strategy.type``; exponential-delay by default.

    >>> restart_strategy({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "5"})
    FixedDelay(attempts=5, delay_ms=1000)

    Raises:
        ConfigurationError: the type is unknown or a number is out of its range.
    """
    config = Configuration.from_dict(settings)
    kind = (config.get(RestartOptions.TYPE) or "exponential-delay").strip().lower()
    if kind in ("none", "off", "disable"):
        return NoRestart()
    if kind in ("fixed-delay", "fixeddelay"):
        return FixedDelay(
            _at_least(config, RestartOptions.FIXED_DELAY_ATTEMPTS, 0),
            _at_least(config, RestartOptions.FIXED_DELAY_DELAY, 0),
        )
    if kind in ("failure-rate", "failurerate"):
        return FailureRate(
            _at_least(config, RestartOptions.FAILURE_RATE_MAX, 1),
            _at_least(config, RestartOptions.FAILURE_RATE_INTERVAL, 1),
            _at_least(config, RestartOptions.FAILURE_RATE_DELAY, 0),
        )
    if kind in ("exponential-delay", "exponentialdelay"):
        initial = _at_least(config, RestartOptions.EXPONENTIAL_INITIAL, 1)
        jitter = _at_least(config, RestartOptions.EXPONENTIAL_JITTER, 0.0)
        if jitter > 1:
            raise ConfigurationError(f"{RestartOptions.EXPONENTIAL_JITTER.key} is {jitter}; it is between 0 and 1")
        return ExponentialDelay(
            initial,
            _at_least(config, RestartOptions.EXPONENTIAL_MAX, initial),
            _at_least(config, RestartOptions.EXPONENTIAL_MULTIPLIER, 1.0),
            _at_least(config, RestartOptions.EXPONENTIAL_RESET, 1),
            jitter,
            _at_least(config, RestartOptions.EXPONENTIAL_ATTEMPTS, 1),
        )
    raise ConfigurationError(
        f"{RestartOptions.TYPE.key} is {kind!r}; it is one of none, fixed-delay, failure-rate, exponential-delay"
    )


def _at_least(config: Configuration, option: ConfigOption[N], least: N) -> N:
    value = config.get(option)
    if value < least:
        raise ConfigurationError(f"{option.key} is {value}; it must be at least {least}")
    return value
