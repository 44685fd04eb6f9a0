"""Timestamps and watermarks in the middle of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common.formats.columns import Fields, latest
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.watermark_strategy import timestamps_only
from holdfast.runtime.plan.event_time import GeneratorState, LateRecords, Run, pieces, watermark_behind
from holdfast.runtime.plan.operator import Operator, OperatorFactory
from holdfast.runtime.records.getters import getter
from holdfast.runtime.records.records import RecordBatch, read_timestamps, whole_timestamps
from holdfast.runtime.records.user_code import OperatorName, user_error
from holdfast.runtime.task.generated_watermarks import GeneratedWatermarks

__all__ = ["TimestampsAndWatermarksOperator"]


class _Timestamps(Operator):
    """Assigns timestamps and generates watermarks. Watermarks from upstream are dropped, except the last one."""

    def __init__(self, strategy: Any) -> None:
        self._assign = strategy.timestamp_assigner
        self._read = getter(self._assign, 2)
        self._delay = strategy.max_out_of_orderness_ms
        self._idle_timeout: int | None = strategy.idle_timeout_ms
        self._supplier = strategy.generator_supplier
        self._max_timestamp = MIN_TIMESTAMP
        self._heard: int | None = None
        """When the sources were asked for the last input that had records, by the clock of ``context.asked``."""
        self._input_idle = self._idle = False
        self._emitted = MIN_TIMESTAMP

    def open(self) -> None:
        self._late = LateRecords(self._delay, self.context.deadlines)

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        if self._heard is None:
            self._heard = self.context.asked

    def process(self, batch: RecordBatch) -> None:
        values, timestamps = batch.values, batch.timestamps
        if self._assign is not None:
            timestamps = read_timestamps(self._assign, values, self._read) or self._assigned(batch)
        self._heard = self.context.asked
        timed = RecordBatch(values, timestamps)
        self._emit(timed, self._find_late(timed))
        if timestamps:
            self._max_timestamp = max(self._max_timestamp, latest(timestamps))
        self._advance(self._watermark())

    def _assigned(self, batch: RecordBatch) -> list[int]:
        """The assigner's timestamps, record by record."""
        assign, values = self._assign, batch.values
        rest = iter(values)
        try:
            return whole_timestamps([assign(value, stamp) for value, stamp in zip(rest, batch.stamps())])
        except (Exception, SystemExit) as error:
            position = max(len(values) - length_hint(rest) - 1, 0)
            raise user_error(error, self.context.name, self.context.uid, values[position]) from error

    def _find_late(self, batch: RecordBatch) -> list[Run]:
        """The late records of a batch, before it is emitted."""
        return [] if batch.timestamps is None else self._late.find(batch.timestamps, self._max_timestamp)

    def _watermark(self) -> int:
        """The watermark of all records so far."""
        if self._delay is None or self._max_timestamp == MIN_TIMESTAMP:
            return MIN_TIMESTAMP
        return watermark_behind(self._max_timestamp, self._delay)

    def _advance(self, watermark: int) -> None:
        if watermark > self._emitted:
            self._emitted = watermark
            self.context.forward_watermark(watermark)

    def _emit(self, batch: RecordBatch, late: list[Run]) -> None:
        if not late:
            self.context.emit(batch)
            return
        emitted = self.context.emitted
        for first, end, emitted.late_by in pieces(len(batch.values), late):
            self.context.emit(batch.part(first, end))
        emitted.late_by = MIN_TIMESTAMP

    def advance_watermark(self, watermark: int) -> None:
        if watermark == MAX_TIMESTAMP:
            self._advance(watermark)

    def take_idle(self, idle: bool, held: bool) -> None:
        self._input_idle = idle
        if held:  # waiting for such records does not count as silence
            self._heard = self.context.asked

    def end_epoch(self) -> None:
        self._idle = self._is_idle()
        self.context.forward_idle(self._idle, False)

    def _is_idle(self) -> bool:
        return self._input_idle or (self._idle_timeout is not None and self._silent_ms() >= self._idle_timeout)

    def _silent_ms(self) -> int:
        """For how many ms the sources have been asked without a record arriving here."""
        asked, heard = self.context.asked, self._heard
        return 0 if asked is None or heard is None else asked - heard

    def next_processing_time(self) -> int | None:
        if self._idle_timeout is None or self._idle:
            return None
        return self.context.clock.processing_time + self._idle_timeout - self._silent_ms()

    def snapshot_generator(self) -> dict[str, Any]:
        idle = {"idle": True} if self._idle else {}
        return {"max_timestamp": self._max_timestamp, "emitted": self._emitted, **idle}

    def restore_generator(self, stored: dict[str, Any]) -> None:
        self._max_timestamp = stored["max_timestamp"]
        self._emitted = stored["emitted"]


class _OwnWatermarks(_Timestamps):
    """Assigns timestamps, and generates watermarks by the user's generator."""

    def open(self) -> None:
        super().open()
        self._stored: GeneratorState | None = None
        self._generated = self._make()

    def _make(self) -> GeneratedWatermarks:
        owner = OperatorName(self.context.name, self.context.uid)
        return GeneratedWatermarks(self._supplier, self._stored, owner, self.context.deadlines)

    def _find_late(self, batch: RecordBatch) -> list[Run]:
        return self._generated.observe(batch.values, batch.stamps())

    def _watermark(self) -> int:
        if self.context.watermark_interval:
            self._generated.emit_periodically()
        return self._generated.watermark

    def end_epoch(self) -> None:
        self._advance(self._watermark())
        super().end_epoch()

    def _is_idle(self) -> bool:
        return self._generated.idle or super()._is_idle()

    def next_processing_time(self) -> int | None:
        now = self.context.clock.processing_time
        call = self._generated.next_call(now, self.context.watermark_interval) if self._emitted < MAX_TIMESTAMP else None
        times = (call, super().next_processing_time())
        return min((time for time in times if time is not None), default=None)

    def snapshot_generator(self) -> dict[str, Any]:
        state = self._generated.state()
        own = {} if state is None else {"generator": [state.attributes, state.watermark, state.idle]}
        return {**super().snapshot_generator(), **own}

    def restore_generator(self, stored: dict[str, Any]) -> None:
        super().restore_generator(stored)
        if "generator" in stored:
            self._stored = GeneratorState(*stored["generator"])
            self._generated = self._make()


@dataclass(frozen=True)
class TimestampsAndWatermarksOperator(OperatorFactory):
    """Assigns timestamps and generates watermarks in the middle of a stream."""

    makes_watermarks = True

    strategy: Any

    @property
    def passes_timestamps(self) -> bool:  # type: ignore[override]
        """Whether it keeps the timestamps: if it has no timestamp assigner."""
        return self.strategy.timestamp_assigner is None

    @property
    def by_columns(self) -> bool:  # type: ignore[override]
        """Whether it reads no record: if the timestamps are a field, and the watermarks follow the highest one."""
        assigner = self.strategy.timestamp_assigner
        return self.strategy.generator_supplier is None and (assigner is None or isinstance(assigner, Fields))

    def create(self) -> Operator:
        """Create the operator."""
        return _Timestamps(self.strategy) if self.strategy.generator_supplier is None else _OwnWatermarks(self.strategy)

    def in_batch(self) -> OperatorFactory:
        """The factory of timestamps without watermarks."""
        return TimestampsAndWatermarksOperator(timestamps_only(self.strategy))

    def functions(self) -> Sequence[Any]:
        """The timestamp assigner and the supplier of generators, if any."""
        functions = (self.strategy.timestamp_assigner, self.strategy.generator_supplier)
        return tuple(function for function in functions if function is not None)
