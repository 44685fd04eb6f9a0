"""Declared output types: what a function makes is checked against them, and made to fit where nothing is lost."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Row, Time, Types, WatermarkStrategy
from holdfast.datastream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.datastream.operations.batches import Count, col
from holdfast.datastream.operations.data_stream_utils import DataStreamUtils
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, HoldfastError, UserCodeError
from holdfast.state.stored.schema import ColumnSchema, OperatorSchema

from .inprocess import LEDGERS, Lab, LedgerSink

PAIR = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
BY_VALUE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[0])


def results(build: Any, parallelism: int = 1, budget: int = 1000, backend: str = "hashmap") -> list[Any]:
    """What the stream that ``build(env)`` returns holds."""
    LEDGERS["out"].committed.clear()
    with tempfile.TemporaryDirectory() as directory:
        job = Lab(
            lambda env: build(env).sink_to(LedgerSink("out")),
            Path(directory),
            parallelism=parallelism,
            budget=budget,
            config={"state.backend.type": backend},
        )
        try:
            job.run([])
        finally:
            job.close()
    return list(LEDGERS["out"].values)


class Emit(ProcessFunction):
    def __init__(self, *emitted: Any) -> None:
        self.emitted = emitted

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.emitted


class EmitKeyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(5)
        yield Row(*value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield timestamp, "timer"


class EmitWindow(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return [Row(context.window().start, "window")]


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.map(lambda v: Row(v[0], v[1]), PAIR),
        lambda ds: ds.flat_map(lambda v: [Row(v[0], v[1])], PAIR),
        lambda ds: ds.process(Emit(Row(1, "a")), PAIR),
        lambda ds: ds.key_by(lambda v: 0).map(lambda v: Row(v[0], v[1]), PAIR),
        lambda ds: ds.key_by(lambda v: 0).flat_map(lambda v: [Row(v[0], v[1])], PAIR),
        lambda ds: ds.map(lambda v: v, PAIR).key_by(lambda r: r.id).reduce(lambda a, b: Row(a[0], b[1])),
    ],
    ids=["map", "flat_map", "process", "keyed map", "keyed flat_map", "reduce"],
)
def test_rows_of_a_declared_type_reach_the_next_function_with_its_names(make):
    assert results(lambda env: make(env.from_collection([(1, "a")])).map(lambda row: (row.id, row["name"]))) == [(1, "a")]


def test_a_timers_and_a_windows_results_are_of_the_declared_type_too():
    def timers(env: Any) -> Any:
        keyed = env.from_collection([(1, "a")]).key_by(lambda v: v[0])
        return keyed.process(EmitKeyed(), PAIR).map(lambda row: (row.id, row.name))

    def windows(env: Any) -> Any:
        stamped = env.from_collection([(7, "a")]).assign_timestamps_and_watermarks(BY_VALUE)
        windowed = stamped.key_by(lambda v: v[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(5)))
        return windowed.process(EmitWindow(), PAIR).map(lambda row: (row.id, row.name))

    assert results(timers) == [(1, "a"), (5, "timer")]
    assert results(windows) == [(5, "window")]


def test_a_list_of_types_stands_for_a_row_and_a_float_is_rounded_to_32_bits():
    types = [Types.FLOAT(), Types.DOUBLE()]
    assert results(lambda env: env.from_collection([0]).process(Emit((0.1, 1)), types)) == [
        Row(f0=0.10000000149011612, f1=1.0)
    ]


def test_a_side_output_has_the_type_of_its_tag():
    tag = OutputTag("side", PAIR)

    def build(env: Any) -> Any:
        main = env.from_collection([0]).process(Emit((OutputTag("side"), Row(1, "a"))))
        return main.get_side_output(tag).map(lambda row: (row.id, row.name))

    assert results(build) == [(1, "a")]


def test_a_side_output_with_two_types_is_refused():
    def build(env: Any) -> Any:
        main = env.from_collection([0]).process(Emit())
        longs = main.get_side_output(OutputTag("side", Types.LONG()))
        return longs.union(main.get_side_output(OutputTag("side", Types.STRING())))

    with pytest.raises(ConfigurationError, match=r"side output 'side' of 'Process' .* two types"):
        results(build)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_result_that_does_not_fit_its_declared_type_is_named_with_its_operator_and_record(parallelism):
    def build(env: Any) -> Any:
        ids = env.from_collection([1, 2, 3]).map(lambda v: v if v < 3 else str(v), Types.INT()).name("ids").uid("ids-uid")
        return ids.map(lambda v: v)

    with pytest.raises(UserCodeError) as failure:
        results(build, parallelism)
    message = str(failure.value)
    assert "does not fit the declared type Types.INT(): INT does not take '3' of type str" in message
    assert "in operator 'ids' (uid 'ids-uid')" in message
    assert "element: '3'" in message
    assert "record: collection, value 2" in message or parallelism == 2


def test_unchanged_elements_and_pickled_types_are_not_converted():
    thing = Row(1, "a")
    assert results(lambda env: env.from_collection([thing]).map(lambda v: v, Types.PICKLED_BYTE_ARRAY())) == [thing]
    assert results(lambda env: env.from_collection([2**31]).map(lambda v: v)) == [2**31]


class Pairs(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, "none"

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[1], value[0]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


class Everything(KeyedProcessFunction):
    """Writes what is nearly of the declared types, and shows what it reads back."""

    def __init__(self, time_to_live: bool) -> None:
        self.time_to_live = time_to_live

    def open(self, runtime_context: Any) -> None:
        def made(descriptor: Any) -> Any:
            if self.time_to_live:
                descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
            return descriptor

        get = runtime_context
        self.row = get.get_state(made(ValueStateDescriptor("row", PAIR)))
        self.float = get.get_state(made(ValueStateDescriptor("float", Types.FLOAT())))
        self.double = get.get_state(made(ValueStateDescriptor("double", Types.DOUBLE())))
        self.numbers = get.get_state(made(ValueStateDescriptor("numbers", Types.LIST(Types.INT()))))
        self.bytes = get.get_state(made(ValueStateDescriptor("bytes", Types.PRIMITIVE_ARRAY(Types.BYTE()))))
        self.rows = get.get_list_state(made(ListStateDescriptor("rows", PAIR)))
        self.by_row = get.get_map_state(made(MapStateDescriptor("by row", PAIR, Types.INT())))
        self.by_float = get.get_map_state(made(MapStateDescriptor("by float", Types.FLOAT(), PAIR)))
        self.reduced = get.get_reducing_state(
            made(ReducingStateDescriptor("reduced", lambda a, b: (a.id + b.id, b.name), PAIR))
        )
        self.aggregated = get.get_aggregating_state(made(AggregatingStateDescriptor("aggregated", Pairs(), PAIR)))

    def process_element(self, value: Any, ctx: Any) -> Any:
        name, n = value
        if n == 0:
            self.row.update((n, name))
            self.float.update(0.1)
            self.double.update(1)
            self.numbers.update((1, 2))
            self.bytes.update(bytearray(b"ab"))
            self.rows.add(Row(name=name, id=n))
            self.rows.add_all([(n, "more")])
            self.by_row[n, name] = 7
            self.by_float.put_all({0.1: (n, name)})
            self.by_float[0.2] = None
        self.reduced.add((n, name))
        self.aggregated.add((name, n))
        if n == 1:
            one, row = [self.row, self.float, self.double, self.numbers, self.bytes], (0, name)
            yield repr([state.value() for state in one])
            yield repr(list(self.rows.get()))
            yield repr([list(self.by_row.items()), self.by_row[row], row in self.by_row, self.by_row.contains((5, "x"))])
            yield repr([list(self.by_float.items()), self.by_float.get(0.1), 0.2 in self.by_float])
            yield repr([self.reduced.get(), self.aggregated.get()])
            del self.by_row[row]
            self.rows.update([(3, "replaced")])
            yield repr([self.by_row.is_empty(), list(self.rows.get())])


@pytest.mark.parametrize("time_to_live", [False, True])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_reads_of_typed_state_do_not_depend_on_where_epochs_end(backend, time_to_live):
    def build(env: Any) -> Any:
        keyed = env.from_collection([("k", 0), ("k", 1)]).key_by(lambda v: v[0])
        return keyed.process(Everything(time_to_live))

    together = results(build, budget=1000, backend=backend)
    assert together == results(build, budget=1, backend=backend)
    first = "Row(id=0, name='k')"
    assert together == [
        f"[{first}, 0.10000000149011612, 1.0, [1, 2], b'ab']",
        f"[{first}, Row(id=0, name='more')]",
        f"[[({first}, 7)], 7, True, False]",
        f"[[(0.10000000149011612, {first}), (0.20000000298023224, None)], {first}, True]",
        "[Row(id=1, name='k'), Row(id=1, name='k')]",
        "[True, [Row(id=3, name='replaced')]]",
    ]


def test_a_value_that_does_not_fit_row_state_is_reported_at_the_line_that_writes_it():
    class Wrong(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.row = runtime_context.get_state(ValueStateDescriptor("row", PAIR))

        def process_element(self, value: Any, ctx: Any) -> Any:
            self.row.update("text")

    with pytest.raises(
        UserCodeError, match=r'self\.row\.update\("text"\)[\s\S]*\'text\' does not fit state \'row\' of Types.ROW'
    ):
        results(lambda env: env.from_collection([1]).key_by(lambda v: v).process(Wrong()))


# ---- keys, reductions and windows ---------------------------------------------------------------------------------------


class ShowKey(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield repr(ctx.get_current_key())


@pytest.mark.parametrize(
    ("declared", "key", "shown"),
    [
        (Types.LONG(), 7, "7"),
        (Types.LONG(), True, "1"),
        (Types.DOUBLE(), 7, "7.0"),
        (Types.FLOAT(), 0.1, "0.10000000149011612"),
        (Types.STRING(), "ä", "'ä'"),
        (PAIR, (1, "a"), "Row(id=1, name='a')"),
        (Types.TUPLE([Types.LONG(), PAIR]), (1.0, (2, "b")), "(1, Row(id=2, name='b'))"),
        (Types.PICKLED_BYTE_ARRAY(), (1, "a"), "(1, 'a')"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_is_converted_to_its_declared_type(declared, key, shown, parallelism):
    def build(env: Any) -> Any:
        return env.from_collection([0]).key_by(lambda v: key, declared).process(ShowKey())

    assert results(build, parallelism) == [shown]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_of_another_type_than_declared_is_named_with_its_record(parallelism):
    def build(env: Any) -> Any:
        keyed = env.from_collection([1, 2, "x"]).key_by(lambda v: v, Types.INT())
        return keyed.process(ShowKey())

    with pytest.raises(UserCodeError) as failure:
        results(build, parallelism)
    message = str(failure.value)
    assert "the key 'x' does not fit Types.INT(), which key_by() declares: INT does not take 'x' of type str" in message
    assert "element: 'x'" in message
    assert "key: 'x'" in message
    assert "record: collection, value 2" in message


def stored(directory: Path) -> dict[str, OperatorSchema]:
    """The schemas of the newest checkpoint by the operators' names."""
    storage, paths = Storage.open(str(directory / "checkpoints")), JobPaths.of("job")
    log = CheckpointLog(storage, paths)
    checkpoint = log.take_over().restored
    assert checkpoint is not None
    return {
        operator.name: OperatorSchema.of_plain(schema)
        for operator in checkpoint.operators.values()
        for schema in operator.schemas.values()
    }


