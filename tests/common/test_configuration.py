"""Configuration, options, and what is built on them."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import ConfigOptions, Configuration, ExecutionConfig, RestartStrategies
from holdfast.common.config_options import CheckpointingOptions, RestartOptions
from holdfast.common.config_values import format_duration, format_map, parse_duration, parse_map, parse_memory_size
from holdfast.common.system.modes import CheckpointingMode
from holdfast.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("12000", 12000),
        ("1 min", 60_000),
        ("1min", 60_000),
        ("30 s", 30_000),
        ("30SECONDS", 30_000),
        ("2 h", 7_200_000),
        ("1d", 86_400_000),
        ("500 ms", 500),
        (" 7 ", 7),
        ("1500 us", 1),
        ("0", 0),
    ],
)
def test_durations_are_read(text: str, millis: int) -> None:
    assert parse_duration(text) == millis


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64mb", 64 << 20), ("1 g", 1 << 30), ("512k", 512 << 10), ("8 KB", 8192), ("1tb", 1 << 40)],
)
def test_memory_sizes_are_read(text: str, size: int) -> None:
    assert parse_memory_size(text) == size


@pytest.mark.parametrize("text", ["", "min", "-5", "1.5 s", "5 parsecs", "1 min 2 s", "1\u0665"])
def test_nonsense_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="1 min"):
        parse_duration(text)
    with pytest.raises(ValueError, match="64mb"):
        parse_memory_size(text)


@given(st.integers(0, 10**15))
def test_durations_are_read_as_they_were_written(millis: int) -> None:
    assert parse_duration(format_duration(millis)) == millis


@given(st.dictionaries(st.text(), st.text()))
def test_maps_are_read_as_they_were_written(entries: dict[str, str]) -> None:
    assert parse_map(format_map(entries)) == entries


def test_flinks_form_of_maps_is_read() -> None:
    assert parse_map("a:1, b : 'x,y:z'") == {"a": "1", "b": "x,y:z"}
    with pytest.raises(ValueError, match="key:value"):
        parse_map("a,b")


def test_settings_of_each_type_are_kept_as_text() -> None:
    conf = Configuration()
    conf.set_string("s", "x").set_integer("i", 5).set_boolean("b", True).set_float("f", 1.5)
    conf.set_bytearray("y", bytearray(b"\x00\xff"))
    assert conf.to_dict() == {"s": "x", "i": "5", "b": "true", "f": "1.5", "y": "00ff"}
    assert conf.get_string("s", "") == "x"
    assert conf.get_integer("i", 0) == 5
    assert conf.get_boolean("b", False) is True
    assert conf.get_float("f", 0.0) == 1.5
    assert conf.get_bytearray("y", bytearray()) == bytearray(b"\x00\xff")
    assert conf.get_integer("missing", 7) == 7
    assert conf.key_set() == {"s", "i", "b", "f", "y"}


@pytest.mark.parametrize("read", ["get_integer", "get_boolean", "get_float", "get_duration_ms", "get_memory_bytes"])
def test_a_bad_setting_names_its_key(read: str) -> None:
    conf = Configuration.from_dict({"some.key": "oops"})
    with pytest.raises(ConfigurationError, match=r"some\.key: expected .*'oops'"):
        getattr(conf, read)("some.key", 0)


def test_flink_1_names_of_keys_mean_the_new_ones() -> None:
    conf = Configuration.from_dict({"state.backend": "rocksdb", "state.checkpoints.dir": "file:///c"})
    assert conf.to_dict() == {"state.backend.type": "rocksdb", "execution.checkpointing.dir": "file:///c"}
    assert conf.get_string("state.backend", "") == "rocksdb"
    assert conf.contains_key("state.backend")
    assert conf.remove_config("state.backend")
    assert not conf.remove_config("state.backend.type")


def test_configurations_are_added_and_copied() -> None:
    first = Configuration.from_dict({"a": 1})
    second = Configuration(first).add_all(Configuration.from_dict({"b": True}), "p.")
    target: dict[str, object] = {}
    second.add_all_to_dict(target)
    assert target == {"a": "1", "p.b": "true"}
    assert first.to_dict() == {"a": "1"}
    assert second != first == Configuration.from_dict({"a": "1"})


def test_lists_are_read_in_both_forms() -> None:
    assert Configuration.parse_list_value("a; b;") == ["a", "b"]
    assert Configuration.parse_list_value("['a', b]") == ["a", "b"]


def test_no_text_is_an_empty_list() -> None:
    assert Configuration.parse_list_value(None) == Configuration.parse_list_value(" ") == []


def the_settings_go_to_a_dict_as_they_were_set() -> None:
    conf = Configuration().set_string("s", "x").set_integer("i", 1).set_float("f", 1.5).set_boolean("b", True)
    conf.set_bytearray("y", bytearray(b"\x01\x02")).set_integer("again", 7).set_string("again", "7")
    target: dict[str, object] = {}
    Configuration(conf).add_all_to_dict(target)
    assert target == {"s": "x", "i": 1, "f": 1.5, "b": True, "y": bytearray(b"\x01\x02"), "again": "7"}
    assert target["b"] is True


def a_configuration_is_shown_in_flinks_form() -> None:
    assert str(Configuration().set_string("b.key", "1 min").set_boolean("a", True)) == "{a=true, b.key=1 min}"
    assert str(Configuration()) == "{}"


def test_keys_and_values_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="non-empty"):
        Configuration().set_string("", "x")
    with pytest.raises(ConfigurationError, match="a string, a number, a boolean, a list or a map"):
        Configuration.from_dict({"a": object()})


def test_options_have_a_type_and_a_default() -> None:
    option = ConfigOptions.key("x").int_type().default_value(3)
    conf = Configuration()
    assert conf.get(option) == 3
    assert conf.set(option, 4).get(option) == 4
    with pytest.raises(ConfigurationError, match="x: expected a whole number"):
        conf.set(option, "four")
    assert Configuration().get(ConfigOptions.key("y").string_type().no_default_value()) is None
    assert conf.get(ConfigOptions.key("z").boolean_type().default_value(True)) is True


def test_an_enumeration_option_takes_its_members_names() -> None:
    conf = Configuration.from_dict({"execution.checkpointing.mode": "at-least-once"})
    assert conf.get(CheckpointingOptions.MODE) is CheckpointingMode.AT_LEAST_ONCE
    conf.set_string("execution.checkpointing.mode", "maybe")
    with pytest.raises(ConfigurationError, match="expected one of EXACTLY_ONCE, AT_LEAST_ONCE, got 'maybe'"):
        conf.get(CheckpointingOptions.MODE)


def test_the_execution_config_writes_through() -> None:
    conf = Configuration()
    config = ExecutionConfig(conf)
    assert (config.get_parallelism(), config.get_max_parallelism()) == (-1, -1)
    assert config.get_auto_watermark_interval() == 200
    config.set_parallelism(4).set_max_parallelism(256).set_auto_watermark_interval(50)
    config.set_global_job_parameters({"rules": "a:1,b", "n": 3}).disable_auto_generated_uids().enable_object_reuse()
    assert conf.get_integer("parallelism.default", 0) == 4
    assert conf.get_integer("pipeline.max-parallelism", 0) == 256
    assert config.get_auto_watermark_interval() == 50
    assert config.get_global_job_parameters() == {"rules": "a:1,b", "n": "3"}
    assert not config.has_auto_generated_uids_enabled()
    assert config.is_object_reuse_enabled()
    assert config.set_parallelism(-1).get_parallelism() == -1
    for call in (config.set_parallelism, config.set_max_parallelism):
        with pytest.raises(ConfigurationError):
            call(0)
    with pytest.raises(ConfigurationError):
        config.set_auto_watermark_interval(-1)


def test_restart_strategies_become_settings() -> None:
    conf = Configuration()
    fixed = RestartStrategies.fixed_delay_restart(3, 1500)
    assert (fixed.get_restart_attempts(), fixed.get_delay_between_attempts_interval().total_seconds()) == (3, 1.5)
    fixed.apply_to(conf)
    assert conf.get(RestartOptions.TYPE) == "fixed-delay"
    assert (conf.get(RestartOptions.FIXED_DELAY_ATTEMPTS), conf.get(RestartOptions.FIXED_DELAY_DELAY)) == (3, 1500)
    RestartStrategies.failure_rate_restart(2, datetime.timedelta(minutes=5), 1000).apply_to(conf)
    assert conf.get(RestartOptions.TYPE) == "failure-rate"
    assert conf.get(RestartOptions.FAILURE_RATE_INTERVAL) == 300_000
    RestartStrategies.no_restart().apply_to(conf)
    assert conf.get(RestartOptions.TYPE) == "none"
    RestartStrategies.fall_back_restart().apply_to(conf)
    assert conf.get(RestartOptions.TYPE) is None
    with pytest.raises(ConfigurationError, match="restart_attempts"):
        RestartStrategies.fixed_delay_restart(-1, 0)
    assert "5" in RestartStrategies.failure_rate_restart(5, 1, 0).get_description()


def test_a_dict_is_no_configuration_but_becomes_one() -> None:
    for take in (Configuration, Configuration().add_all):
        with pytest.raises(
            TypeError, match=r"a Configuration is wanted, not a dict; Configuration.from_dict\(\.\.\.\) makes one"
        ):
            take({"parallelism.default": "3"})  # type: ignore[operator]
