"""Settings of Flink's JVM and cluster are kept, and what cannot be is refused with a reason."""

from __future__ import annotations

import importlib
import logging
import os
from datetime import timedelta

import pytest

from holdfast.common import Configuration, Duration, ExecutionConfig, WatermarkStrategy
from holdfast.datastream import CheckpointingMode, StreamExecutionEnvironment
from holdfast.datastream.checkpoint_storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.operations.environment_settings import EnvironmentSettings
from holdfast.datastream.slot_sharing_group import MemorySize, SlotSharingGroup
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import SourceTransformation
from holdfast.runtime.plan.settings import JobSettings


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(spark=object()).set_parallelism(2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        ("latency_tracking_interval", 0),
        ("task_cancellation_interval", 30_000),
        ("task_cancellation_timeout", 180_000),
    ],
)
def a_duration_of_the_jvm_is_kept(setting, default):
    config = ExecutionConfig()
    assert getattr(config, f"get_{setting}")() == default
    assert getattr(config, f"set_{setting}")(1234) is config
    assert getattr(config, f"get_{setting}")() == 1234


@pytest.mark.parametrize(
    ("on", "off", "reads", "by_default"),
    [
        ("enable_closure_cleaner", "disable_closure_cleaner", "is_closure_cleaner_enabled", True),
        ("enable_force_kryo", "disable_force_kryo", "is_force_kryo_enabled", False),
        ("enable_force_avro", "disable_force_avro", "is_force_avro_enabled", False),
        ("disable_generic_types", "enable_generic_types", "has_generic_types_disabled", False),
    ],
)
def a_flag_of_the_jvm_is_kept(on, off, reads, by_default):
    config = ExecutionConfig()
    assert getattr(config, reads)() is by_default
    assert getattr(getattr(config, on)(), reads)() is True
    assert getattr(getattr(config, off)(), reads)() is False
    assert (config.get_default_kryo_serializer_classes(), config.get_registered_kryo_types()) == ({}, [])


def the_environment_keeps_settings_of_a_cluster(env):
    assert env.is_changelog_state_backend_enabled() is None
    assert env.enable_changelog_state_backend(True).is_changelog_state_backend_enabled() is True
    assert env.get_default_savepoint_directory() is None
    assert env.set_default_savepoint_directory("file:///s").get_default_savepoint_directory() == "file:///s"
    assert env.get_checkpointing_consistency_mode() is CheckpointingMode.EXACTLY_ONCE
    assert not env.is_unaligned_checkpoints_enabled()
    assert not env.is_force_unaligned_checkpoints()
    config = env.get_checkpoint_config().set_force_unaligned_checkpoints().enable_unaligned_checkpoints()
    assert env.is_unaligned_checkpoints_enabled()
    assert env.is_force_unaligned_checkpoints()
    assert config.get_aligned_checkpoint_timeout() == Duration.of_millis(0)
    assert config.set_aligned_checkpoint_timeout(timedelta(seconds=2)).get_alignment_timeout() == Duration.of_seconds(2)
    assert env.is_chaining_of_operators_with_different_max_parallelism_enabled()
    env.close()


def the_default_parallelism_of_a_process_can_be_set():
    cores = len(os.sched_getaffinity(0))
    env = StreamExecutionEnvironment.get_execution_environment()
    assert env.get_default_local_parallelism() == env.get_parallelism() == cores
    try:
        env.set_default_local_parallelism(cores + 5)
        assert StreamExecutionEnvironment.get_execution_environment().get_parallelism() == cores + 5
        assert env.set_parallelism(3).get_parallelism() == 3
        with pytest.raises(ConfigurationError, match="default local parallelism must be a whole number"):
            env.set_default_local_parallelism(0)
    finally:
        EnvironmentSettings._local_parallelism = None
    assert StreamExecutionEnvironment.get_execution_environment().get_parallelism() == cores


