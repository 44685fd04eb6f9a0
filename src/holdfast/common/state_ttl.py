"""StateTtlConfig, the time-to-live of state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.errors import ConfigurationError

__all__ = ["StateTtlConfig"]


class StateTtlConfig:
    """Time-to-live of state. Values, list elements and map entries expire one by one, in processing time."""

    class UpdateType(Enum):
        """Which accesses renew a value's time-to-live; Disabled: values never expire."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether reads return expired values that are not removed yet."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The time domain in which values expire."""

        ProcessingTime = 0

    def __init__(
        self,
        update_type: StateTtlConfig.UpdateType,
        state_visibility: StateTtlConfig.StateVisibility,
        ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic,
        ttl: Time | Duration,
        cleanup_strategies: StateTtlConfig.CleanupStrategies,
    ) -> None:
        millis = to_milliseconds(ttl)
        if millis <= 0:
            raise ConfigurationError(f"the time-to-live of state must be positive, got {millis} ms")
        self._update_type = update_type
        self._state_visibility = state_visibility
        self._ttl_time_characteristic = ttl_time_characteristic
        self._ttl = Time.milliseconds(millis)
        self._cleanup_strategies = cleanup_strategies

    @staticmethod
    def new_builder(ttl: Time | Duration) -> StateTtlConfig.Builder:
        """Return a builder for this time-to-live."""
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """Which accesses renew a value's time-to-live."""
        return self._update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Whether reads return expired values that are not removed yet."""
        return self._state_visibility

    def get_ttl(self) -> Time:
        """The time-to-live."""
        return self._ttl

    @property
    def ttl_ms(self) -> int:
        """The time-to-live, in ms."""
        return self._ttl.to_milliseconds()

    @property
    def refresh_on_read(self) -> bool:
        """Whether reading a value renews its time-to-live too."""
        return self._update_type is StateTtlConfig.UpdateType.OnReadAndWrite

    @property
    def return_expired(self) -> bool:
        """Whether reads return expired values that are not removed yet."""
        return self._state_visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp

    def get_ttl_time_characteristic(self) -> StateTtlConfig.TtlTimeCharacteristic:
        """The time domain in which values expire."""
        return self._ttl_time_characteristic

    def is_enabled(self) -> bool:
        """Whether values expire."""
        return self._update_type is not StateTtlConfig.UpdateType.Disabled

    def get_cleanup_strategies(self) -> StateTtlConfig.CleanupStrategies:
        """The hints about when expired values are removed."""
        return self._cleanup_strategies

    def __repr__(self) -> str:
        return (
            f"StateTtlConfig(update_type={self._update_type.name}, state_visibility={self._state_visibility.name}, "
            f"ttl={self.ttl_ms} ms)"
        )

    class Builder:
        """Builds a `StateTtlConfig`."""

        def __init__(self, ttl: Time | Duration) -> None:
            self._ttl = ttl
            self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
            self._visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
            self._characteristic = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
            self._in_background = True
            self._strategies: dict[
                StateTtlConfig.CleanupStrategies.Strategies, StateTtlConfig.CleanupStrategies.CleanupStrategy
            ] = {}

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Set which accesses renew a value's time-to-live."""
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Renew the time-to-live on each write (the default)."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Renew the time-to-live on each write and each read."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Set whether reads return expired values that are not removed yet."""
            self._visibility = state_visibility
            return self

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Return expired values that are not removed yet."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Never return an expired value (the default)."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Set the time domain in which values expire."""
            self._characteristic = ttl_time_characteristic
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Expire values in processing time (the only time domain)."""
            return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Hint: leave expired values out of full snapshots."""
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.FULL_STATE_SCAN_SNAPSHOT] = strategies.EMPTY_STRATEGY
            return self

        def cleanup_incrementally(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> StateTtlConfig.Builder:
            """Hint: check some values for expiry at each access."""
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.INCREMENTAL_CLEANUP] = strategies.IncrementalCleanupStrategy(
                cleanup_size, run_cleanup_for_every_record
            )
            return self

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int, periodic_compaction_time: Duration | Time | None = None
        ) -> StateTtlConfig.Builder:
            """Hint: drop expired values when RocksDB compacts its files."""
            strategies = StateTtlConfig.CleanupStrategies
            period = None if periodic_compaction_time is None else to_milliseconds(periodic_compaction_time)
            self._strategies[strategies.Strategies.ROCKSDB_COMPACTION_FILTER] = (
                strategies.RocksdbCompactFilterCleanupStrategy(
                    query_time_after_num_entries, Duration.of_days(30) if period is None else Duration.of_millis(period)
                )
            )
            return self

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Hint: remove expired values only when they are read."""
            self._in_background = False
            return self

        def set_ttl(self, ttl: Time | Duration) -> StateTtlConfig.Builder:
            """Set the time-to-live."""
            self._ttl = ttl
            return self

        def build(self) -> StateTtlConfig:
            """Build the configuration.

            Raises:
                ConfigurationError: the time-to-live is not positive.
            """
            return StateTtlConfig(
                self._update_type,
                self._visibility,
                self._characteristic,
                self._ttl,
                StateTtlConfig.CleanupStrategies(dict(self._strategies), self._in_background),
            )

    @dataclass(frozen=True)
    class CleanupStrategies:
        """Hints about when expired values are removed; they never change what a program reads."""

        class Strategies(Enum):
            """The strategies."""

            FULL_STATE_SCAN_SNAPSHOT = 0
            INCREMENTAL_CLEANUP = 1
            ROCKSDB_COMPACTION_FILTER = 2

        @dataclass(frozen=True)
        class CleanupStrategy:
            """One strategy with its settings."""

        @dataclass(frozen=True)
        class EmptyCleanupStrategy(CleanupStrategy):
            """A strategy without settings."""

        @dataclass(frozen=True)
        class IncrementalCleanupStrategy(CleanupStrategy):
            """Check some values for expiry at each access."""

            cleanup_size: int
            for_every_record: bool

            def get_cleanup_size(self) -> int:
                """The number of values checked."""
                return self.cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                """Whether to check at each record, too."""
                return self.for_every_record

        @dataclass(frozen=True)
        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            """Drop expired values when RocksDB compacts its files."""

            query_time_after_num_entries: int
            periodic_compaction_time: Duration

            def get_query_time_after_num_entries(self) -> int:
                """The number of values after which the clock is read again."""
                return self.query_time_after_num_entries

            def get_periodic_compaction_time(self) -> Duration:
                """The time after which every file is compacted."""
                return self.periodic_compaction_time

        EMPTY_STRATEGY: ClassVar[EmptyCleanupStrategy] = EmptyCleanupStrategy()

        strategies: dict[Strategies, CleanupStrategy] = field(default_factory=dict)
        cleanup_in_background: bool = True

        def is_cleanup_in_background(self) -> bool:
            """Whether expired values are removed before they are read."""
            return self.cleanup_in_background

        def in_full_snapshot(self) -> bool:
            """Whether full snapshots omit expired values."""
            return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self.strategies

        def get_incremental_cleanup_strategy(self) -> CleanupStrategy | None:
            """The settings of incremental clean-up, if it was chosen."""
            return self.strategies.get(self.Strategies.INCREMENTAL_CLEANUP)

        def get_rocksdb_compact_filter_cleanup_strategy(self) -> CleanupStrategy | None:
            """The settings of clean-up in compactions, if it was chosen."""
            return self.strategies.get(self.Strategies.ROCKSDB_COMPACTION_FILTER)
