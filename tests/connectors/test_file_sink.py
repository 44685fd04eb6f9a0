"""The file sink: exactly once at every crash point."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from connector_harness import Crash, SinkRun
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common.formats.csv import CsvRowSerializationSchema
from holdfast.common.serialization import Encoder, SimpleStringSchema
from holdfast.common.typeinfo import Types
from holdfast.common.types import Row
from holdfast.connectors.file.buckets import DateTimeBucketAssigner
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    JsonLinesEncoder,
    OutputFileConfig,
    RollingPolicy,
)
from holdfast.errors import ConfigurationError, CorruptFile


def file_sink(path: Path, **options: Any) -> FileSink:
    builder = FileSink.for_row_format(str(path), options.get("encoder", Encoder.simple_string_encoder()))
    return builder.with_bucket_assigner(options.get("buckets", BucketAssigner.base_path_bucket_assigner())).build()


def visible(path: Path) -> list[str]:
    """All lines in the files that a reader of the directory sees."""
    return [line for file in sorted(path.rglob("[!.]*")) if file.is_file() for line in file.read_text().splitlines()]


def hidden(path: Path) -> list[Path]:
    return list(path.rglob(".*"))


def test_files_appear_only_with_their_checkpoint(tmp_path: Path) -> None:
    run = SinkRun(file_sink(tmp_path))
    with pytest.raises(Crash):
        run.epoch([["a"], ["b"]], crash_at="prepared")
    assert visible(tmp_path) == []
    run.epoch([["a", "c"], ["b"]])
    assert sorted(visible(tmp_path)) == ["a", "b", "c"]
    assert len(os.listdir(tmp_path)) == 4  # two finished, two of the dead attempt
    run.start()
    assert hidden(tmp_path) == []
    assert sorted(visible(tmp_path)) == ["a", "b", "c"]


def test_any_crashes_write_every_record_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(st.lists(st.sampled_from([None, *SinkRun.CRASH_POINTS]), min_size=1, max_size=12))
    @settings(max_examples=80, deadline=None)
    def check(epochs: list[str | None]) -> None:
        base = tmp_path_factory.mktemp("out")
        run = SinkRun(file_sink(base / "files"), (base / "checkpoints").as_uri())
        expected: Counter[str] = Counter()
        for n, crash_at in enumerate(epochs):
            values = [[f"{n}-{s}-{i}" for i in range(n % 5)] for s in range(2)]
            if run.completes(values, crash_at):
                expected.update(values[0] + values[1])
            assert Counter(visible(base / "files")) == expected
        run.start()
        run.start()
        assert Counter(visible(base / "files")) == expected
        assert hidden(base / "files") == []

    check()


def an_abandoned_epoch_leaves_nothing(tmp_path: Path) -> None:
    writer = SinkRun(file_sink(tmp_path), parallelism=1).writers[0]
    writer.begin_epoch(1, "a", 0)
    writer.write(["x"], None)
    writer.abort_epoch()
    writer.begin_epoch(1, "b", 0)
    writer.write(["y"], None)
    writer.close()
    assert os.listdir(tmp_path) == []


def a_driver_that_was_overtaken_before_it_recovered_leaves_its_successors_files_alone(tmp_path: Path) -> None:
    run = SinkRun(file_sink(tmp_path), (tmp_path / "checkpoints").as_uri(), parallelism=1)
    run.recover_overtaken([["x"]])
    assert visible(tmp_path) == ["x"]


def a_second_job_in_the_directory_is_left_alone(tmp_path: Path) -> None:
    first = SinkRun(file_sink(tmp_path / "out"), (tmp_path / "c1").as_uri(), parallelism=1)
    second = SinkRun(file_sink(tmp_path / "out"), (tmp_path / "c2").as_uri(), parallelism=1)
    with pytest.raises(Crash):
        first.epoch([["first"]], crash_at="prepared")
    second.start()
    assert len(hidden(tmp_path / "out")) == 1
    second.epoch([["second"]])
    first.start()
    first.epoch([["first"]])
    assert sorted(visible(tmp_path / "out")) == ["first", "second"]


def a_finished_file_that_was_moved_away_does_not_hold_up_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = SinkRun(file_sink(tmp_path), parallelism=1)
    run.epoch([["x"]])
    for file in tmp_path.iterdir():
        file.unlink()
    run.start()
    assert "was moved or deleted after it was finished" in caplog.text


def a_prepared_file_that_the_driver_does_not_see_fails_the_commit(tmp_path: Path) -> None:
    run = SinkRun(file_sink(tmp_path), parallelism=1)
    with pytest.raises(Crash):
        run.epoch([["x"]], crash_at="complete")
    for file in hidden(tmp_path):
        file.unlink()
    with pytest.raises(ConfigurationError, match="the same directory for the driver and all workers"):
        run.committer.commit(run.committables)


def the_names_have_the_prefix_and_suffix_asked_for(tmp_path: Path) -> None:
    config = OutputFileConfig.builder().with_part_prefix("pay").with_part_suffix(".csv").build()
    sink = (
        FileSink.for_row_format(tmp_path.as_uri(), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_output_file_config(config)
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    SinkRun(sink).epoch([["a"], ["b"]])
    names = sorted(os.listdir(tmp_path))
    assert [name.rsplit("-", 1)[0] for name in names] == ["pay-0-1", "pay-1-1"]
    assert all(name.endswith(".csv") for name in names)


class Clock:
    """Not a plain function: the sink is pickled."""

    def __call__(self) -> float:
        return float(os.environ["TEST_CLOCK"])


def the_buckets_follow_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = DateTimeBucketAssigner("yyyy/MM-dd--HHmm", "Asia/Kolkata", Clock())
    run = SinkRun(file_sink(tmp_path, buckets=buckets), parallelism=1)
    monkeypatch.setenv("TEST_CLOCK", "0")
    run.writers[0].begin_epoch(1, "a", 0)
    run.writers[0].write(["early"], None)
    monkeypatch.setenv("TEST_CLOCK", "86400")
    run.writers[0].write(["late"], None)
    with pytest.raises(Crash):
        run.epoch([["late"]], crash_at="written")
    run.epoch([["late", "later"]])
    assert sorted(p.name for p in (tmp_path / "1970").iterdir()) == ["01-01--0530", "01-02--0530"]
    assert visible(tmp_path / "1970" / "01-02--0530") == ["late", "later"]
    assert visible(tmp_path / "1970" / "01-01--0530") == []


@pytest.mark.parametrize("format", ["yy", "EEE", "/yyyy", "../yyyy"])
def a_bucket_format_that_cannot_work_is_refused(format: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bucket format|is no bucket"):
        BucketAssigner.date_time_bucket_assigner(format)


def an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        BucketAssigner.date_time_bucket_assigner(timezone_id="Mars/Base")


def json_lines(tmp_path: Path, values: list[Any]) -> list[str]:
    SinkRun(file_sink(tmp_path, encoder=JsonLinesEncoder()), parallelism=1).epoch([values])
    return visible(tmp_path)


def test_json_lines_hold_dicts_rows_and_plain_values(tmp_path: Path) -> None:
    values = [{"a": 1, 2: None}, Row(x=1.5, y=Row("z")), ("t", True), "ä"]
    assert json_lines(tmp_path, values) == ['{"a":1,"2":null}', '{"x":1.5,"y":["z"]}', '["t",true]', '"ä"']


def test_nan_and_infinities_are_strings_of_json_lines(tmp_path: Path) -> None:
    values = [{"a": [float("nan"), None]}, Row(x=float("-inf")), (float("inf"), "null")]
    assert json_lines(tmp_path, values) == ['{"a":["NaN",null]}', '{"x":"-Infinity"}', '["Infinity","null"]']


def a_value_that_json_cannot_say_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable: object"):
        json_lines(tmp_path, [{"a": object()}])


def a_serialization_schema_writes_a_line_for_each_record(tmp_path: Path) -> None:
    SinkRun(file_sink(tmp_path, encoder=SimpleStringSchema()), parallelism=1).epoch([["a", "b"]])
    assert visible(tmp_path) == ["a", "b"]


def a_serialization_schema_that_ends_lines_itself_leaves_no_empty_ones(tmp_path: Path) -> None:
    schema = CsvRowSerializationSchema.Builder(Types.ROW([Types.LONG(), Types.STRING()])).build()
    SinkRun(file_sink(tmp_path, encoder=schema), parallelism=1).epoch([[Row(1, "a"), Row(2, "b\n")]])
    assert visible(tmp_path) == ["1,a", '2,"b', '"']


def a_base_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write to"):
        file_sink(tmp_path / "file" / "out").validate()
    file_sink(tmp_path / "new" / "out").validate()
    assert os.listdir(tmp_path / "new" / "out") == []


def a_sink_that_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no encoder"):
        FileSink.for_row_format(str(tmp_path), object()).build()  # type: ignore[arg-type]
    hidden = FileSink.for_row_format(str(tmp_path), JsonLinesEncoder())
    hidden.with_output_file_config(OutputFileConfig(".x", ""))
    with pytest.raises(ConfigurationError, match="hidden or nested"):
        hidden.build()


@pytest.mark.parametrize(
    ("encoder", "declared", "line"),
    [
        (Encoder.simple_string_encoder(), Types.TUPLE([Types.STRING(), Types.BOOLEAN()]), "(x,true)"),
        (Encoder.simple_string_encoder(), None, "('x', True)"),
        (JsonLinesEncoder(), Types.TUPLE([Types.STRING(), Types.BOOLEAN()]), '["x",true]'),
    ],
)
def a_typed_stream_is_written_as_flink_prints_it_and_any_other_as_python_does(
    tmp_path: Path, encoder: Any, declared: Any, line: str
) -> None:
    stream = StreamExecutionEnvironment().from_collection([("x", True)], declared)
    end: Any = stream.sink_to(file_sink(tmp_path, encoder=encoder))
    SinkRun(end._transformation.factory.sink).epoch([[("x", True)], []])
    assert visible(tmp_path) == [line]


@pytest.mark.parametrize("name", ["bucket", "pending", "final"])
@pytest.mark.parametrize("value", ["/etc/passwd", "../other", "a/../../other", "nul\0", 7, None])
def a_checkpoint_names_no_part_file_outside_the_directory(name: str, value: Any, tmp_path: Path) -> None:
    sink = file_sink(tmp_path)
    prepared = {"bucket": "day=1", "pending": ".part-1.inprogress.x-1", "final": "part-1"}
    sink.check_prepared(prepared)
    with pytest.raises(CorruptFile, match="a part file outside the directory of the FileSink"):
        sink.check_prepared({**prepared, name: value})
