"""Suppressed and BufferConfig: when `KTable.suppress` emits a row, and how much it may hold until then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.common.time import Span
from holdfast.errors import ConfigurationError
from holdfast.table.windows import milliseconds

__all__ = ["BufferConfig", "EagerBufferConfig", "StrictBufferConfig", "Suppressed"]


@dataclass(frozen=True)
class _Bound:
    """How much a key group may hold."""

    records: int | None = None
    bytes: int | None = None

    def with_records(self, limit: int) -> _Bound:
        return replace(self, records=_limit(limit, "records"))

    def with_bytes(self, limit: int) -> _Bound:
        return replace(self, bytes=_limit(limit, "bytes"))


def _limit(limit: int, unit: str) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ConfigurationError(f"a BufferConfig is bounded by a number of {unit} that is not negative, not by {limit!r}.")
    return limit


@dataclass(frozen=True)
class StrictBufferConfig:
    """A buffer whose rows are never emitted early: without a bound, or one whose job fails when it is full."""

    bound: _Bound

    def with_max_records(self, record_limit: int) -> StrictBufferConfig:
        """Bound the number of rows of a key group."""
        return StrictBufferConfig(self.bound.with_records(record_limit))

    def with_max_bytes(self, byte_limit: int) -> StrictBufferConfig:
        """Bound the size of a key group's rows, as they are stored, in bytes."""
        return StrictBufferConfig(self.bound.with_bytes(byte_limit))

    def with_no_bound(self) -> StrictBufferConfig:
        """Remove the bounds."""
        return StrictBufferConfig(_Bound())

    def shut_down_when_full(self) -> StrictBufferConfig:
        """Fail the job when a key group holds more; so it is already."""
        return self

    def emit_early_when_full(self) -> EagerBufferConfig:
        """Emit the oldest rows of a key group when it holds more."""
        return EagerBufferConfig(self.bound)


@dataclass(frozen=True)
class EagerBufferConfig:
    """A bounded buffer that emits its oldest rows when it is full."""

    bound: _Bound

    def with_max_records(self, record_limit: int) -> EagerBufferConfig:
        """Bound the number of rows of a key group."""
        return EagerBufferConfig(self.bound.with_records(record_limit))

    def with_max_bytes(self, byte_limit: int) -> EagerBufferConfig:
        """Bound the size of a key group's rows, as they are stored, in bytes."""
        return EagerBufferConfig(self.bound.with_bytes(byte_limit))

    def with_no_bound(self) -> StrictBufferConfig:
        """Remove the bounds."""
        return StrictBufferConfig(_Bound())

    def shut_down_when_full(self) -> StrictBufferConfig:
        """Fail the job when a key group holds more."""
        return StrictBufferConfig(self.bound)

    def emit_early_when_full(self) -> EagerBufferConfig:
        """Emit the oldest rows of a key group when it holds more; so it does already."""
        return self


class BufferConfig:
    """How many rows `KTable.suppress` may hold. A bound is that of each key group, as Kafka Streams' is of each partition.

    Examples:
        >>> BufferConfig.max_records(1_000).with_max_bytes(1_000_000).shut_down_when_full().bound
        _Bound(records=1000, bytes=1000000)
    """

    @staticmethod
    def unbounded() -> StrictBufferConfig:
        """A buffer without a bound."""
        return StrictBufferConfig(_Bound())

    @staticmethod
    def max_records(record_limit: int) -> EagerBufferConfig:
        """A buffer of so many rows for each key group, which emits the oldest ones early when it is full."""
        return EagerBufferConfig(_Bound().with_records(record_limit))

    @staticmethod
    def max_bytes(byte_limit: int) -> EagerBufferConfig:
        """A buffer of so many bytes for each key group, which emits the oldest rows early when it is full."""
        return EagerBufferConfig(_Bound().with_bytes(byte_limit))


@dataclass(frozen=True)
class Suppressed:
    """When `KTable.suppress` emits the newest value of a row."""

    limit: int | None
    """The time limit in ms; None: until its window closes."""
    config: StrictBufferConfig | EagerBufferConfig

    @staticmethod
    def until_time_limit(
        time_to_wait_for_more_events: Span, buffer_config: StrictBufferConfig | EagerBufferConfig
    ) -> Suppressed:
        """Emit a row when event time is so far behind the first change that has not been emitted.

        Args:
            time_to_wait_for_more_events: The time limit, in event time; 0 emits each change at once.
            buffer_config: How many rows may be held, and what happens when there are more.
        """
        limit = milliseconds(time_to_wait_for_more_events, "time limit", "until_time_limit()")
        if not isinstance(buffer_config, StrictBufferConfig | EagerBufferConfig):
            raise TypeError(f"until_time_limit() takes a BufferConfig, not {buffer_config!r}.")
        return Suppressed(limit, buffer_config)

    @staticmethod
    def until_window_closes(buffer_config: StrictBufferConfig) -> Suppressed:
        """Emit a row of a windowed table once, when its window is closed.

        Args:
            buffer_config: How many rows may be held. When there are more, the job fails: none may be emitted early.
        """
        given: object = buffer_config
        if isinstance(given, EagerBufferConfig):
            raise ConfigurationError(
                "until_window_closes() emits final rows only, and its BufferConfig would emit rows early when it is full: "
                "add .shut_down_when_full(), or take BufferConfig.unbounded()."
            )
        if not isinstance(given, StrictBufferConfig):
            raise TypeError(f"until_window_closes() takes a BufferConfig, not {buffer_config!r}.")
        return Suppressed(None, buffer_config)
