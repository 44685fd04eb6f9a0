"""Any two options of a builder work together, in either order, or are refused when it is built, by the names of both.

More than two, some of which are drawn, work or are refused whatever their order.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Duration, Row, Time, Types
from holdfast.common.serialization import Encoder, SimpleStringSchema
from holdfast.datastream import OutputTag, StreamExecutionEnvironment
from holdfast.datastream.connectors.base import DeliveryGuarantee
from holdfast.datastream.connectors.file_system import (
    BucketAssigner,
    FileCompactor,
    FileCompactStrategy,
    FileSink,
    FileSource,
    OutputFileConfig,
    RecordWiseFileCompactor,
    RollingPolicy,
    StreamFormat,
)
from holdfast.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions
from holdfast.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaTopicPartition,
)
from holdfast.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from holdfast.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.datastream.formats.parquet import ParquetBulkWriters
from holdfast.datastream.operations.batches import Count
from holdfast.datastream.state import StateTtlConfig
from holdfast.datastream.window import (
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.errors import ConfigurationError

Call = tuple[str, tuple[Any, ...]]


@dataclass
class Options:
    """The options of a builder."""

    new: Callable[[], Any]
    options: dict[str, list[Any]]
    """By method: arguments to call it with; a tuple is several."""
    needed: tuple[Call, ...] = ()
    """Calls that each builder needs, made first unless another one sets or excludes the same."""
    same: tuple[tuple[str, ...], ...] = ()
    """Methods that set the same: the later call holds."""
    excluding: tuple[tuple[str, ...], ...] = ()
    """Methods of which one may be called, once."""
    absent: tuple[str, ...] = ()
    """Methods that refuse any call."""

    def calls(self) -> Iterator[Call]:
        for method, values in self.options.items():
            yield from ((method, value if isinstance(value, tuple) else (value,)) for value in values)

    def built(self, *calls: Call) -> Any:
        builder = self.new()
        needed = [call for call in self.needed if not any(self.exclude(call, each) for each in calls)]
        for method, arguments in (*needed, *calls):
            builder = getattr(builder, method)(*arguments)
        return builder.build()

    def exclude(self, one: Call, other: Call) -> bool:
        return any(one[0] in methods and other[0] in methods for methods in self.excluding)

    def are_one(self, one: Call, other: Call) -> bool:
        """Whether two calls set the same."""
        return bool(self._sets(one) & self._sets(other))

    def _sets(self, call: Call) -> set[str]:
        method, arguments = call
        if method == "set_properties":
            return set(arguments[0])
        if method == "set_property":
            return {arguments[0]}
        return {PROPERTIES.get(method) or next((methods[0] for methods in self.same if method in methods), method)}


PROPERTIES = {"set_bootstrap_servers": "bootstrap.servers", "set_group_id": "group.id", "set_client_id_prefix": "client.id"}

ROW = Types.ROW_NAMED(["n", "text", "tags"], [Types.INT(), Types.STRING(), Types.LIST(Types.STRING())])
CSV: dict[str, list[Any]] = {
    "set_field_delimiter": [";", "\t", "|", '"', "#", " ", "1", "\\"],
    "set_array_element_delimiter": [",", "::", "|", '"', "\n", "#", "\\", "1"],
    "set_quote_character": ["'", ";", "\\", "|", "#", " "],
    "set_escape_character": ["\\", '"', "'", ",", ";", "|", "#", " "],
    "set_null_literal": ["NULL", "", "-", ";", ",", '"', "\\N", "#", "\n", "1", " "],
}
SERVERS = {"bootstrap.servers": "localhost:9092"}
PARTITION = KafkaTopicPartition("a", 1)
OFFSETS = [KafkaOffsetsInitializer.earliest(), KafkaOffsetsInitializer.latest(), KafkaOffsetsInitializer.timestamp(5)]
OFFSETS += [KafkaOffsetsInitializer.committed_offsets(), KafkaOffsetsInitializer.offsets({PARTITION: 5})]


EXACTLY_ONCE: tuple[Call, ...] = (
    ("set_delivery_guarantee", (DeliveryGuarantee.EXACTLY_ONCE,)),
    ("set_transactional_id_prefix", ("mine",)),
)


def text(record: Any) -> str:
    return str(record)


ENCODER, PARQUET = Encoder.simple_string_encoder(), ParquetBulkWriters.for_row_type(ROW)

BUILDERS: dict[str, Options] = {
    "CsvRowSerializationSchema": Options(
        lambda: CsvRowSerializationSchema.Builder(ROW),
        {**CSV, "set_line_delimiter": ["\n", "\r\n", "\r", ""], "disable_quote_character": [()]},
        same=(("set_quote_character", "disable_quote_character"),),
    ),
    "CsvRowDeserializationSchema": Options(
        lambda: CsvRowDeserializationSchema.Builder(ROW),
        {**CSV, "set_allow_comments": [True, False], "set_ignore_parse_errors": [True, False]},
    ),
    "JsonRowSerializationSchema": Options(JsonRowSerializationSchema.builder, {"with_type_info": [ROW]}),
    "JsonRowDeserializationSchema": Options(
        JsonRowDeserializationSchema.builder,
        {
            "type_info": [ROW],
            "json_schema": ['{"type": "object", "properties": {"n": {"type": "integer"}}}'],
            **{"fail_on_missing_field": [()], "ignore_parse_errors": [()]},
        },
        needed=(("type_info", (ROW,)),),
        same=(("type_info", "json_schema"),),
    ),
    "KafkaSource": Options(
        KafkaSource.builder,
        {
            "set_bootstrap_servers": ["other:9092"],
            "set_group_id": ["readers"],
            "set_topics": ["a", ("a", "b")],
            "set_topic_pattern": ["a.*"],
            "set_partitions": [[PARTITION]],
            "set_starting_offsets": OFFSETS,
            "set_unbounded": OFFSETS,
            "set_bounded": OFFSETS,
            "set_value_only_deserializer": [SimpleStringSchema(), text],
            "set_deserializer": [text],
            "set_client_id_prefix": ["me"],
            "set_property": [
                *(("isolation.level", "read_uncommitted"), ("auto.offset.reset", "latest"), ("group.id", "others")),
                *(("partition.discovery.interval.ms", 1000), ("commit.offsets.on.checkpoint", "false"), ("client.id", "x")),
                ("fetch.min.bytes", 1),
            ],
            "set_properties": [{"bootstrap.servers": "other:9092"}, {"group.id": "others"}, {}],
        },
        needed=(("set_properties", (SERVERS,)), ("set_topics", ("a",))),
        excluding=(("set_topics", "set_topic_pattern", "set_partitions"),),
        same=(
            ("set_unbounded", "set_bounded"),
            ("set_deserializer", "set_value_only_deserializer"),
        ),
    ),
    "KafkaRecordSerializationSchema": Options(
        KafkaRecordSerializationSchema.builder,
        {
            **{"set_topic": ["a"], "set_topic_selector": [text]},
            "set_key_serialization_schema": [SimpleStringSchema(), text],
            "set_value_serialization_schema": [SimpleStringSchema(), text],
            "set_header_provider": [lambda record: {}],
            "upsert_mode": [()],
        },
        needed=(("set_topic", ("a",)),),
        excluding=(("set_topic", "set_topic_selector"),),
    ),
    **{
        name: Options(
            KafkaSink.builder,
            {
                "set_bootstrap_servers": ["other:9092"],
                "set_delivery_guarantee": list(DeliveryGuarantee),
                "set_transactional_id_prefix": ["mine", ""],
                "set_record_serializer": [KafkaRecordSerializationSchema.builder().set_topic("b").build()],
                "set_property": [
                    *(("acks", "all"), ("acks", "1"), ("acks", "0"), ("enable.idempotence", "false"), ("retries", 0)),
                    *(
                        ("transaction.timeout.ms", 5000),
                        ("delivery.timeout.ms", 4000),
                        ("linger.ms", 50),
                        ("linger.ms", 10_000),
                    ),
                    *(("max.in.flight.requests.per.connection", 5), ("max.in.flight.requests.per.connection", 50)),
                    *(
                        ("compression.type", "zstd"),
                        ("message.max.bytes", 1000),
                        ("batch.size", 100),
                        ("buffer.memory", 1 << 20),
                    ),
                    *(("partitioner", "murmur2_random"), ("request.timeout.ms", 1000), ("message.timeout.ms", 3000)),
                    *(("transactional.id", "x"), ("client.id", "x"), ("security.protocol", "SSL")),
                ],
                "set_properties": [{"bootstrap.servers": "other:9092"}, {}],
            },
            needed=(
                *guarantee,
                ("set_properties", (SERVERS,)),
                ("set_record_serializer", (KafkaRecordSerializationSchema.builder().set_topic("a").build(),)),
            ),
        )
        for name, guarantee in {"KafkaSink": (), "KafkaSink exactly once": EXACTLY_ONCE}.items()
    },
    "FileSource": Options(
        lambda: FileSource.for_record_stream_format(StreamFormat.text_line_format(), "/tmp/in"),
        {"monitor_continuously": [Duration.of_seconds(1), Time.seconds(5)], "process_static_file_set": [()]},
        same=(("monitor_continuously", "process_static_file_set"),),
        absent=("set_file_enumerator", "set_split_assigner"),
    ),
    **{
        name: Options(
            new,
            {
                "with_bucket_assigner": [
                    BucketAssigner.base_path_bucket_assigner(),
                    BucketAssigner.date_time_bucket_assigner("yyyy", "UTC"),
                ],
                "with_output_file_config": [
                    OutputFileConfig("a", ".b"),
                    OutputFileConfig("", ""),
                    OutputFileConfig("p", "gz"),
                ],
                "with_rolling_policy": [
                    RollingPolicy.on_checkpoint_rolling_policy(),
                    RollingPolicy.default_rolling_policy(),
                    RollingPolicy.default_rolling_policy(1 << 20, 900_000, 5000),
                ],
                "with_bucket_check_interval": [1000],
                "enable_compact": [
                    (FileCompactStrategy.builder().set_size_threshold(1 << 20).build(), RecordWiseFileCompactor()),
                    (FileCompactStrategy.builder().enable_compaction_on_checkpoint(5).build(), compactor),
                    (FileCompactStrategy(1 << 10, 7), FileCompactor.identical_file_compactor()),
                ],
                "disable_compact": [()],
            },
            same=(("enable_compact", "disable_compact"),),
        )
        for name, new, compactor in (
            (
                "FileSink of rows",
                lambda: FileSink.for_row_format("/tmp/out", ENCODER),
                FileCompactor.concat_file_compactor(b"-"),
            ),
            ("FileSink in bulk", lambda: FileSink.for_bulk_format("/tmp/out", PARQUET), RecordWiseFileCompactor()),
        )
    },
    "FileCompactStrategy": Options(
        FileCompactStrategy.builder,
        {
            "enable_compaction_on_checkpoint": [1, 10],
            "set_size_threshold": [1, 1 << 20],
            "set_num_compact_threads": [1, 4],
        },
        needed=(("set_size_threshold", (1 << 10,)),),
    ),
    "OutputFileConfig": Options(
        OutputFileConfig.builder, {"with_part_prefix": ["", "a", "a-b", "."], "with_part_suffix": ["", ".csv", "-1"]}
    ),
    "JdbcConnectionOptions": Options(
        JdbcConnectionOptions.JdbcConnectionOptionsBuilder,
        {
            "with_url": ["jdbc:sqlite:/tmp/x", "jdbc:postgresql://host/db", "jdbc:postgresql://host/db?user=bert"],
            "with_driver_name": ["org.postgresql.Driver"],
            **{"with_user_name": ["anna"], "with_password": ["secret"]},
        },
        needed=(("with_url", ("jdbc:postgresql://host/db",)),),
    ),
    "JdbcExecutionOptions": Options(
        JdbcExecutionOptions.builder,
        {"with_batch_size": [1, 10], "with_batch_interval_ms": [0, 50], "with_max_retries": [0, 5]},
    ),
    "StateTtlConfig": Options(
        lambda: StateTtlConfig.new_builder(Time.hours(1)),
        {
            "set_update_type": list(StateTtlConfig.UpdateType),
            "set_state_visibility": list(StateTtlConfig.StateVisibility),
            "set_ttl_time_characteristic": list(StateTtlConfig.TtlTimeCharacteristic),
            "set_ttl": [Time.hours(2), Duration.of_days(1)],
            "cleanup_incrementally": [(5, True), (1, False)],
            "cleanup_in_rocksdb_compact_filter": [1000, (1000, Duration.of_hours(1))],
            **{"update_ttl_on_create_and_write": [()], "update_ttl_on_read_and_write": [()], "never_return_expired": [()]},
            **{"return_expired_if_not_cleaned_up": [()], "use_processing_time": [()], "cleanup_full_snapshot": [()]},
            "disable_cleanup_in_background": [()],
        },
        same=(
            ("set_update_type", "update_ttl_on_create_and_write", "update_ttl_on_read_and_write"),
            ("set_state_visibility", "never_return_expired", "return_expired_if_not_cleaned_up"),
            ("set_ttl_time_characteristic", "use_processing_time"),
        ),
    ),
}


def outcome(options: Options, *calls: Call) -> tuple[str, str]:
    """What is built, or why it is refused."""
    try:
        return described(options.built(*calls)), ""
    except (ConfigurationError, TypeError, NotImplementedError) as error:
        return "", str(error)


def described(value: Any, depth: int = 6) -> str:
    """A value with all its fields, without addresses."""
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{key}: {described(each, depth - 1)}' for key, each in value.items()))}}}"
    kind = type(value)
    if not kind.__module__.startswith("holdfast") or not depth:
        return getattr(value, "__qualname__", repr(value))
    if any("__reduce__" in vars(each) for each in kind.__mro__[:-1]):
        return f"{kind.__name__}{[described(each, depth - 1) for each in value.__reduce__()[1]]}"
    return f"{kind.__name__}{described(getattr(value, '__dict__', {}) or repr(value), depth - 1)}"


def named(call: Call) -> str:
    """What a refusal calls an option: its method without the verb, or its property."""
    method, arguments = call
    return str(arguments[0]) if method == "set_property" else WORDS.get(method, method.split("_", 1)[-1].replace("_", " "))


WORDS = {
    **{"ignore_parse_errors": "ignore_parse_errors", "fail_on_missing_field": "fail_on_missing_field"},
    **{"set_topics": "topics", "set_topic_selector": "topic selector", "set_allow_comments": "comments"},
    **{"upsert_mode": "upserts", "set_delivery_guarantee": "exactly-once", "set_transactional_id_prefix": "prefix"},
}


@pytest.mark.parametrize("name", BUILDERS)
def a_pair_of_options_works_in_either_order_or_is_refused_by_both_names(name: str) -> None:
    given = BUILDERS[name]
    calls = list(given.calls())
    alone = {id(call): outcome(given, call) for call in calls}
    pairs = {(id(one), id(other)): outcome(given, one, other) for one, other in itertools.permutations(calls, 2)}
    for one, other in itertools.permutations(calls, 2):
        built, refusal = pairs[id(one), id(other)]
        if given.exclude(one, other):
            assert all(named(call) in refusal for call in (one, other)), (one, other, refusal)
        elif given.are_one(one, other):
            assert (built, refusal) == alone[id(other)] or one[0] != other[0], (one, other)
        else:
            swapped, _ = pairs[id(other), id(one)]
            assert built == swapped, (one, other)
            if refusal and alone[id(one)][0] and alone[id(other)][0]:
                assert all(named(call) in refusal for call in (one, other)), (one, other, refusal)


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=examples(10))
@given(st.data())
def test_any_options_work_or_are_refused_whatever_their_order(name: str, data: st.DataObject) -> None:
    builder = BUILDERS[name]
    drawn = data.draw(st.lists(st.sampled_from(list(builder.calls())), min_size=3, max_size=7))
    calls = [call for at, call in enumerate(drawn) if not any(builder.are_one(call, other) for other in drawn[:at])]
    built, _ = outcome(builder, *calls)
    swapped, _ = outcome(builder, *data.draw(st.permutations(calls)))
    assert built == swapped


@pytest.mark.parametrize("name", BUILDERS)
def the_options_of_a_builder_are_all_tried(name: str) -> None:
    given = BUILDERS[name]
    methods = {name for name, _ in inspect.getmembers(given.new(), callable) if not name.startswith("_")}
    assert methods - {"build"} == {*given.options, *given.absent}
    for method in given.absent:
        with pytest.raises(NotImplementedError):
            getattr(given.new(), method)(*[None] * len(inspect.signature(getattr(given.new(), method)).parameters))


LINES = [
    Row(n=n, text=text, tags=tags)
    for n in (1, None)
    for text in ("a", "", None, '"', "a,b", "a;b", "#x", "\n", "|", "\\", "1", " x ", "\\N", "\r")
    for tags in (["a", "b"], [], ["x|y"])
]


def a_pair_of_csv_options_of_writer_and_reader_gives_back_each_line() -> None:
    """Without quotes there is no reader: that has a quote character always."""
    calls = [*BUILDERS["CsvRowDeserializationSchema"].calls(), ("set_line_delimiter", ("\r\n",))]
    for pair in itertools.combinations(calls, 2):
        if pair[0][0] == pair[1][0]:
            continue
        writer, reader = CsvRowSerializationSchema.Builder(ROW), CsvRowDeserializationSchema.Builder(ROW)
        for builder, (method, arguments) in itertools.product((writer, reader), pair):
            if hasattr(builder, method):
                getattr(builder, method)(*arguments)
        try:
            write, read = writer.build(), reader.build()
        except ConfigurationError:
            continue
        null = dict(pair).get("set_null_literal", (None,))[0]
        for row in LINES:
            try:
                line = write.serialize(row)
            except ValueError:
                continue  # a test of the formats shows which
            expected = row
            if null is None:
                expected = Row(n=row.n, text=row.text or "", tags=row.tags)
            elif not null:
                expected = Row(n=row.n, text=row.text or None, tags=row.tags or None)
            assert read.deserialize(line) == expected, (pair, line)


def a_field_like_a_comment_is_quoted() -> None:
    declared = Types.ROW([Types.STRING(), Types.INT()])
    write = CsvRowSerializationSchema.Builder(declared)
    assert write.build().serialize(Row("#a", 1)) == b'"#a",1\n'
    assert write.build().serialize(Row("#a,", 1)) == b'"#a,",1\n'
    escaped = write.disable_quote_character().set_escape_character("\\").build()
    assert escaped.serialize(Row("#a", 1)) == b"\\#a,1\n"
    read = CsvRowDeserializationSchema.Builder(declared).set_allow_comments(True)
    assert read.build().deserialize(b'"#a",1\n') == read.set_escape_character("\\").build().deserialize(b"\\#a,1\n")


# ---- windows ----

WINDOWS: list[Any] = [
    *(TumblingEventTimeWindows.of(Time.seconds(1)), SlidingEventTimeWindows.of(Time.seconds(2), Time.seconds(1))),
    *(TumblingProcessingTimeWindows.of(Time.seconds(1)), EventTimeSessionWindows.with_gap(Time.seconds(1))),
    *(ProcessingTimeSessionWindows.with_gap(Time.seconds(1)), GlobalWindows.create()),
]
OF_WINDOWS: list[Call] = [
    *(("trigger", (CountTrigger.of(2),)), ("trigger", (EventTimeTrigger.create(),))),
    *(("trigger", (ProcessingTimeTrigger.create(),)), ("trigger", (PurgingTrigger.of(CountTrigger.of(2)),))),
    ("trigger", (DeltaTrigger.of(1, lambda one, other: 1),)),
    *(("evictor", (CountEvictor.of(1),)), ("allowed_lateness", (5,)), ("side_output_late_data", (OutputTag("late"),))),
]
CONTENTS: dict[str, Callable[[Any], Any]] = {
    "reduce": lambda windows: windows.reduce(lambda one, other: other),
    "agg": lambda windows: windows.agg(n=Count()),
}


@pytest.mark.parametrize("assigner", WINDOWS, ids=lambda each: type(each).__name__)
def a_pair_of_options_of_windows_is_planned_in_either_order_or_refused_by_name(assigner: Any) -> None:
    elements = StreamExecutionEnvironment().set_parallelism(1).from_collection([(1, 2)])

    def tried(content: str, *calls: Call) -> str:
        windows: Any = elements.key_by(lambda element: element[0]).window(assigner)
        try:
            for method, arguments in calls:
                windows = getattr(windows, method)(*arguments)
            CONTENTS[content](windows)
        except (TypeError, ConfigurationError) as error:
            return str(error)
        return ""

    for content, (one, other) in itertools.product(CONTENTS, itertools.permutations(OF_WINDOWS, 2)):
        refusal = tried(content, one, other)
        assert bool(refusal) == bool(tried(content, other, one)) or one[0] == other[0]
        alone = [each for each in (tried(content, one), tried(content, other), tried(content)) if each]
        assert not refusal or refusal in alone, (one, other, refusal)
