"""Functions of PySpark's ``applyInPandasWithState``: a state and a timeout per key, on a processor's state and timers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from holdfast.errors import ConfigurationError
from holdfast.functions.process_functions import KeyedProcessFunction
from holdfast.spark.pandas_processors import PandasProcessorFunction
from holdfast.spark.processor_handle import EVENT_TIME, NONE, PROCESSING_TIME

__all__ = ["TIME_MODES", "GroupFunction", "GroupProcessor", "StateOfGroup"]

TIME_MODES = {"NoTimeout": "None", "ProcessingTimeTimeout": "ProcessingTime", "EventTimeTimeout": "EventTime"}
"""The time mode of each ``timeoutConf``."""


class StateOfGroup:
    """PySpark's ``GroupState``: the state and the timeout of a key, within one call."""

    NO_TIMESTAMP = -1

    def __init__(self, value: tuple[Any, ...] | None, time_mode: str, times: TimerValues, timed_out: bool) -> None:
        self._value = value
        self._time_mode = time_mode
        self._times = times
        self._timed_out = timed_out
        self.timeout: int | None = None
        """The time after which the key times out, if the call has set one."""
        self.changed = False
        """Whether the call has updated or removed the state."""

    @property
    def exists(self) -> bool:
        """Whether the key has a state."""
        return self._value is not None

    @property
    def get(self) -> tuple[Any, ...]:
        """The state.

        Raises:
            ValueError: there is none.
        """
        if self._value is None:
            raise ValueError("get of a GroupState that does not exist; ask `exists`, or take `getOption`")
        return self._value

    @property
    def getOption(self) -> tuple[Any, ...] | None:
        """The state; None without one."""
        return self._value

    @property
    def hasTimedOut(self) -> bool:
        """Whether this call is one of the timeout."""
        return self._timed_out

    @property
    def oldTimeoutTimestamp(self) -> int:
        """-1, as in PySpark, where each call begins without a timeout."""
        return self.NO_TIMESTAMP

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Set the state; NumPy's and pandas' values become Python's."""
        if newValue is None:
            raise TypeError("update() of a GroupState takes a tuple, not None; remove() removes the state")
        self._value = tuple(map(_plain, newValue))
        self.changed = True

    def remove(self) -> None:
        """Remove the state."""
        self._value = None
        self.changed = True

    def setTimeoutDuration(self, durationMs: int) -> None:
        """Let the key time out when it has had no call for so long."""
        self._needs(PROCESSING_TIME, "setTimeoutDuration()", "ProcessingTimeTimeout")
        if isinstance(durationMs, bool) or not isinstance(durationMs, int) or durationMs <= 0:
            raise ValueError(f"setTimeoutDuration() takes a positive number of milliseconds, not {durationMs!r}")
        self.timeout = self._times.getCurrentProcessingTimeInMs() + durationMs

    def setTimeoutTimestamp(self, timestampMs: int | datetime.datetime) -> None:
        """Let the key time out when the watermark has passed this time, in ms."""
        self._needs(EVENT_TIME, "setTimeoutTimestamp()", "EventTimeTimeout")
        time = int(timestampMs.timestamp() * 1000) if isinstance(timestampMs, datetime.datetime) else int(timestampMs)
        watermark = self._times.getCurrentWatermarkInMs()
        if time <= 0 or time < watermark:
            raise ValueError(f"setTimeoutTimestamp({time}) is not positive, or earlier than the watermark, {watermark}")
        self.timeout = time

    def _needs(self, time_mode: str, what: str, timeout: str) -> None:
        if self._time_mode != time_mode:
            raise ConfigurationError(f"{what} needs timeoutConf {timeout}")

    def getCurrentWatermarkMs(self) -> int:
        """The watermark, as Spark counts it; 0 before the first.

        Raises:
            ConfigurationError: ``timeoutConf`` is another than EventTimeTimeout.
        """
        self._needs(EVENT_TIME, "getCurrentWatermarkMs()", "EventTimeTimeout")
        return int(self._times.getCurrentWatermarkInMs())

    def getCurrentProcessingTimeMs(self) -> int:
        """The clock."""
        return int(self._times.getCurrentProcessingTimeInMs())

    def __str__(self) -> str:
        return f"GroupState({'<undefined>' if self._value is None else self._value})"


def _plain(value: Any) -> Any:
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


class GroupProcessor(StatefulProcessor):  # type: ignore[misc]
    """Calls a function of ``applyInPandasWithState``.

    Its timeout is a timer, one millisecond later: a key times out when the watermark or the clock is behind the time.
    """

    def __init__(self, func: Callable[..., Iterable[Any]], state_schema: Any, time_mode: str) -> None:
        self.func = func
        self.state_schema = state_schema
        self.time_mode = time_mode.lower()
        self.names: list[str] = []

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self.handle = handle
        self.state = handle.getValueState("state", self.state_schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        """Call the function with the rows of a key."""
        frames = list(rows)
        self.names = list(frames[0].columns)
        return self._call(key, iter(frames), timerValues, timed_out=False)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Any]:
        """Call the function with an empty DataFrame, as Spark does."""
        return self._call(key, iter([pandas.DataFrame(columns=self.names)]), timerValues, timed_out=True)

    def _call(self, key: Any, frames: Iterator[Any], times: TimerValues, *, timed_out: bool) -> Iterator[Any]:
        state = StateOfGroup(self.state.get(), self.time_mode, times, timed_out)
        results = self.func(key, frames, state)
        if isinstance(results, pandas.DataFrame) or not hasattr(results, "__iter__"):
            raise TypeError(f"the function must return or yield pandas.DataFrames, not {results!r:.99}")
        yield from results
        if state.changed:
            value = state.getOption
            if value is None:
                self.state.clear()
            else:
                self.state.update(value)
        if self.time_mode == NONE:
            return
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        if state.timeout is not None:
            self.handle.registerTimer(state.timeout + 1)

    def close(self) -> None:
        """Do nothing."""


class GroupFunction(PandasProcessorFunction):
    """The function of a keyed stream; the clock is known without a timeout, too."""

    def _times(self, ctx: KeyedProcessFunction.Context[Any]) -> TimerValues:
        if self._mode == NONE:
            return TimerValues(ctx.timer_service().current_processing_time(), -1)
        return super()._times(ctx)