def a_slot_sharing_group_is_taken_wherever_flink_takes_one(env):
    group = SlotSharingGroup.builder("big").set_cpu_cores(2.0).set_task_heap_memory_mb(64).set_external_resource("gpu", 1)
    big = group.set_managed_memory(MemorySize.of_mebi_bytes(2048)).set_task_off_heap_memory_mb(1).build()
    assert (big.get_name(), big.get_cpu_cores(), big.get_external_resources()) == ("big", 2.0, {"gpu": 1})
    assert big.get_task_heap_memory() == MemorySize(64 << 20)
    assert big.get_managed_memory().get_gibi_bytes() == 2
    assert big.get_task_off_heap_memory().get_kibi_bytes() == 1024
    assert big == group.build()
    assert env.register_slot_sharing_group(big) is env
    with pytest.raises(TypeError, match="takes a SlotSharingGroup, not 'big'"):
        env.register_slot_sharing_group("big")
    numbers = env.from_collection([1]).slot_sharing_group(big)
    assert numbers._transformation.slot_sharing_group == "big"
    assert numbers.set_buffer_timeout(5) is numbers
    numbers.print().slot_sharing_group("small").set_buffer_timeout(3)


def an_older_source_call_makes_a_stream_without_watermarks(env):
    numbers = env.add_source(NumberSequenceSource(1, 5), "numbers")
    assert isinstance(numbers._transformation, SourceTransformation)
    assert numbers.get_name() == "numbers"
    assert numbers._transformation.watermark_strategy == WatermarkStrategy.no_watermarks()


def the_storage_classes_take_flinks_arguments():
    assert JobManagerCheckpointStorage("x", 7).get_max_state_size() == 7
    assert JobManagerCheckpointStorage().get_checkpoint_path() is None
    assert FileSystemCheckpointStorage("file:///c").get_savepoint_path() is None
    with pytest.raises(ConfigurationError, match="the checkpoint directory must be a URI"):
        FileSystemCheckpointStorage()


def a_call_that_cannot_work_is_refused_with_its_reason(env, caplog):
    numbers = env.from_collection([1])
    for call, told in (
        (lambda: numbers.cache(), "not cached between jobs"),
        (lambda: numbers.set_uid_hash("a"), "uid"),
        (lambda: env.register_cached_file("a", "b"), "add_python_archive"),
        (lambda: env.create_input(None), "from_source"),
    ):
        with pytest.raises(NotImplementedError, match=told):
            call()
    with caplog.at_level(logging.WARNING):
        env.add_classpaths("a.jar")
    assert "add_classpaths(a.jar) has no effect" in caplog.text


@pytest.mark.parametrize(
    ("module", "name", "told"),
    [
        ("datastream", "SinkFunction", "derive a sink"),
        ("datastream.functions", "SourceFunction", "derive a source"),
        ("datastream.connectors.kafka", "FlinkKafkaConsumer", "KafkaSource.builder"),
        ("datastream.connectors.file_system", "StreamingFileSink", "for_row_format"),
        ("common.typeinfo", "DateTypeInfo", "SQL_DATE"),
        ("metrics.metricbase", "Metric", "base class"),
    ],
)
def a_class_of_the_jvm_is_refused_at_its_import(module, name, told):
    found = importlib.import_module(f"holdfast.{module}")
    for look in (lambda: getattr(found, name), lambda: exec(f"from holdfast.{module} import {name}")):
        with pytest.raises(NotImplementedError, match=rf"holdfast.{module} has no {name}: .*{told}"):
            look()
    assert not hasattr(found, name)
    assert getattr(found, name, None) is None
    with pytest.raises(AttributeError, match=f"module 'holdfast.{module}' has no attribute 'Other'"):
        found.Other


def a_configuration_and_its_equal_have_one_hash():
    first, second = Configuration.from_dict({"a": 1, "b": True}), Configuration().set_boolean("b", True).set_integer("a", 1)
    assert first == second
    assert hash(first) == hash(second)
    assert len({first, second}) == 1
    assert Configuration.from_dict({"list": ["a", 2], "map": {"k": "v"}}).to_dict() == {"list": "a;2", "map": "k:v"}
    assert Configuration.parse_list_value("a;2") == ["a", "2"]


def a_wrong_setting_is_refused_without_the_frames_of_holdfast() -> None:
    with pytest.raises(ConfigurationError, match="it must be hashmap or rocksdb") as caught:
        JobSettings.of({"state.backend.type": "foo"})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
