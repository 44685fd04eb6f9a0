"""Time, Duration, Instant, windows, watermark strategies, output tags, schemas, futures, job values."""

from __future__ import annotations

import asyncio
import datetime
import pickle
from concurrent.futures import Future
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import (
    ByteArraySchema,
    CompletableFuture,
    Duration,
    Encoder,
    Instant,
    JobExecutionResult,
    JobID,
    JobStatus,
    Row,
    RowFieldExtractorSchema,
    SerializationSchema,
    SimpleStringSchema,
    Time,
    TimestampAssigner,
    Types,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from holdfast.common.output_tag import OutputTag
from holdfast.common.time import to_milliseconds
from holdfast.common.windows import TimeWindow
from holdfast.errors import ConfigurationError


def test_spans_of_all_units() -> None:
    assert Time.days(1) == Time.hours(24) == Time.minutes(1440) == Time.seconds(86400) == Time.milliseconds(86_400_000)
    assert Duration.of_days(1) == Duration.of_hours(24) == Duration.of_minutes(1440) == Duration.of_seconds(86400)
    assert Duration.of_millis(1) == Duration.of_nanos(1_000_000)
    assert Time.seconds(1).to_milliseconds() == 1000
    assert (Duration.of_seconds(90).to_millis(), Duration.of_seconds(90).to_seconds()) == (90_000, 90)


@pytest.mark.parametrize("span", [Time.seconds(2), Duration.of_seconds(2), datetime.timedelta(seconds=2)])
def test_any_span_can_be_given(span: object) -> None:
    assert to_milliseconds(span) == 2000  # type: ignore[arg-type]


def test_a_number_is_no_span() -> None:
    with pytest.raises(TypeError, match="expected a Time, a Duration"):
        to_milliseconds(5)  # type: ignore[arg-type]


@given(st.integers(-(2**62), 2**62))
def test_an_instant_keeps_its_milliseconds(millis: int) -> None:
    assert Instant.of_epoch_milli(millis).to_epoch_milli() == millis


@given(st.integers(-(2**40), 2**40), st.integers(1, 10**9), st.integers(-(10**9), 10**9))
def test_a_window_holds_the_timestamp_it_was_made_for(timestamp: int, size: int, offset: int) -> None:
    start = TimeWindow.get_window_start_with_offset(timestamp, offset, size)
    assert start <= timestamp < start + size
    assert (start - offset) % size == 0


def test_windows_compare_and_cover() -> None:
    assert TimeWindow(0, 5) == TimeWindow(0, 5) != TimeWindow(0, 6)
    assert TimeWindow(0, 5).intersects(TimeWindow(5, 10))
    assert not TimeWindow(0, 5).intersects(TimeWindow(6, 10))
    assert TimeWindow(0, 5).cover(TimeWindow(7, 9)) == TimeWindow(0, 9)
    assert sorted([TimeWindow(5, 6), TimeWindow(0, 9)])[0].start == 0
    assert TimeWindow(0, 5).max_timestamp() == 4
    assert pickle.loads(pickle.dumps(TimeWindow(1, 2))) == TimeWindow(1, 2)


class FieldTime(TimestampAssigner):
    def extract_timestamp(self, value: object, record_timestamp: int) -> int:
        return value["t"]  # type: ignore[index]


def test_strategies_tell_their_settings() -> None:
    assert WatermarkStrategy.no_watermarks().max_out_of_orderness_ms is None
    assert WatermarkStrategy.for_monotonous_timestamps().max_out_of_orderness_ms == 0
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    idle = strategy.with_idleness(Duration.of_minutes(1))
    assert (idle.max_out_of_orderness_ms, idle.idle_timeout_ms) == (5000, 60_000)
    assert strategy.idle_timeout_ms is None


@pytest.mark.parametrize("assigner", [FieldTime(), lambda value, record_timestamp: value["t"]])
def test_a_timestamp_assigner_is_an_object_or_a_function(assigner: object) -> None:
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(assigner)  # type: ignore[arg-type]
    strategy = cloudpickle.loads(cloudpickle.dumps(strategy))
    assert strategy.timestamp_assigner is not None
    assert strategy.timestamp_assigner({"t": 7}, -(2**63)) == 7


def test_wrong_strategies_are_refused() -> None:
    strategy = WatermarkStrategy.no_watermarks()
    with pytest.raises(TypeError, match="timestamp assigner"):
        strategy.with_timestamp_assigner(FieldTime)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timestamp assigner"):
        strategy.with_timestamp_assigner("ts")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(-1))
    with pytest.raises(ValueError, match="positive"):
        strategy.with_idleness(Duration.of_seconds(0))
    with pytest.raises(ValueError, match="without watermarks"):
        strategy.with_watermark_alignment("g", Duration.of_seconds(1))
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    with pytest.raises(ValueError, match="must not be empty"):
        strategy.with_watermark_alignment("", Duration.of_seconds(1))
    with pytest.raises(ValueError, match="drift must be positive"):
        strategy.with_watermark_alignment("g", Duration.of_seconds(0))
    with pytest.raises(ValueError, match="interval must be positive"):
        strategy.with_watermark_alignment("g", Duration.of_seconds(1), Duration.of_seconds(0))
    with pytest.raises(TypeError, match="returns a new WatermarkGenerator"):
        WatermarkStrategy.for_generator(Behind())  # type: ignore[arg-type]


