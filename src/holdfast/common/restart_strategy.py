"""RestartStrategies: whether, how often and how soon a failed job restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta

from holdfast.common.config_options import RestartOptions
from holdfast.common.config_values import format_duration
from holdfast.common.configuration import Configuration
from holdfast.errors import ConfigurationError

__all__ = ["RestartStrategies", "RestartStrategyConfiguration"]


@dataclass(frozen=True)
class RestartStrategyConfiguration(ABC):
    """The reaction to failures of a job."""

    @abstractmethod
    def get_description(self) -> str:
        """A description for logs and messages."""

    @abstractmethod
    def apply_to(self, configuration: Configuration) -> None:
        """Write the strategy to a configuration under Flink's keys."""


def _milliseconds(span: int | timedelta) -> int:
    return span // timedelta(milliseconds=1) if isinstance(span, timedelta) else int(span)


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigurationError(f"{name} must be at least {least}, got {value}")


class RestartStrategies:
    """Factory of restart strategies for ``env.set_restart_strategy``."""

    @dataclass(frozen=True)
    class NoRestartStrategyConfiguration(RestartStrategyConfiguration):
        """The first failure ends the job."""

        def get_description(self) -> str:
            """A description for logs and messages."""
            return "Restart deactivated."

        def apply_to(self, configuration: Configuration) -> None:
            """Write the strategy to a configuration under Flink's keys."""
            configuration.set(RestartOptions.TYPE, "none")

    @dataclass(frozen=True)
    class FixedDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
        """A number of restarts, each after the same delay."""

        restart_attempts: int
        delay_ms: int

        def get_restart_attempts(self) -> int:
            """The number of restarts before the job fails."""
            return self.restart_attempts

        def get_delay_between_attempts_interval(self) -> timedelta:
            """The delay before each restart."""
            return timedelta(milliseconds=self.delay_ms)

        def get_description(self) -> str:
            """A description for logs and messages."""
            return f"Restart with fixed delay ({self.delay_ms} ms). #{self.restart_attempts} restart attempts."

        def apply_to(self, configuration: Configuration) -> None:
            """Write the strategy to a configuration under Flink's keys."""
            configuration.set(RestartOptions.TYPE, "fixed-delay")
            configuration.set(RestartOptions.FIXED_DELAY_ATTEMPTS, self.restart_attempts)
            configuration.set(RestartOptions.FIXED_DELAY_DELAY, format_duration(self.delay_ms))

    @dataclass(frozen=True)
    class FailureRateRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Restarts until an interval has too many failures."""

        max_failure_rate: int
        failure_interval_ms: int
        delay_ms: int

        def get_max_failure_rate(self) -> int:
            """The number of failures that an interval may have."""
            return self.max_failure_rate

        def get_failure_interval(self) -> timedelta:
            """The interval in which failures are counted."""
            return timedelta(milliseconds=self.failure_interval_ms)

        def get_delay_between_attempts_interval(self) -> timedelta:
            """The delay before each restart."""
            return timedelta(milliseconds=self.delay_ms)

        def get_description(self) -> str:
            """A description for logs and messages."""
            return (
                f"Failure rate restart with maximum of {self.max_failure_rate} failures within "
                f"{self.failure_interval_ms} ms and fixed delay {self.delay_ms} ms."
            )

        def apply_to(self, configuration: Configuration) -> None:
            """Write the strategy to a configuration under Flink's keys."""
            configuration.set(RestartOptions.TYPE, "failure-rate")
            configuration.set(RestartOptions.FAILURE_RATE_MAX, self.max_failure_rate)
            configuration.set(RestartOptions.FAILURE_RATE_INTERVAL, format_duration(self.failure_interval_ms))
            configuration.set(RestartOptions.FAILURE_RATE_DELAY, format_duration(self.delay_ms))

    @dataclass(frozen=True)
    class FallbackRestartStrategyConfiguration(RestartStrategyConfiguration):
        """The default strategy, used when the program sets none."""

        def get_description(self) -> str:
            """A description for logs and messages."""
            return "Cluster level default restart strategy"

        def apply_to(self, configuration: Configuration) -> None:
            """Write the strategy to a configuration under Flink's keys."""
            configuration.remove_config(RestartOptions.TYPE.key)

    @staticmethod
    def no_restart() -> RestartStrategies.NoRestartStrategyConfiguration:
        """The first failure ends the job."""
        return RestartStrategies.NoRestartStrategyConfiguration()

    @staticmethod
    def fall_back_restart() -> RestartStrategies.FallbackRestartStrategyConfiguration:
        """The default strategy, used when the program sets none."""
        return RestartStrategies.FallbackRestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: int | timedelta
    ) -> RestartStrategies.FixedDelayRestartStrategyConfiguration:
        """Restart a fixed number of times, each after the same delay (ms).

        Raises:
            ConfigurationError: a number is negative.
        """
        delay = _milliseconds(delay_between_attempts)
        _check("restart_attempts", restart_attempts, 0)
        _check("delay_between_attempts", delay, 0)
        return RestartStrategies.FixedDelayRestartStrategyConfiguration(restart_attempts, delay)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: int | timedelta, delay_interval: int | timedelta
    ) -> RestartStrategies.FailureRateRestartStrategyConfiguration:
        """Restart after ``delay_interval`` (ms) unless an interval (ms) has more failures than ``failure_rate``.

        Raises:
            ConfigurationError: a number is not positive, or the delay negative.
        """
        interval, delay = _milliseconds(failure_interval), _milliseconds(delay_interval)
        _check("failure_rate", failure_rate, 1)
        _check("failure_interval", interval, 1)
        _check("delay_interval", delay, 0)
        return RestartStrategies.FailureRateRestartStrategyConfiguration(failure_rate, interval, delay)
