"""Functions, state descriptors, windows, checkpoint and backend settings."""

from __future__ import annotations

import importlib
import pickle

import pytest

from holdfast.common import Configuration, Duration, Time, Types
from holdfast.common.rocksdb_options import predefined_settings
from holdfast.common.state_ttl import StateTtlConfig
from holdfast.datastream import functions
from holdfast.datastream.checkpoint_config import CheckpointConfig
from holdfast.datastream.checkpoint_storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from holdfast.datastream.checkpointing_mode import CheckpointingMode
from holdfast.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from holdfast.datastream.functions import (
    AggregateFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    ReduceFunction,
)
from holdfast.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from holdfast.datastream.state_backend import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    PredefinedOptions,
    RocksDBOptions,
)
from holdfast.datastream.window import (
    EventTimeTrigger,
    ProcessingTimeTrigger,
    TimeWindow,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.errors import ConfigurationError


def test_functions_need_their_methods_only() -> None:
    class Count(KeyedProcessFunction):
        def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> None:
            return None

    class Results(ProcessWindowFunction):  # type: ignore[type-arg]
        def process(self, key, context, elements):  # type: ignore[no-untyped-def]
            return elements

    Count().open(None)  # type: ignore[arg-type]
    assert Count().on_timer(0, None) is None  # type: ignore[arg-type]
    assert Results().clear(None) is None  # type: ignore[arg-type]
    Count().close()
    with pytest.raises(TypeError, match="abstract"):
        MapFunction()  # type: ignore[abstract]


def test_every_function_class_is_a_function() -> None:
    for name in functions.__all__:
        cls = getattr(functions, name)
        assert cls.__doc__
        others = "CheckpointedFunction", "KeyedStateStore", "AsyncRetryPredicate", "AsyncRetryStrategy"
        if name not in others and not name.endswith("Context"):
            assert issubclass(cls, Function)


class Sum(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return value + accumulator

    def get_result(self, accumulator: int) -> int:
        return accumulator


class Plus(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


def test_merge_is_asked_for_only_when_windows_merge() -> None:
    with pytest.raises(NotImplementedError, match="Sum must define merge"):
        Sum().merge(1, 2)


def test_descriptors_tell_what_they_declare() -> None:
    value = ValueStateDescriptor("v", Types.LONG())
    assert (value.kind, value.name, value.get_name(), value.type_info) == ("value", "v", "v", Types.LONG())
    elements = ListStateDescriptor("l", Types.STRING())
    assert (elements.kind, elements.element_type_info) == ("list", Types.STRING())
    entries = MapStateDescriptor("m", Types.STRING(), Types.LONG())
    assert (entries.kind, entries.key_type_info, entries.value_type_info) == ("map", Types.STRING(), Types.LONG())
    reducing = ReducingStateDescriptor("r", Plus(), Types.LONG())
    assert (reducing.kind, reducing.reduce_function(2, 3), reducing.get_reduce_function()(1, 1)) == ("reducing", 5, 2)
    assert ReducingStateDescriptor("r", max, Types.LONG()).reduce_function(2, 3) == 3
    aggregating = AggregatingStateDescriptor("a", Sum(), Types.LONG())
    assert (aggregating.kind, aggregating.agg_function.add(1, 2)) == ("aggregating", 3)
    assert aggregating.get_agg_function() is aggregating.agg_function


def test_descriptors_need_no_type() -> None:
    descriptors: list[StateDescriptor] = [
        ValueStateDescriptor("v"),
        ListStateDescriptor("l"),
        MapStateDescriptor("m"),
        ReducingStateDescriptor("r", Plus()),
        AggregatingStateDescriptor("a", Sum()),
    ]
    for descriptor in descriptors:
        assert descriptor.type_info is None
        assert descriptor.ttl_config is None
        assert pickle.loads(pickle.dumps(descriptor)).name == descriptor.name


def test_wrong_descriptors_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        ValueStateDescriptor("", Types.LONG())
    with pytest.raises(TypeError, match=r"Types\.LONG\(\)"):
        ValueStateDescriptor("v", Types.LONG)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key type of state 'm'"):
        MapStateDescriptor("m", str, int)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AggregateFunction"):
        AggregatingStateDescriptor("a", Sum, Types.LONG())
    with pytest.raises(TypeError, match="ReduceFunction"):
        ReducingStateDescriptor("r", 5, Types.LONG())
    with pytest.raises(TypeError, match="StateTtlConfig"):
        ValueStateDescriptor("v").enable_time_to_live(5)  # type: ignore[arg-type]


class DictState(MapState[str, int]):
    def __init__(self) -> None:
        self.entries: dict[str, int] = {}

    def get(self, key):  # type: ignore[no-untyped-def]
        return self.entries.get(key)

    def contains(self, key: str) -> bool:
        return key in self.entries

    def items(self):  # type: ignore[no-untyped-def]
        return self.entries.items()

    def keys(self):  # type: ignore[no-untyped-def]
        return self.entries.keys()

    def values(self):  # type: ignore[no-untyped-def]
        return self.entries.values()

    def is_empty(self) -> bool:
        return not self.entries

    def put(self, key: str, value: int) -> None:
        self.entries[key] = value

    def put_all(self, dict_value):  # type: ignore[no-untyped-def]
        self.entries.update(dict_value)

    def remove(self, key: str) -> None:
        self.entries.pop(key, None)

    def clear(self) -> None:
        self.entries.clear()


def test_a_map_state_reads_like_a_dict_without_key_errors() -> None:
    state = DictState()
    state["a"] = 1
    state.put_all([("b", 2)])
    assert (state["a"], state["z"], "b" in state, sorted(state)) == (1, None, True, ["a", "b"])
    del state["z"]
    del state["a"]
    assert list(state.items()) == [("b", 2)]
    with pytest.raises(TypeError):
        len(state)  # type: ignore[arg-type]


def test_ttl_has_flinks_defaults() -> None:
    ttl = StateTtlConfig.new_builder(Time.seconds(5)).build()
    assert (ttl.get_ttl(), ttl.ttl_ms, ttl.is_enabled()) == (Time.seconds(5), 5000, True)
    assert ttl.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert ttl.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    assert (ttl.refresh_on_read, ttl.return_expired) == (False, False)
    assert ttl.get_cleanup_strategies().is_cleanup_in_background()
    other = (
        StateTtlConfig.new_builder(Duration.of_days(1))
        .update_ttl_on_read_and_write()
        .return_expired_if_not_cleaned_up()
        .use_processing_time()
        .cleanup_full_snapshot()
        .cleanup_incrementally(10, True)
        .cleanup_in_rocksdb_compact_filter(1000)
        .disable_cleanup_in_background()
        .build()
    )
    assert (other.ttl_ms, other.refresh_on_read, other.return_expired) == (86_400_000, True, True)
    cleanup = other.get_cleanup_strategies()
    assert cleanup.in_full_snapshot()
    incremental = cleanup.get_incremental_cleanup_strategy()
    assert incremental == StateTtlConfig.CleanupStrategies.IncrementalCleanupStrategy(10, True)
    assert pickle.loads(pickle.dumps(other)).get_cleanup_strategies() == cleanup
    disabled = StateTtlConfig.new_builder(Time.seconds(1)).set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    assert not disabled.is_enabled()
    with pytest.raises(ConfigurationError, match="positive"):
        StateTtlConfig.new_builder(Time.seconds(0)).build()
    descriptor = ValueStateDescriptor("v", Types.LONG())
    descriptor.enable_time_to_live(ttl)
    assert descriptor.ttl_config is ttl


def test_tumbling_windows_take_any_span() -> None:
    for windows in (TumblingEventTimeWindows, TumblingProcessingTimeWindows):
        assert windows.of(Time.minutes(1)).size == 60_000
        assert windows.of(Duration.of_minutes(1), Time.seconds(15)).offset == 15_000
        with pytest.raises(ConfigurationError, match="positive"):
            windows.of(Time.seconds(0))
        with pytest.raises(ConfigurationError, match="smaller"):
            windows.of(Time.seconds(1), Time.seconds(1))
        with pytest.raises(TypeError):
            windows.of(60_000)  # type: ignore[arg-type]


def test_event_time_windows_are_by_timestamp() -> None:
    assigner = TumblingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(3))
    assert assigner.assign_windows("x", 12, None) == [TimeWindow(3, 13)]  # type: ignore[arg-type]
    assert assigner.assign_windows("x", -8, None) == [TimeWindow(-17, -7)]  # type: ignore[arg-type]
    assert assigner.is_event_time()
    assert isinstance(assigner.get_default_trigger(None), EventTimeTrigger)
    with pytest.raises(ValueError, match=r"Long\.MIN_VALUE timestamp"):
        assigner.assign_windows("x", -(2**63), None)  # type: ignore[arg-type]
    processing = TumblingProcessingTimeWindows.of(Time.seconds(1))
    assert not processing.is_event_time()
    assert isinstance(processing.get_default_trigger(None), ProcessingTimeTrigger)


class Clock:
    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        self.timers: set[int] = set()

    def get_current_watermark(self) -> int:
        return self.watermark

    def register_event_time_timer(self, time: int) -> None:
        self.timers.add(time)

    def delete_event_time_timer(self, time: int) -> None:
        self.timers.discard(time)


def test_the_event_time_trigger_fires_at_the_windows_end_and_for_late_elements() -> None:
    trigger, window = EventTimeTrigger.create(), TimeWindow(0, 10)
    early, late = Clock(5), Clock(9)
    assert trigger.on_element("x", 3, window, early) is TriggerResult.CONTINUE  # type: ignore[arg-type]
    assert early.timers == {9}
    assert trigger.on_event_time(9, window, early).is_fire()  # type: ignore[arg-type]
    assert trigger.on_element("x", 3, window, late) is TriggerResult.FIRE  # type: ignore[arg-type]
    trigger.clear(window, early)  # type: ignore[arg-type]
    assert early.timers == set()
    assert TriggerResult.FIRE_AND_PURGE.is_purge()
    assert not TriggerResult.FIRE.is_purge()


def test_the_checkpoint_config_writes_through() -> None:
    conf = Configuration()
    config = CheckpointConfig(conf)
    assert (config.is_checkpointing_enabled(), config.get_checkpoint_interval()) == (False, -1)
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    assert (config.get_checkpoint_timeout(), config.get_max_concurrent_checkpoints()) == (600_000, 1)
    config.set_checkpoint_interval(30_000).set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
    config.set_checkpoint_timeout(5000).set_min_pause_between_checkpoints(100).set_max_concurrent_checkpoints(2)
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    config.set_tolerable_checkpoint_failure_number(3).set_checkpoint_storage_dir("s3://bucket/upi/")
    assert conf.to_dict() == {
        "execution.checkpointing.interval": "30000 ms",
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "execution.checkpointing.timeout": "5000 ms",
        "execution.checkpointing.min-pause": "100 ms",
        "execution.checkpointing.max-concurrent-checkpoints": "2",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.tolerable-failed-checkpoints": "3",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": "s3://bucket/upi/",
    }
    assert CheckpointConfig(conf).get_checkpoint_interval() == 30_000
    assert config.is_externalized_checkpoints_enabled()
    assert not config.is_fail_on_checkpointing_errors()
    storage = config.get_checkpoint_storage()
    assert isinstance(storage, FileSystemCheckpointStorage)
    assert storage.get_checkpoint_path() == "s3://bucket/upi/"
    config.set_checkpoint_storage(JobManagerCheckpointStorage())
    assert isinstance(config.get_checkpoint_storage(), JobManagerCheckpointStorage)
    conf.set_string("execution.checkpointing.interval", "1 min")
    assert config.get_checkpoint_interval() == 60_000
    config.disable_checkpointing()
    assert not config.is_checkpointing_enabled()


def test_wrong_checkpoint_settings_are_refused() -> None:
    config = CheckpointConfig()
    for call, value in (
        (config.set_checkpoint_interval, 0),
        (config.set_checkpoint_interval, "30s"),
        (config.set_checkpoint_timeout, -1),
        (config.set_checkpointing_mode, "EXACTLY_ONCE"),
        (config.set_checkpoint_storage_dir, ""),
        (config.set_checkpoint_storage, "s3://x"),
    ):
        with pytest.raises(ConfigurationError):
            call(value)  # type: ignore[operator]


def test_a_backend_writes_through_once_it_is_given_to_an_environment() -> None:
    backend = EmbeddedRocksDBStateBackend(True)
    backend.set_option(RocksDBOptions.BLOCK_CACHE_SIZE, "256mb").set_option(RocksDBOptions.MAX_WRITE_BUFFER_NUMBER, 4)
    backend.set_db_storage_paths("/a", "/b")
    conf = Configuration()
    backend.apply_to(conf)
    backend.set_number_of_transfer_threads(2)
    assert conf.to_dict() == {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "state.backend.rocksdb.block.cache-size": "256mb",
        "state.backend.rocksdb.writebuffer.count": "4",
        "state.backend.rocksdb.localdir": "/a;/b",
        "state.backend.rocksdb.checkpoint.transfer.thread.num": "2",
    }
    assert backend.get_db_storage_paths() == ["/a", "/b"]
    assert backend.get_option(RocksDBOptions.BLOCK_CACHE_SIZE) == 256 << 20
    assert backend.is_incremental_checkpoints_enabled()
    HashMapStateBackend().apply_to(conf)
    assert conf.get_string("state.backend.type", "") == "hashmap"


def test_presets_give_rocksdbs_options() -> None:
    backend = EmbeddedRocksDBStateBackend()
    assert backend.get_predefined_options() is PredefinedOptions.DEFAULT
    backend.set_predefined_options(PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM)
    conf = Configuration()
    backend.apply_to(conf)
    assert predefined_settings(conf.to_dict())["state.backend.rocksdb.block.cache-size"] == "256mb"
    assert predefined_settings({}) == {}
    with pytest.raises(ValueError, match="FLASH_SSD_OPTIMIZED"):
        predefined_settings({"state.backend.rocksdb.predefined-options": "FLOPPY"})


def test_wrong_backend_settings_are_refused() -> None:
    backend = EmbeddedRocksDBStateBackend()
    with pytest.raises(ConfigurationError, match=r"block\.cache-size: expected a memory size"):
        backend.set_option(RocksDBOptions.BLOCK_CACHE_SIZE, "lots")
    with pytest.raises(ConfigurationError, match="local directory"):
        backend.set_db_storage_paths("s3://x")
    with pytest.raises(ConfigurationError, match="at least 1 thread"):
        backend.set_number_of_transfer_threads(0)
    with pytest.raises(NotImplementedError, match="Java class"):
        backend.set_options("com.example.Factory")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("time_domain", ["TimeDomain"]),
        ("output_tag", ["OutputTag"]),
        ("timerservice", ["TimerService"]),
        ("checkpointing_mode", ["CheckpointingMode"]),
        ("execution_mode", ["RuntimeExecutionMode"]),
        ("formats.json", ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]),
        ("formats.csv", ["CsvRowDeserializationSchema", "CsvRowSerializationSchema"]),
    ],
)
def test_names_are_found_where_pyflink_has_them(module: str, names: list[str]) -> None:
    loaded = importlib.import_module(f"holdfast.datastream.{module}")
    for name in names:
        assert hasattr(loaded, name)