class Behind(WatermarkGenerator[object]):
    def on_event(self, event: object, timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(timestamp - 5)


def test_a_strategy_keeps_its_generator_and_its_group() -> None:
    strategy = WatermarkStrategy.for_generator(Behind).with_idleness(Duration.of_seconds(1))
    strategy = strategy.with_watermark_alignment("g", Duration.of_seconds(2), Duration.of_seconds(1))
    strategy = cloudpickle.loads(cloudpickle.dumps(strategy))
    assert strategy.generator_supplier is not None
    assert isinstance(strategy.generator_supplier(), WatermarkGenerator)
    assert strategy.alignment is not None
    assert (strategy.alignment.group, strategy.alignment.max_drift_ms, strategy.idle_timeout_ms) == ("g", 2000, 1000)


def test_output_tags_are_matched_by_id() -> None:
    assert OutputTag("late") == OutputTag("late", Types.LONG()) != OutputTag("other")
    assert OutputTag("late", [Types.LONG()]).type_info == Types.ROW([Types.LONG()])
    assert pickle.loads(pickle.dumps(OutputTag("late", Types.LONG()))).type_info == Types.LONG()
    with pytest.raises(ValueError, match="empty"):
        OutputTag("")
    with pytest.raises(TypeError, match="string"):
        OutputTag(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="type"):
        OutputTag("late", int)  # type: ignore[arg-type]


def test_a_subclass_of_the_schema_of_strings_is_asked() -> None:
    class Lower(SimpleStringSchema):
        def serialize(self, value: Any) -> bytes:
            return super().serialize(value.lower())

        def deserialize(self, data: bytes) -> str:
            return super().deserialize(data).upper()

    assert Lower().serialize_batch(["A"]) == [b"a"]
    assert Lower().deserialize_batch([b"a"]) == ["A"]


def test_strings_and_bytes_pass_through_their_schemas() -> None:
    strings = SimpleStringSchema()
    assert strings.deserialize_batch(strings.serialize_batch(["a", "\u20b9"])) == ["a", "\u20b9"]  # type: ignore[arg-type]
    assert SimpleStringSchema("latin-1").serialize("\xe9") == b"\xe9"
    assert ByteArraySchema().deserialize_batch([b"x"]) == [b"x"]
    assert ByteArraySchema().serialize(bytearray(b"x")) == b"x"
    assert strings.deserialize_batch([bytearray(b"x"), b"y"]) == ["x", "y"]  # type: ignore[list-item]
    with pytest.raises(TypeError, match="map the records to str"):
        strings.serialize(5)
    with pytest.raises(TypeError, match="map the records to str"):
        strings.serialize_batch(["a", 5])
    with pytest.raises(UnicodeDecodeError):
        strings.deserialize_batch([b"\xff"])
    with pytest.raises(ConfigurationError, match="klingon"):
        SimpleStringSchema("klingon")
    with pytest.raises(TypeError, match="bytes"):
        ByteArraySchema().serialize("x")


def test_a_schema_of_ones_own_needs_one_method() -> None:
    class Number(SerializationSchema):
        def serialize(self, value: object) -> bytes:
            return str(value).encode()

    assert Number().serialize_batch([1, 2]) == [b"1", b"2"]
    with pytest.raises(NotImplementedError, match="must define serialize"):
        SerializationSchema().serialize(1)


def test_a_field_of_a_row_is_extracted() -> None:
    schema = RowFieldExtractorSchema(1)
    assert schema.serialize_batch([Row(b"k", b"v"), Row(b"k", None)]) == [b"v", None]
    with pytest.raises(TypeError, match="field 1 must hold bytes"):
        schema.serialize(Row(b"k", "v"))
    with pytest.raises(ValueError, match="no field 1"):
        schema.serialize(Row(b"k"))
    with pytest.raises(ConfigurationError):
        RowFieldExtractorSchema(-1)


def test_the_string_encoder_writes_lines() -> None:
    assert Encoder.simple_string_encoder().encode_batch(["a", 1]) == b"a\n1\n"


def test_a_future_gives_its_value_or_its_error() -> None:
    source: Future[int] = Future()
    future = CompletableFuture(source)
    assert not future.done()
    source.set_result(5)
    assert (future.result(), future.exception(), future.done(), future.cancelled()) == (5, None, True, False)
    failed: Future[int] = Future()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        CompletableFuture(failed).result()

    async def wait() -> int:
        return await CompletableFuture.completed(7)

    assert asyncio.run(wait()) == 7


def test_job_values() -> None:
    job_id = JobID()
    assert len(str(job_id)) == 32
    assert JobID(str(job_id)) == job_id != JobID()
    result = JobExecutionResult(job_id, 12)
    assert (result.get_job_id(), result.get_net_runtime(), result.get_all_accumulator_results()) == (job_id, 12, {})
    assert [s.name for s in JobStatus if s.is_globally_terminal_state()] == ["FAILED", "CANCELED", "FINISHED"]
    assert JobStatus.SUSPENDED.is_terminal_state()


@pytest.mark.parametrize("make", [Time, Time.seconds, Time.days, Duration, Duration.of_millis, Duration.of_hours])
@pytest.mark.parametrize("amount", [1.5, "1", None])
def test_a_span_of_time_is_a_whole_number_of_its_unit(make, amount) -> None:
    with pytest.raises(TypeError, match=r"a whole number of \w+, got (1\.5|'1'|None)"):
        make(amount)