class SumAndCount(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0.0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[0], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return repr(accumulator)

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


ACCUMULATOR = Types.ROW_NAMED(["sum", "count"], [Types.DOUBLE(), Types.LONG()])
EVENTS = [(1, "a"), (2, "a"), (3, "b"), (2**31 - 1, "late")]
WINDOW = TumblingEventTimeWindows.of(Time.milliseconds(2**30))


def typed_windows(env: Any) -> Any:
    typed = env.from_collection(EVENTS, PAIR).map(lambda v: v, PAIR)
    stamped = typed.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value.id)
    )
    windows = stamped.key_by(lambda v: v.name, Types.STRING()).window(WINDOW)
    reduced = windows.reduce(lambda a, b: (a.id + b.id, b.name)).name("reduced").map(repr)
    kept = windows.process(Contents()).name("kept")
    aggregated = windows.aggregate(SumAndCount(), accumulator_type=ACCUMULATOR).name("aggregated")
    rolling = stamped.key_by(lambda v: v.name, Types.STRING()).reduce(lambda a, b: (a.id, b.name)).name("rolling").map(repr)
    return reduced.union(kept, aggregated, rolling)


class Contents(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return [repr(list(elements))]


def test_the_content_of_windows_and_reductions_is_stored_in_the_declared_form(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.state.cells.column.Column.undecoded", None)  # no state is stored as a pickle
        job = Lab(lambda env: typed_windows(env).sink_to(LedgerSink("typed")), tmp_path, budget=1, ledgers=("typed",))
        job.run([("after complete", 4)])
    schemas = stored(tmp_path)
    pair, accumulator, text = PAIR.to_dict(), ACCUMULATOR.to_dict(), Types.STRING().to_dict()
    assert {schema.key.type["type"] for schema in schemas.values()} == {"STRING"} == {text["type"]}
    columns = {name: next(iter(schema.states.values())).columns for name, schema in schemas.items()}
    assert columns == {
        "reduced": (ColumnSchema("window-contents", "value", (pair,), since=3),),
        "kept": (ColumnSchema("window-contents", "list", (pair,), since=3),),
        "aggregated": (ColumnSchema("window-contents", "value", (accumulator,), since=3),),
        "rolling": (ColumnSchema("_op_state", "reducing", (pair,), since=6),),
    }


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_typed_windows_and_reductions_give_the_same_through_a_crash(tmp_path, backend):
    expected = sorted(results(typed_windows, backend=backend))
    assert "Row(id=3, name='a')" in expected
    assert "[Row(id=1, name='a'), Row(id=2, name='a')]" in expected
    assert "Row(sum=3.0, count=2)" in expected
    LEDGERS["out"].committed.clear()
    job = Lab(
        lambda env: typed_windows(env).sink_to(LedgerSink("out")),
        tmp_path,
        budget=1,
        config={"state.backend.type": backend},
        keep_disk=False,
    )
    job.run([("after complete", 1), ("run", 1), ("after complete", 1)])
    assert sorted(LEDGERS["out"].values) == expected


class WrongAccumulator(SumAndCount):
    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.wrong if value[0] == 3 else accumulator


@pytest.mark.parametrize(
    ("declared", "wrong", "says"),
    [
        (ACCUMULATOR, "three", r"'three' does not fit state 'window-contents' of Types.ROW"),
        (
            Types.TUPLE([Types.DOUBLE(), Types.LONG()]),
            (0.0, "three"),
            r"'three'\) does not fit state 'window-contents' of Types.TUPLE",
        ),
    ],
    ids=["a row", "a tuple"],
)
def test_an_accumulator_that_does_not_fit_is_named_with_state_key_and_record(declared, wrong, says):
    def build(env: Any) -> Any:
        stamped = env.from_collection(EVENTS).assign_timestamps_and_watermarks(BY_VALUE)
        windows = stamped.key_by(lambda v: v[1]).window(WINDOW)
        return windows.aggregate(WrongAccumulator(wrong), accumulator_type=declared)

    with pytest.raises(UserCodeError, match=says) as failure:
        results(build)
    message = str(failure.value)
    assert "'b'" in message
    assert "record: collection, value 2" in message


class WrongState(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.BYTE()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update(300 if value == 5 else value)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_value_that_does_not_fit_at_the_barrier_is_named_with_its_record(parallelism):
    with pytest.raises(UserCodeError, match=r"300 of state 'count' cannot be stored .* key 5[\s\S]*value 4") as failure:
        results(lambda env: env.from_collection([1, 2, 3, 4, 5, 6]).key_by(lambda v: v).process(WrongState()), parallelism)
    assert "record: collection, value 4" in str(failure.value)


def a_value_that_does_not_fit_is_named_with_its_record_in_a_sources_own_task():
    def build(env: Any) -> Any:
        numbers = env.from_collection([1, 2, 3, 4, 5, 6])
        return DataStreamUtils.reinterpret_as_keyed_stream(numbers, lambda v: v).process(WrongState())

    with pytest.raises(UserCodeError, match=r"300 of state 'count' cannot be stored .* key 5") as failure:
        results(build, 1)
    assert "record: collection, value 4" in str(failure.value)


def test_a_job_whose_key_type_changed_is_refused(tmp_path):
    def build(key_type: Any, select: Any) -> Any:
        return lambda env: (
            env.from_collection([1, 2, 3]).key_by(select, key_type).reduce(max).uid("most").sink_to(LedgerSink("keys"))
        )

    first = Lab(build(Types.LONG(), lambda v: v), tmp_path, budget=1, ledgers=("keys",))
    assert not first._run_until("after complete", 1)
    first.build = build(Types.STRING(), str)
    with pytest.raises(HoldfastError, match=r"uid 'most'.*declared as LONG and are now declared as STRING"):
        first._run_until("", 0)


class KeysOfTimers(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(10_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield repr(ctx.get_current_key())


class KeysOfWindows(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield repr(key)


@pytest.mark.parametrize(
    ("declared", "select", "keys"),
    [
        (Types.BOOLEAN(), lambda v: v[0] > 2, ["False", "True"]),
        (Types.DOUBLE(), lambda v: v[0] / 1, ["1.0", "2.0", "3.0", "4.0"]),
        (Types.BIG_DEC(), lambda v: v[0] // 3, ["Decimal('0')", "Decimal('1')"]),
        (
            Types.ROW_NAMED(["odd", "pair"], [Types.BOOLEAN(), Types.TUPLE([Types.DOUBLE(), Types.STRING()])]),
            lambda v: (v[0] % 2 == 1, (v[0] // 4, v[1])),
            ["Row(odd=False, pair=(0.0, 'a'))", "Row(odd=False, pair=(1.0, 'c'))", "Row(odd=True, pair=(0.0, 'a'))",
             "Row(odd=True, pair=(0.0, 'b'))"],
        ),
    ],
    ids=["BOOLEAN", "DOUBLE", "BIG_DEC", "ROW"],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("crash", [[], [("after complete", 3)]], ids=["no crash", "crash"])
def test_a_key_of_a_declared_type_is_the_same_after_a_restart(tmp_path, declared, select, keys, backend, crash):
    events = [(1, "a"), (2, "a"), (3, "b"), (4, "c")]

    def build(env: Any) -> None:
        source = env.from_collection(events).assign_timestamps_and_watermarks(BY_VALUE)
        keyed = source.key_by(select, declared)
        timers = keyed.process(KeysOfTimers())
        timers.union(keyed.window(WINDOW).process(KeysOfWindows())).sink_to(LedgerSink("keys"))

    LEDGERS["keys"].committed.clear()
    config = {"state.backend.type": backend, "state.backend.cache.size": "1kb"}
    Lab(build, tmp_path, budget=1, config=config, ledgers=("keys",), keep_disk=False).run(crash)
    assert sorted(LEDGERS["keys"].values) == sorted(keys * 2)


@pytest.mark.parametrize("fields", [("key",), ("key", "name")])
@pytest.mark.parametrize(
    ("declared", "keys"),
    [(Types.BOOLEAN(), [True, False]), (Types.BIG_DEC(), [Decimal("1.5"), Decimal("2")]), (Types.LONG(), [1, 2])],
)
def test_aggregates_by_a_field_of_a_declared_type_are_the_same_after_a_restart(tmp_path, declared, keys, fields):
    typed = Types.ROW_NAMED(["key", "name", "at"], [declared, Types.STRING(), Types.LONG()])
    events = [Row(keys[n % 2], "a", n) for n in range(6)]

    def build(env: Any) -> None:
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(col("at"))
        stream = env.from_collection(events).map(lambda row: row, typed).assign_timestamps_and_watermarks(times)
        keyed = stream.key_by(col(*fields))
        sums = keyed.window(WINDOW).agg(count=Count())
        shown = sums.map(lambda row: (row.key, type(row.key).__name__, row.count))
        shown.union(keyed.process(KeysOfTimers())).sink_to(LedgerSink("keys"))

    def told(row: Any) -> Any:
        return row[0], type(keys[0]).__name__, 3

    LEDGERS["keys"].committed.clear()
    Lab(build, tmp_path, budget=1, ledgers=("keys",), keep_disk=False).run([("after complete", 3)])
    found = LEDGERS["keys"].values
    assert sorted(each for each in found if type(each) is tuple) == sorted(map(told, zip(keys)))
    timers = {eval(each) if len(fields) == 1 else eval(each)[0] for each in found if type(each) is str}
    assert (timers, set(map(type, timers))) == (set(keys), {type(keys[0])})
