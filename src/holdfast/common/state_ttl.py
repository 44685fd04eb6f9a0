"""StateTtlConfig, how long state lives after it was last written or read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.errors import ConfigurationError

__all__ = ["StateTtlConfig"]


class StateTtlConfig:
    """How long state lives. Values, list elements and map entries expire one by one, by the machine's clock."""

    class UpdateType(Enum):
        """What makes a value live on for another term; Disabled: it lives for ever."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether an expired value may be read as long as it has not been removed."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """By which clock values expire."""

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
        """Begin a configuration with the time that state lives."""
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """What makes a value live on for another term."""
        return self._update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Whether an expired value may be read as long as it has not been removed."""
        return self._state_visibility

    def get_ttl(self) -> Time:
        """How long state lives."""
        return self._ttl

    @property
    def ttl_ms(self) -> int:
        """How long state lives, in ms."""
        return self._ttl.to_milliseconds()

    @property
    def refresh_on_read(self) -> bool:
        """Whether reading a value makes it live on, too."""
        return self._update_type is StateTtlConfig.UpdateType.OnReadAndWrite

    @property
    def return_expired(self) -> bool:
        """Whether an expired value may be read as long as it has not been removed."""
        return self._state_visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp

    def get_ttl_time_characteristic(self) -> StateTtlConfig.TtlTimeCharacteristic:
        """By which clock values expire."""
        return self._ttl_time_characteristic

    def is_enabled(self) -> bool:
        """Whether values expire at all."""
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
            """Set what makes a value live on for another term."""
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Writing makes a value live on (the default)."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Reading makes a value live on, too."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Set whether an expired value may be read as long as it has not been removed."""
            self._visibility = state_visibility
            return self

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """An expired value may be read as long as it has not been removed."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """An expired value is never read (the default)."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Set by which clock values expire."""
            self._characteristic = ttl_time_characteristic
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Values expire by the machine's clock (the only way)."""
            return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Hint: leave expired values out of full snapshots."""
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.FULL_STATE_SCAN_SNAPSHOT] = strategies.EMPTY_STRATEGY
            return self

        def cleanup_incrementally(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> StateTtlConfig.Builder:
            """Hint: look for some expired values at each access."""
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
            """Hint: remove expired values only where they are met."""
            self._in_background = False
            return self

        def set_ttl(self, ttl: Time | Duration) -> StateTtlConfig.Builder:
            """Set how long state lives."""
            self._ttl = ttl
            return self

        def build(self) -> StateTtlConfig:
            """The configuration.

            Raises:
                ConfigurationError: the time is not positive.
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
            """The ways."""

            FULL_STATE_SCAN_SNAPSHOT = 0
            INCREMENTAL_CLEANUP = 1
            ROCKSDB_COMPACTION_FILTER = 2

        @dataclass(frozen=True)
        class CleanupStrategy:
            """One way, with its settings."""

        @dataclass(frozen=True)
        class EmptyCleanupStrategy(CleanupStrategy):
            """A way without settings."""

        @dataclass(frozen=True)
        class IncrementalCleanupStrategy(CleanupStrategy):
            """Look for some expired values at each access."""

            cleanup_size: int
            for_every_record: bool

            def get_cleanup_size(self) -> int:
                """How many values are looked at."""
                return self.cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                """Whether to do so for each record, too."""
                return self.for_every_record

        @dataclass(frozen=True)
        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            """Drop expired values when RocksDB compacts its files."""

            query_time_after_num_entries: int
            periodic_compaction_time: Duration

            def get_query_time_after_num_entries(self) -> int:
                """After how many values the clock is read again."""
                return self.query_time_after_num_entries

            def get_periodic_compaction_time(self) -> Duration:
                """After how long a file is compacted in any case."""
                return self.periodic_compaction_time

        EMPTY_STRATEGY: ClassVar[EmptyCleanupStrategy] = EmptyCleanupStrategy()

        strategies: dict[Strategies, CleanupStrategy] = field(default_factory=dict)
        cleanup_in_background: bool = True

        def is_cleanup_in_background(self) -> bool:
            """Whether expired values are removed before they are met."""
            return self.cleanup_in_background

        def in_full_snapshot(self) -> bool:
            """Whether full snapshots leave expired values out."""
            return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self.strategies

        def get_incremental_cleanup_strategy(self) -> CleanupStrategy | None:
            """The settings of incremental clean-up, if it was chosen."""
            return self.strategies.get(self.Strategies.INCREMENTAL_CLEANUP)

        def get_rocksdb_compact_filter_cleanup_strategy(self) -> CleanupStrategy | None:
            """The settings of clean-up in compactions, if it was chosen."""
            return self.strategies.get(self.Strategies.ROCKSDB_COMPACTION_FILTER)
