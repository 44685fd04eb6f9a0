"""Which operators share a task, and how records get from one task to the next."""

from __future__ import annotations

import pickle

import cloudpickle
import pytest

from holdfast.common import Configuration, Duration, Time, WatermarkStrategy
from holdfast.datastream import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.plan.plan import InputKind, JobPlan, Partitioning, Vertex
from holdfast.runtime.protocol.statistics import plan_shape

RED = OutputTag("red")


class Keep(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Both(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield value

    process_element2 = process_element1


class Split(ProcessFunction):
    def process_element(self, value, ctx):
        yield value
        yield RED, value


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment().set_parallelism(2)


def plan_of(env: StreamExecutionEnvironment) -> JobPlan:
    return env._plan("test")


def shape(plan: JobPlan) -> list[str]:
    return [v.name for v in plan.vertices]


def channels(plan: JobPlan) -> list[tuple[int, str, int]]:
    return [
        (v.id, channel.partitioning.value, channel.target)
        for v in plan.vertices
        for chained in v.chain
        for channel in chained.channels
    ]


def check_well_formed(plan: JobPlan) -> None:
    """What the runtime relies on, for any plan."""
    fed: dict[int, list[tuple[Vertex, Partitioning]]] = {v.id: [] for v in plan.vertices}
    ids = []
    for vertex in plan.vertices:
        assert vertex.chain
        for position, chained in enumerate(vertex.chain):
            assert all(edge.target > position for edge in chained.edges)
            for channel in chained.channels:
                ids.append(channel.id)
                fed[channel.target].append((vertex, channel.partitioning))
        inner = {edge.target for chained in vertex.chain for edge in chained.edges}
        assert inner == set(range(1, len(vertex.chain))), "every operator but the first is fed within the chain"
    assert len(set(ids)) == len(ids)
    for vertex in plan.vertices:
        producers = fed[vertex.id]
        assert (vertex.source is not None) != bool(producers), "either a source or channels"
        assert vertex.level == (1 + max(p.level for p, _ in producers) if producers else 0)
        assert (vertex.inputs == ()) == (vertex.source is not None)
        if vertex.chain[0].factory.state is StateKind.KEYED:
            assert InputKind.KEYED in vertex.inputs
        if vertex.inputs == (InputKind.KEYED,):
            assert all(partitioning is Partitioning.HASH for _, partitioning in producers)
        for producer, partitioning in producers:
            if partitioning is Partitioning.FORWARD:
                assert producer.parallelism == vertex.parallelism
    uids = [c.uid for v in plan.vertices for c in v.chain] + [v.source.uid for v in plan.vertices if v.source]
    assert len(set(uids)) == len(uids)
    assert pickle.loads(cloudpickle.dumps(plan)).levels == plan.levels


def test_operators_that_need_no_shuffle_run_in_one_task(env):
    numbers = env.from_collection([1, 2, 3])
    numbers.map(lambda x: x + 1).set_parallelism(1).filter(lambda x: x > 2).set_parallelism(1).print().set_parallelism(1)
    plan = plan_of(env)
    check_well_formed(plan)
    assert shape(plan) == ["Source: Collection Source -> Map -> Filter -> Sink: Print to Std. Out"]
    (vertex,) = plan.vertices
    assert [c.name for c in vertex.chain] == ["Map", "Filter", "Print to Std. Out"]
    assert [[e.target for e in c.edges] for c in vertex.chain] == [[1], [2], []]
    assert vertex.source is not None
    assert vertex.source.name == "Collection Source"
    assert vertex.parallelism == 1


def test_a_change_of_parallelism_rebalances(env):
    env.from_collection([1]).map(lambda x: x).print()
    plan = plan_of(env)
    check_well_formed(plan)
    assert shape(plan) == ["Source: Collection Source", "Map -> Sink: Print to Std. Out"]
    assert channels(plan) == [(0, "REBALANCE", 1)]
    assert [v.parallelism for v in plan.vertices] == [1, 2]
    assert [c.name for c in plan.vertices[0].chain] == ["Collection Source"]


def test_several_shuffles_make_as_many_levels(env):
    (
        env.from_collection([("a", 1)])
        .key_by(lambda x: x[0])
        .process(Keep())
        .key_by(lambda x: x[1])
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .reduce(lambda a, b: a)
        .print()
    )
    plan = plan_of(env)
    check_well_formed(plan)
    assert shape(plan) == [
        "Source: Collection Source",
        "KeyedProcess",
        "Window(TumblingEventTimeWindows) -> Sink: Print to Std. Out",
    ]
    assert channels(plan) == [(0, "HASH", 1), (1, "HASH", 2)]
    assert plan.levels == 3
    assert [v.inputs for v in plan.vertices] == [(), (InputKind.KEYED,), (InputKind.KEYED,)]
    (channel,) = plan.vertices[1].chain[0].channels
    assert channel.key_selector is not None
    assert channel.key_selector(("a", 7)) == 7


def test_two_readers_of_one_stream_are_chained_as_a_tree(env):
    mapped = env.from_collection([1]).map(lambda x: x).set_parallelism(2)
    mapped.filter(lambda x: x > 0).print("even")
    mapped.print("all")
    plan = plan_of(env)
    check_well_formed(plan)
    assert shape(plan)[1] == "Map -> (Filter -> Sink: Print to Std. Out, Sink: Print to Std. Out)"
    head = plan.vertices[1].chain[0]
    assert [edge.target for edge in head.edges] == [1, 3]


def test_a_source_with_several_readers_spreads_from_one_place(env):
    source = env.from_collection([1])
    source.map(lambda x: x).set_parallelism(1).print().set_parallelism(1)
    source.key_by(lambda x: x).process(Keep()).print()
    plan = plan_of(env)
    check_well_formed(plan)
    first = plan.vertices[0]
    assert [c.name for c in first.chain] == ["Collection Source", "Map", "Print to Std. Out"]
    assert [e.target for e in first.chain[0].edges] == [1]
    assert [c.partitioning for c in first.chain[0].channels] == [Partitioning.HASH]


def test_a_union_of_equal_parallelism_forwards_from_each_input(env):
    left = env.from_collection([1]).rebalance().map(lambda x: x)
    right = env.from_collection([2]).rebalance().map(lambda x: x)
    left.union(right).filter(bool).print()
    plan = plan_of(env)
    check_well_formed(plan)
    assert shape(plan)[-1] == "Filter -> Sink: Print to Std. Out"
    last = plan.vertices[-1]
    assert [c for c in channels(plan) if c[2] == last.id] == [(1, "FORWARD", last.id), (3, "FORWARD", last.id)]
    assert last.level == 2


def test_a_union_of_other_parallelism_rebalances_that_input(env):
    left = env.from_collection([1]).map(lambda x: x)
    left.union(env.from_collection([2])).print()
    plan = plan_of(env)
    check_well_formed(plan)
    last = plan.vertices[-1]
    assert sorted(how for _, how, target in channels(plan) if target == last.id) == ["FORWARD", "REBALANCE"]


def test_a_union_can_be_keyed_and_holds_a_stream_twice(env):
    stream = env.from_collection([1])
    stream.union(stream).key_by(lambda x: x).process(Keep()).print()
    plan = plan_of(env)
    check_well_formed(plan)
    assert channels(plan) == [(0, "HASH", 1), (0, "HASH", 1)]
    assert plan.vertices[1].inputs == (InputKind.KEYED,)


def test_side_outputs_take_edges_of_their_own(env):
    main = env.from_collection([1]).map(lambda x: x).process(Split())
    main.print()
    main.get_side_output(RED).map(lambda x: x).print()
    main.get_side_output(RED).key_by(lambda x: x).process(Keep()).print()
    plan = plan_of(env)
    check_well_formed(plan)
    process = next(c for v in plan.vertices for c in v.chain if c.name == "Process")
    assert [e.side_output for e in process.edges] == [None, "red"]
    assert [(c.side_output, c.partitioning) for c in process.channels] == [("red", Partitioning.HASH)]


@pytest.mark.parametrize("spread", ["rebalance", "rescale", "shuffle", "broadcast", "forward"])
def test_an_explicit_partitioning_begins_a_new_task(env, spread):
    getattr(env.from_collection([1]).map(lambda x: x), spread)().filter(bool).print()
    plan = plan_of(env)
    check_well_formed(plan)
    if spread == "forward":
        assert shape(plan)[1].startswith("Map -> Filter")
    else:
        assert channels(plan)[-1] == (1, spread.upper(), 2)


def test_of_several_partitionings_in_a_row_the_last_counts(env):
    env.from_collection([1]).map(lambda x: x).rebalance().broadcast().filter(bool).print()
    assert channels(plan_of(env))[-1][1] == "BROADCAST"


def test_forward_needs_equal_parallelism(env):
    env.from_collection([1]).forward().map(lambda x: x).print()
    with pytest.raises(ConfigurationError, match=r"forward\(\) needs equal parallelism.*'Collection Source'.* has 1"):
        plan_of(env)


def test_a_custom_partitioning_carries_both_functions(env):
    env.from_collection([1]).partition_custom(lambda key, n: key % n, lambda x: x * 10).print()
    plan = plan_of(env)
    check_well_formed(plan)
    (channel,) = plan.vertices[0].chain[0].channels
    assert channel.partitioning is Partitioning.CUSTOM
    assert channel.key_selector is not None
    assert channel.partitioner is not None
    assert channel.partitioner(channel.key_selector(3), 4) == 2


def test_the_operators_after_a_keyed_stream_without_a_keyed_function_stay_partitioned(env):
    env.from_collection([1]).key_by(lambda x: x).print()
    plan = plan_of(env)
    check_well_formed(plan)
    assert channels(plan) == [(0, "HASH", 1)]
    assert plan.vertices[1].inputs == (InputKind.KEYED,)
    assert plan.vertices[1].chain[0].factory.state is StateKind.NONE


def test_key_by_on_a_keyed_stream_replaces_the_key(env):
    env.from_collection([1]).key_by(lambda x: "first").key_by(lambda x: "second").process(Keep()).print()
    plan = plan_of(env)
    (channel,) = plan.vertices[0].chain[0].channels
    assert channel.key_selector is not None
    assert channel.key_selector(0) == "second"


def a_single_subtask_that_follows_a_single_one_shares_its_task_for_it_gets_every_key(env):
    def vertices(**settings: str) -> int:
        configuration = Configuration.from_dict({key.replace("_", "."): value for key, value in settings.items()})
        alone = StreamExecutionEnvironment(configuration).set_parallelism(1)
        change(alone.from_collection([1]).key_by(lambda x: x).process(Keep())).print()
        plan = plan_of(alone)
        check_well_formed(plan)
        return len(plan.vertices)

    def change(stream):
        return stream

    unaligned, batch = "execution.checkpointing.unaligned.enabled", "execution.runtime-mode"
    assert vertices() == 1
    assert vertices(**{unaligned: "true"}) == vertices(**{batch: "BATCH"}) == 2
    for change in (  # noqa: B007
        lambda stream: stream.start_new_chain(),
        lambda stream: stream.set_max_parallelism(64),
        lambda stream: stream.set_parallelism(2),
    ):
        assert vertices() > 1
    both = StreamExecutionEnvironment().set_parallelism(1)
    one, other = (both.from_collection([1]).key_by(lambda x: x) for _ in range(2))
    one.connect(other).process(Both()).print()
    assert len(plan_of(both).vertices) == 3


def test_chaining_can_be_turned_off_for_one_operator_or_all(env):
    def program(environment):
        stream = environment.from_collection([1]).map(lambda x: x)
        return stream, stream.filter(bool).name("middle"), stream

    _, middle, _ = program(env)
    middle.disable_chaining().map(lambda x: x).print()
    plan = plan_of(env)
    check_well_formed(plan)
    assert shape(plan) == ["Source: Collection Source", "Map", "middle", "Map -> Sink: Print to Std. Out"]

    other = StreamExecutionEnvironment().set_parallelism(2).disable_operator_chaining()
    _, middle, _ = program(other)
    middle.print()
    plan = plan_of(other)
    check_well_formed(plan)
    assert shape(plan) == ["Source: Collection Source", "Map", "middle", "Sink: Print to Std. Out"]


def test_an_operator_without_readers_runs_all_the_same(env):
    stream = env.from_collection([1])
    stream.map(lambda x: x).name("unread")
    stream.print()
    assert any("unread" in name for name in shape(plan_of(env)))


def test_a_program_without_a_sink_runs_for_its_functions_effects(env):
    env.from_collection([1]).map(lambda x: x).name("unread")
    assert shape(plan_of(env)) == ["Source: Collection Source", "unread"]


def test_a_program_without_operators_is_an_error_that_says_what_to_do(env):
    env.from_collection([1])
    with pytest.raises(ConfigurationError, match=r"No operators defined in streaming topology.*sink_to.*print"):
        env.execute()
    with pytest.raises(ConfigurationError, match="No operators defined"):
        env.get_execution_plan()


def test_key_groups_limit_the_parallelism_of_keyed_operators(env):
    env.set_max_parallelism(4)
    env.from_collection([1]).key_by(lambda x: x).process(Keep()).set_parallelism(5).print()
    with pytest.raises(ConfigurationError, match=r"KeyedProcess.*parallelism 5, but only 4 key groups"):
        plan_of(env)


@pytest.mark.parametrize(("parallelism", "groups"), [(1, 128), (85, 128), (86, 256), (1000, 2048), (30_000, 32_768)])
def the_key_groups_are_as_many_as_in_flink_for_the_parallelism(env, parallelism, groups):
    env.from_collection([1]).key_by(lambda x: x).process(Keep()).set_parallelism(parallelism).print()
    assert plan_of(env).vertices[1].max_parallelism == groups


def test_an_operator_may_have_its_own_number_of_key_groups(env):
    env.from_collection([1]).key_by(lambda x: x).process(Keep()).set_max_parallelism(16).print()
    assert [v.max_parallelism for v in plan_of(env).vertices] == [128, 16]


def test_the_plan_carries_the_effective_configuration():
    env = StreamExecutionEnvironment(Configuration.from_dict({"parallelism.default": 3, "x.y": "z"}))
    env.get_config().set_global_job_parameters({"limit": 10})
    env.enable_checkpointing(30_000)
    env.from_collection([1]).print()
    plan = env._plan(None)
    assert plan.name == plan.config["pipeline.name"] == "Holdfast Streaming Job"
    assert plan.config["parallelism.default"] == "3"
    assert plan.config["pipeline.auto-watermark-interval"] == "200 ms"
    assert plan.settings.job_parameters == {"limit": "10"}
    assert Configuration.from_dict(plan.config).get_duration_ms("execution.checkpointing.interval", 0) == 30_000
    assert plan.config["x.y"] == "z"


def test_the_job_takes_its_name_from_the_call_before_the_configuration():
    env = StreamExecutionEnvironment(Configuration.from_dict({"pipeline.name": "configured"}))
    env.from_collection([1]).print()
    assert env._plan(None).name == "configured"
    assert env._plan("called").name == "called"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("parallelism.default", "many", "parallelism.default.*many"),
        ("parallelism.default", "0", "parallelism.default"),
        ("pipeline.max-parallelism", "40000", "pipeline.max-parallelism.*32768"),
        ("execution.checkpointing.interval", "soon", "execution.checkpointing.interval.*soon"),
        ("restart-strategy.fixed-delay.attempts", "x", "restart-strategy.fixed-delay.attempts"),
        ("execution.runtime-mode", "LATER", "execution.runtime-mode.*LATER"),
    ],
)
def test_bad_settings_are_reported_before_the_job_starts(key, value, message):
    env = StreamExecutionEnvironment(Configuration.from_dict({key: value}))
    with pytest.raises(ConfigurationError, match=message):  # noqa: PT012 - which of the two raises is not the point
        env.from_collection([1]).print()
        env._plan(None)


def test_the_upi_count_is_two_tasks(env):
    (
        env.from_source(
            env.from_collection(['{"ts_ms": 1, "merchant_id": "m"}'])._transformation.source,
            WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
                lambda r, _: int(r)
            ),
            "upi-source",
        )
        .map(lambda r: (r, 1))
        .key_by(lambda x: x[0])
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .print()
    )
    plan = plan_of(env)
    check_well_formed(plan)
    assert shape(plan) == [
        "Source: upi-source -> Map",
        "Window(TumblingEventTimeWindows) -> Sink: Print to Std. Out",
    ]
    assert channels(plan) == [(0, "HASH", 1)]


def test_the_rest_api_shows_the_vertices_and_their_inputs(env):
    numbers = env.from_collection([1, 2, 3])
    numbers.key_by(lambda n: n % 2).process(Keep()).name("keep").print()
    source, keep = plan_shape(plan_of(env))["nodes"]
    assert (source["description"], source["parallelism"], source["inputs"]) == ("Source: Collection Source", 1, [])
    assert keep["description"].startswith("keep")
    assert [(each["num"], each["id"], each["ship_strategy"]) for each in keep["inputs"]] == [(0, source["id"], "HASH")]
