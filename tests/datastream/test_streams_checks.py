"""What is wrong with a program is told at the call that is wrong, before anything runs."""

from __future__ import annotations

import re

import pytest

from holdfast.common import Configuration, TimestampAssigner, Types, WatermarkStrategy
from holdfast.common.restart_strategy import RestartStrategies
from holdfast.datastream import (
    CheckpointingMode,
    EmbeddedRocksDBStateBackend,
    FilterFunction,
    HashMapStateBackend,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.data_stream import DataStream, DataStreamSink
from holdfast.errors import ConfigurationError


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Plain(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


class AddOne(MapFunction):
    def map(self, value):
        return value + 1


class Positive(FilterFunction):
    def filter(self, value):
        return value > 0


def test_functions_may_be_callables_or_function_objects(stream):
    assert isinstance(stream.map(AddOne()), DataStream)
    assert isinstance(stream.map(str), DataStream)
    assert isinstance(stream.map("{}".format), DataStream)
    assert isinstance(stream.filter(Positive()), DataStream)
    assert isinstance(stream.flat_map(range), DataStream)
    assert isinstance(stream.key_by(lambda x: x).reduce(max), DataStream)


def test_a_class_instead_of_an_object_is_detected(stream, keyed):
    with pytest.raises(TypeError, match=r"map\(\) got the class AddOne; give it an object: AddOne\(\.\.\.\)"):
        stream.map(AddOne)
    with pytest.raises(TypeError, match="got the class Keyed"):
        keyed.process(Keyed)


def test_a_function_object_of_another_kind_is_rejected(stream):
    with pytest.raises(TypeError, match=r"filter\(\) takes a function \(value\).*method filter\(\), not a AddOne"):
        stream.filter(AddOne())
    with pytest.raises(TypeError, match=r"map\(\).* not a int \(3\)"):
        stream.map(3)


def test_a_function_that_does_not_take_the_arguments_is_rejected(stream, keyed):
    with pytest.raises(ConfigurationError, match=r"map\(\) is called with \(value\), but .*<lambda>\(\) does not fit"):
        stream.map(lambda: 1)
    with pytest.raises(ConfigurationError, match=r"reduce\(\) is called with \(value1, value2\)"):
        keyed.reduce(lambda a: a)

    class NoContext(KeyedProcessFunction):
        def process_element(self, value):
            yield value

    with pytest.raises(ConfigurationError, match=r"\(value, ctx\), but .*NoContext.process_element\(value\)"):
        keyed.process(NoContext())


def test_keyed_functions_need_keys_and_plain_ones_do_not_have_any(stream, keyed):
    with pytest.raises(TypeError, match=r"KeyedProcessFunction Keyed: state and timers belong to keys. Call key_by"):
        stream.process(Keyed())
    with pytest.raises(TypeError, match=r"takes a KeyedProcessFunction, not a Plain. Derive it"):
        keyed.process(Plain())
    with pytest.raises(TypeError, match="takes a ProcessFunction"):
        stream.process(lambda value, ctx: None)
    assert not hasattr(stream, "window")
    assert not hasattr(stream, "reduce")


def test_operations_that_need_keys_say_so(stream):
    for name in ("window", "reduce", "sum", "min_by"):
        with pytest.raises(AttributeError, match=rf"has no {name}\(\): it needs keys, so call key_by"):
            getattr(stream, name)
    with pytest.raises(AttributeError, match=r"a DataStream has no windowed\(\)$"):
        stream.windowed


def test_open_must_take_the_runtime_context(stream):
    class Opened(AddOne):
        def open(self):
            pass

    with pytest.raises(ConfigurationError, match=r"\(runtime_context\), but .*Opened.open\(\) does not fit"):
        stream.map(Opened())


def test_missing_features_have_no_methods(stream):
    assert not hasattr(stream, "iterate")


@pytest.mark.parametrize("call", ["name", "uid", "set_parallelism", "set_max_parallelism", "set_description"])
def test_settings_of_an_operator_are_refused_without_an_operator(keyed, stream, call):
    argument = 2 if "parallelism" in call else "text"
    with pytest.raises(ConfigurationError, match=rf"{call}\(\) belongs to an operator, and this KeyedStream is none"):
        getattr(keyed, call)(argument)
    with pytest.raises(ConfigurationError, match="this union is none"):
        getattr(stream.union(stream), call)(argument)
    with pytest.raises(ConfigurationError, match="stream partitioned by REBALANCE is none"):
        getattr(stream.rebalance(), call)(argument)


@pytest.mark.parametrize("spread", ["shuffle", "rebalance", "rescale", "forward", "broadcast"])
def test_a_keyed_stream_cannot_be_repartitioned(keyed, spread):
    with pytest.raises(ConfigurationError, match=rf"partitioned by its keys already; {spread}\(\)"):
        getattr(keyed, spread)()


def test_settings_are_kept(stream):
    operator = stream.map(str).name("n").uid("u").set_parallelism(3).set_max_parallelism(9).set_description("d")
    operator.slot_sharing_group("g")
    node = operator._transformation
    assert (node.name, node.uid, node.parallelism, node.max_parallelism) == ("n", "u", 3, 9)
    assert (node.description, node.slot_sharing_group) == ("d", "g")
    assert operator.get_name() == "n"
    assert operator.force_non_parallel()._transformation.parallelism == 1


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", True, None])
def test_a_parallelism_is_a_whole_number_from_one(stream, bad):
    with pytest.raises(ConfigurationError, match="parallelism must be a whole number"):
        stream.map(str).set_parallelism(bad)


def test_a_collection_is_read_by_one_subtask(stream):
    assert stream._transformation.parallelism == 1
    with pytest.raises(ConfigurationError, match="can only be read by one subtask"):
        stream.set_parallelism(2)


def test_side_outputs_belong_to_the_operators_that_have_them(stream, keyed):
    tag = OutputTag("late", Types.STRING())
    side = stream.process(Plain()).get_side_output(tag)
    assert side.get_type() == Types.STRING()
    with pytest.raises(ConfigurationError, match=r"'Map'.* has no side outputs. Call get_side_output"):
        stream.map(str).get_side_output(tag)
    with pytest.raises(ConfigurationError, match="a KeyedStream has no side outputs"):
        keyed.get_side_output(tag)
    with pytest.raises(TypeError, match="takes an OutputTag"):
        stream.process(Plain()).get_side_output("late")


def test_types_are_types(env, stream):
    with pytest.raises(TypeError, match=r"output_type of Map takes a type such as Types.STRING\(\), not <"):
        stream.map(str, Types.STRING)
    with pytest.raises(TypeError, match=r"key_type of key_by\(\)"):
        stream.key_by(str, str)
    with pytest.raises(TypeError, match=r"from_collection\(\) takes a type"):
        env.from_collection([1], int)
    assert stream.process(Plain(), [Types.INT()]).get_type() == Types.ROW([Types.INT()])


def test_collecting_that_cannot_start_leaves_nothing_behind(env, stream):
    env.get_config().disable_auto_generated_uids()
    with pytest.raises(ConfigurationError, match="needs a uid"):
        stream.execute_and_collect()
    with pytest.raises(ConfigurationError, match="limit must be a whole number"):
        stream.execute_and_collect(limit=0)
    assert env._operators == []


def test_unions_are_of_streams_of_one_environment(stream):
    with pytest.raises(TypeError, match="union"):
        stream.union([1])
    other = StreamExecutionEnvironment().from_collection([1])
    with pytest.raises(ConfigurationError, match="one environment"):
        stream.union(other)


def test_only_sinks_and_sources_are_taken_as_such(env, stream):
    with pytest.raises(TypeError, match=r"sink_to\(\) takes a Sink, not a str"):
        stream.sink_to("topic")

    class Builder:
        def build(self):
            return None

    with pytest.raises(TypeError, match=r"not a Builder. Call build\(\) on it."):
        stream.add_sink(Builder())
    with pytest.raises(TypeError, match=r"from_source\(\) takes a Source, not a Builder. Call build\(\)"):
        env.from_source(Builder(), None, "name")
    with pytest.raises(TypeError, match=r"takes a WatermarkStrategy"):
        env.from_source(stream._transformation.source, None, "name")
    with pytest.raises(TypeError, match=r"takes a WatermarkStrategy"):
        stream.assign_timestamps_and_watermarks(lambda x, t: x)


def test_sinks_take_settings(stream):
    sink = stream.print()
    assert isinstance(sink, DataStreamSink)
    sink.name("n").uid("u").set_parallelism(1).set_description("d").disable_chaining().slot_sharing_group("g")
    node = sink._transformation
    assert (node.name, node.uid, node.parallelism, node.description) == ("n", "u", 1, "d")


def test_a_collection_is_made_to_fit_its_type(env):
    stream = env.from_collection([(1, "a")], Types.ROW([Types.INT(), Types.STRING()]))
    assert stream.get_type() == Types.ROW([Types.INT(), Types.STRING()])
    with pytest.raises(ConfigurationError, match=r"Element 1 of the collection, 'x', does not fit"):
        env.from_collection([1, "x"], Types.INT())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("holdfast.epoch.target-duration", "soon", "expected a duration"),
        ("holdfast.epoch.target-duration", "0", "must be at least 1"),
        ("holdfast.epoch.max-records", "many", "expected a whole number"),
        ("holdfast.batch.records", "0", "must be at least 1"),
        ("holdfast.frame.records", "-1", "must be at least 1"),
        ("holdfast.epoch.target", "1 s", "is not a setting; there are holdfast.epoch.target-duration"),
        ("execution.state-recovery.ignore-unclaimed-state", "yes", "expected true or false"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_key(env, stream, key, value, said):
    stream.print()
    env.configure(Configuration.from_dict({key: value}))
    with pytest.raises(ConfigurationError, match=f"{re.escape(key)}.*{said}"):
        env._plan("job")


def test_types_pass_through_operations_that_keep_elements(env):
    stream = env.from_collection([1], Types.INT())
    assert stream.filter(bool).get_type() == Types.INT()
    assert stream.key_by(lambda x: x).reduce(max).get_type() == Types.INT()
    assert stream.rebalance().union(stream).get_type() == Types.INT()
    assert stream.map(str).get_type() == Types.PICKLED_BYTE_ARRAY()
    assert stream.map(str, Types.STRING()).get_type() == Types.STRING()


class TestEnvironment:
    def test_parallelism_applies_to_what_is_added_later(self, env):
        first = env.from_collection([1]).map(str)
        env.set_parallelism(5)
        assert first._transformation.parallelism == 2
        assert first.map(str)._transformation.parallelism == 5

    def test_by_default_the_parallelism_is_the_number_of_cores(self):
        assert StreamExecutionEnvironment().get_parallelism() >= 1

    def test_settings_made_by_calls_are_settings_of_the_configuration(self, env):
        env.enable_checkpointing(1000, CheckpointingMode.AT_LEAST_ONCE)
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 100))
        env.set_state_backend(EmbeddedRocksDBStateBackend())
        env.from_collection([1]).print()
        config = env._plan(None).config
        assert config["restart-strategy.type"] == "fixed-delay"
        assert config["restart-strategy.fixed-delay.attempts"] == "3"
        assert config["state.backend.type"] == "rocksdb"
        assert config["execution.checkpointing.mode"] == "AT_LEAST_ONCE"
        assert env.get_checkpoint_interval() == 1000
        assert env.get_checkpointing_mode() is CheckpointingMode.AT_LEAST_ONCE
        env.set_state_backend(HashMapStateBackend())
        assert env._plan(None).config["state.backend.type"] == "hashmap"

    def test_the_environment_keeps_its_own_copy_of_the_configuration(self):
        from holdfast.common import Configuration

        given = Configuration()
        env = StreamExecutionEnvironment.get_execution_environment(given)
        env.set_parallelism(7)
        assert given.key_set() == set()
        env.configure(Configuration.from_dict({"parallelism.default": 3}))
        assert env.get_parallelism() == 3

    def test_wrong_settings_are_rejected(self, env):
        with pytest.raises(TypeError, match=r"set_state_backend\(\) takes an EmbeddedRocksDBStateBackend"):
            env.set_state_backend("rocksdb")
        with pytest.raises(TypeError, match=r"RestartStrategies.no_restart\(\)"):
            env.set_restart_strategy("none")
        with pytest.raises(TypeError, match="takes a RuntimeExecutionMode"):
            env.set_runtime_mode("BATCH")

    def test_a_key_selector_cannot_be_opened(self, stream):
        class Opened(KeySelector):
            def open(self, runtime_context):
                pass

            def get_key(self, value):
                return value

        with pytest.raises(ConfigurationError, match="between operators"):
            stream.key_by(Opened())

    def test_a_java_home_without_java_is_reported_when_the_environment_is_created(self, monkeypatch, tmp_path):
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(ConfigurationError, match="JAVA_HOME"):
            StreamExecutionEnvironment.get_execution_environment()

    def test_jars_are_not_needed(self, env, caplog):
        env.add_jars("file:///flink-sql-connector-kafka.jar")
        assert "flink-sql-connector-kafka.jar" in caplog.text


def test_a_timestamp_assigner_takes_two_arguments(env, stream):
    class OneArgument(TimestampAssigner):
        def extract_timestamp(self, value):
            return value

    monotonous = WatermarkStrategy.for_monotonous_timestamps()
    for assigner in (lambda value: value, OneArgument()):
        strategy = monotonous.with_timestamp_assigner(assigner)
        with pytest.raises(ConfigurationError, match=r"assign_timestamps.*with \(value, record_timestamp\), but .* not fit"):
            stream.assign_timestamps_and_watermarks(strategy)
        with pytest.raises(
            ConfigurationError, match=r"strategy of from_source\(\) is called with \(value, record_timestamp\)"
        ):
            env.from_source(NumberSequenceSource(1, 3), strategy, "numbers")


def test_a_collection_is_one_and_its_elements_fit_their_type(env):
    with pytest.raises(
        ConfigurationError, match=r"Element 1 of the collection, 2147483648, does not fit Types.INT\(\): INT"
    ):
        env.from_collection([1, 2**31], Types.INT())
    for wrong in (None, 5):
        with pytest.raises(TypeError, match=r"from_collection\(\) takes a list of elements, not (None|5)\."):
            env.from_collection(wrong)


async def later(value):
    return value


def several(value):
    yield value


class SeveralKeys(KeySelector):
    def get_key(self, value):
        yield value


def test_coroutines_and_generators_are_refused_where_one_result_is_wanted(stream, keyed):
    for call in (stream.map, stream.filter, stream.key_by, stream.flat_map, keyed.map):
        with pytest.raises(ConfigurationError, match=r"later is a coroutine function, .* write it with def"):
            call(later)
    for call in (stream.map, stream.filter, stream.key_by, keyed.map):
        with pytest.raises(ConfigurationError, match=r"several is a generator function, .* one result; .* flat_map\(\)"):
            call(several)
    with pytest.raises(ConfigurationError, match=r"SeveralKeys\.get_key is a generator function"):
        stream.key_by(SeveralKeys())
    assert isinstance(stream.flat_map(several), DataStream)


def test_a_union_has_the_type_that_all_its_streams_have(env):
    ints, strings = env.from_collection([1], Types.INT()), env.from_collection(["a"], Types.STRING())
    assert ints.union(ints).get_type() == Types.INT()
    assert ints.union(strings).get_type() == Types.PICKLED_BYTE_ARRAY()
    assert ints.union(env.from_collection([1])).get_type() == Types.PICKLED_BYTE_ARRAY()
