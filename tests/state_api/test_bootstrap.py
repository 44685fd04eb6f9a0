"""The tasks of a bootstrap, in this process: what they store is the state that a job would have."""

from __future__ import annotations

import pickle
import threading
from functools import partial
from typing import Any, cast

import cloudpickle
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.metadata import UNION, CheckpointMetadata, ListedState, OperatorCheckpoint, SubtaskState
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Time, Types
from holdfast.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from holdfast.errors import ConfigurationError, IncompatibleState, UserCodeError
from holdfast.runtime.operators.keyed import KeyedProcess
from holdfast.runtime.plan.redistribution import assigned
from holdfast.state.backends import canonical, portions
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.backends.canonical import parts_of, write_part
from holdfast.state.keys.key_groups import key_group
from holdfast.state_api import (
    BroadcastStateBootstrapFunction,
    KeyedStateBootstrapFunction,
    KeyedStateReaderFunction,
    OperatorTransformation,
    StateBootstrapFunction,
    bootstrap_task,
    listed,
)
from holdfast.state_api.bootstrap import OneInputTransformation
from holdfast.state_api.bootstrap_functions import ColumnsToState
from holdfast.state_api.bootstrap_task import BootstrapTask, Target, in_lists
from holdfast.state_api.listed import _WriteElements
from holdfast.state_api.operator_bootstrap import FunctionTransformation, with_made
from holdfast.state_api.reader import ArrowSavepointReader
from holdfast.state_api.regrouping import RegroupTask
from holdfast.state_api.snapshots.catalog import Snapshot

MOST = 16
STATES = [
    ValueStateDescriptor("value", Types.LONG()),
    ListStateDescriptor("list", Types.LONG()),
    MapStateDescriptor("map", Types.LONG(), Types.STRING()),
    ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()),
]
NAMES = [each.name for each in STATES]
EXPIRING = ValueStateDescriptor("expiring", Types.LONG())
EXPIRING.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(10)).build())

sizes = st.integers(0, 400)  # beyond 256, lists and maps leave their rows
contents = st.one_of(
    st.none(),
    st.tuples(
        st.none() | st.integers(-5, 5),
        st.none() | sizes.map(lambda n: list(range(n))),
        st.none() | sizes.map(lambda n: {m: str(m) for m in range(n)}),
        st.none() | st.integers(-5, 5),
    ),
)
tables = st.dictionaries(st.integers(0, 30).map(lambda n: f"k{n}"), contents, max_size=20)


class Numbers(KeyedStateBootstrapFunction):
    """Keeps all numbers, their sum, and a timer for each."""

    def open(self, runtime_context):
        self.list = runtime_context.get_list_state(STATES[1])
        self.sum = runtime_context.get_reducing_state(STATES[3])

    def process_element(self, value, ctx):
        self.list.add(value)
        self.sum.add(value)
        ctx.timer_service().register_event_time_timer(value)


def written(
    directory: str, function: Any, records: list[Any], stored: OperatorCheckpoint, parallelism: int
) -> OperatorCheckpoint:
    """The operator after a bootstrap with these records: pairs of key and value."""
    target = Target(f"file://{directory}", {}, 0)
    once = isinstance(function, ColumnsToState)
    task = BootstrapTask("keyed", partial(KeyedProcess, function), Types.STRING(), stored, target, parallelism, once)
    handles, schemas = [], dict(stored.schemas)
    for subtask in range(parallelism):
        mine = [pair for pair in records if key_group(pair[0], stored.max_parallelism) * parallelism // MOST == subtask]
        ordered = [(key, value, None) for key, value in sorted(mine, key=lambda r: r[0])]
        at_once = min(500, bootstrap_task._FIRST)
        batches = [in_lists(ordered[at : at + at_once]) for at in range(0, len(ordered), at_once)]
        for handle, schema in task.run(subtask, batches):
            handles.append(handle)
            schemas[handle.schema] = schema
    before = [handle for state in stored.subtasks for handle in state.keyed]
    return msgspec.structs.replace(stored, subtasks=[SubtaskState([*before, *handles])], schemas=schemas)


def reader(directory: str, operator: OperatorCheckpoint) -> ArrowSavepointReader:
    storage = Storage.open(f"file://{directory}")
    checkpoint = CheckpointMetadata(1, 1, "j", "j", 0, operators={"keyed": operator})  # type: ignore[arg-type]
    return ArrowSavepointReader(Snapshot(directory, "savepoint", storage, checkpoint))


def content(directory: str, operator: OperatorCheckpoint) -> dict[Any, Any]:
    if not operator.schemas:
        return {}
    batches = reader(directory, operator).read_keyed_state("keyed")
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = {row["key"]: tuple(row.get(name) for name in NAMES) for row in rows}
    assert len(found) == len(rows)
    return {key: (v, x, None if m is None else dict(m), s) for key, (v, x, m, s) in found.items()}


def as_rows(table: dict[str, Any], columns: slice = slice(4)) -> list[Any]:
    return [(key, (row or (None,) * 4)[columns]) for key, row in table.items()]


def as_stored(row: Any) -> Any:
    """What is read of a row that was written: empty lists and maps are no content."""
    value, elements, entries, total = row
    return value, elements or None, entries or None, total


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    first=tables,
    second=tables,
    parallelism=st.integers(1, 3),
    portion=st.sampled_from([1, 3, 1000]),
    memory=st.sampled_from([0, 20_000, 1 << 28]),
)
def test_rows_replace_the_states_of_their_keys_and_leave_all_others(
    tmp_path_factory, first, second, parallelism, portion, memory
):
    directory = str(tmp_path_factory.mktemp("savepoint"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap_task, "_FIRST", portion)
        patch.setattr(bootstrap_task, "_MEMORY", 2_000)
        patch.setattr(portions, "_FILE", 500 * portion)
        patch.setattr(canonical, "_MEMORY", memory)  # beyond it, rows are read from disk
        empty = OperatorCheckpoint("keyed", True, MOST)
        once = written(directory, ColumnsToState(STATES), as_rows(first), empty, parallelism)
        model = {key: as_stored(row) for key, row in first.items() if row is not None}
        model = {key: row for key, row in model.items() if row != (None,) * 4}
        assert content(directory, once) == model
        twice = written(directory, ColumnsToState(STATES[1:3]), as_rows(second, slice(1, 3)), once, 4 - parallelism)
        for key, row in second.items():
            kept = model.get(key, (None,) * 4)
            elements, entries = as_stored(row)[1:3] if row else (None, None)
            model[key] = (kept[0], elements, entries, kept[3])
        model = {key: row for key, row in model.items() if row != (None,) * 4}
        assert content(directory, twice) == model

        # ... and with another number of key groups, too
        task = RegroupTask(f"file://{directory}", Target(f"file://{directory}", {}, 0), 5)
        if twice.schemas:
            files = list(task(0, list(parts_of("keyed", twice))))
            one = twice.subtasks[0].keyed[0]
            handles = [msgspec.structs.replace(one, first=0, last=4, schema=name, base=[file]) for name, _, file in files]
            schemas = {name: schema for name, schema, _ in files}
            other = msgspec.structs.replace(twice, subtasks=[SubtaskState(handles)], max_parallelism=5, schemas=schemas)
            assert content(directory, other) == model


def a_function_makes_states_and_timers(tmp_path):
    records = [(f"k{n % 7}", n) for n in range(2_100)]
    operator = written(str(tmp_path), Numbers(), records, OperatorCheckpoint("keyed", True, MOST), 3)
    rows = [row for batch in reader(str(tmp_path), operator).read_keyed_state("keyed") for row in batch.to_pylist()]
    assert {row["key"]: (row["list"], row["sum"]) for row in rows} == {
        f"k{key}": (list(range(key, 2_100, 7)), sum(range(key, 2_100, 7))) for key in range(7)
    }
    timers = [row for batch in reader(str(tmp_path), operator).read_timers("keyed") for row in batch.to_pylist()]
    assert sorted((row["time"], row["key"]) for row in timers) == sorted((n, key) for key, n in records)


class Seen(KeyedStateReaderFunction):
    """What `Numbers` has made, and the last number with a state that expires."""

    def __init__(self, fields: int = 4) -> None:
        self.fields = fields

    def open(self, runtime_context):
        self.list = runtime_context.get_list_state(STATES[1])
        self.sum = runtime_context.get_reducing_state(STATES[3])

    def read_key(self, key, ctx):
        assert ctx.registered_processing_time_timers() == []
        self.list.add(-1)  # is not stored
        yield (key, list(self.list.get())[:-1], self.sum.get(), ctx.registered_event_time_timers())[: self.fields]


SEEN = Types.ROW_NAMED(
    ["key", "list", "sum", "timers"], [Types.STRING(), Types.LIST(Types.LONG()), Types.LONG(), Types.LIST(Types.LONG())]
)


def a_function_reads_the_states_and_timers_of_every_key(tmp_path):
    records = [(f"k{n % 7}", n) for n in range(2_100)]
    operator = written(str(tmp_path), Numbers(), records, OperatorCheckpoint("keyed", True, MOST), 3)
    for _ in range(2):
        batches = reader(str(tmp_path), operator).read_keyed_state("keyed", Seen(), output_type=SEEN)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert sorted(rows, key=lambda row: row["key"]) == [
            {"key": f"k{key}", "list": (own := list(range(key, 2_100, 7))), "sum": sum(own), "timers": own}
            for key in range(7)
        ]
    batches = reader(str(tmp_path), operator).read_keyed_state("keyed", Seen(1))
    pickles = [row["value"] for batch in batches for row in batch.to_pylist()]
    assert sorted(map(pickle.loads, pickles)) == [(f"k{key}",) for key in range(7)]


def a_reader_function_that_does_not_fit_is_refused_before_anything_is_read(tmp_path):
    operator = written(str(tmp_path), Numbers(), [("a", 1)], OperatorCheckpoint("keyed", True, MOST), 1)
    savepoint = reader(str(tmp_path), operator)

    class Other(Seen):
        def open(self, runtime_context):
            runtime_context.get_list_state(ListStateDescriptor("list", Types.STRING()))

    with pytest.raises(IncompatibleState, match=r"(?s)state 'list' of operator 'keyed' \(uid 'keyed'\).*stored:.*declared:"):
        savepoint.read_keyed_state("keyed", Other())
    unpicklable = Seen()
    unpicklable.fields = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=r"'keyed' \(uid 'keyed'.*cannot be pickled"):
        savepoint.read_keyed_state("keyed", unpicklable)
    with pytest.raises(TypeError, match=r"pass key_type=Types\.STRING\(\)"):
        savepoint.read_keyed_state("keyed", Types.STRING())
    with pytest.raises(UserCodeError, match=r"(?s)operator 'keyed' \(uid 'keyed'\).*key: 'a'"):
        list(savepoint.read_keyed_state("keyed", Seen(3), output_type=SEEN))


class Expiring(KeyedStateBootstrapFunction):
    def open(self, runtime_context):
        self.state = runtime_context.get_state(EXPIRING)

    def process_element(self, value, ctx):
        self.state.update(value)


class Unexpired(KeyedStateReaderFunction):
    def open(self, runtime_context):
        self.state = runtime_context.get_state(EXPIRING)

    def read_key(self, key, ctx):
        return [(key, self.state.value())]


def a_reader_function_does_not_see_what_had_expired_when_the_savepoint_was_made(tmp_path):
    operator = written(str(tmp_path), Expiring(), [("a", 1)], OperatorCheckpoint("keyed", True, MOST), 1)
    for made_at, value in ((9_999, 1), (10_001, None)):
        checkpoint = CheckpointMetadata(1, 1, "j", "j", made_at, operators={"keyed": operator})  # type: ignore[arg-type]
        storage = Storage.open(f"file://{tmp_path}")
        savepoint = ArrowSavepointReader(Snapshot(str(tmp_path), "savepoint", storage, checkpoint))
        kind = Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.LONG()])
        batches = savepoint.read_keyed_state("keyed", Unexpired(), output_type=kind)
        assert [row for batch in batches for row in batch.to_pylist()] == [{"key": "a", "value": value}]


# ---- operator state -----------------------------------------------------------------------------------------------------


class Waiting(StateBootstrapFunction):
    """Keeps numbers in an attribute, and stores them at the end, as a job's function does."""

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        assert not context.is_restored()
        self.state = store.get_list_state(ListStateDescriptor("waiting", Types.LONG()))
        self.union = store.get_union_list_state(ListStateDescriptor("offsets", Types.STRING()))
        self.waiting: list[int] = []

    def process_element(self, value, ctx):
        assert ctx.current_processing_time() == 5
        self.waiting.append(value)

    def snapshot_state(self, context):
        self.state.update(self.waiting)
        self.union.add(f"{len(self.waiting)} numbers")


class Rules(BroadcastStateBootstrapFunction):
    def process_element(self, value, ctx):
        ctx.get_broadcast_state(MapStateDescriptor("rules", Types.STRING(), Types.LONG())).put(*value)


def made(directory: Any, function: Any, partitions: list[list[Any]], stored: OperatorCheckpoint) -> OperatorCheckpoint:
    target = Target(f"file://{directory}", {}, 5)
    transformation = FunctionTransformation(None, None, None, function)
    transformation.check("listed", stored, target)
    task = transformation._task("listed", stored, target)
    task = pickle.loads(cloudpickle.dumps(task))
    return with_made(stored, [task.run(n, len(partitions), rows) for n, rows in enumerate(partitions)])


def listed_in(directory: Any, operator: OperatorCheckpoint, name: str, kind: str) -> list[Any]:
    storage = Storage.open(f"file://{directory}")
    checkpoint = CheckpointMetadata(1, 1, "j", "j", 0, operators={"listed": operator})  # type: ignore[arg-type]
    savepoint = ArrowSavepointReader(Snapshot(str(directory), "savepoint", storage, checkpoint))
    batches = getattr(savepoint, f"read_{kind}_state")("listed", name)
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def test_functions_make_operator_state_and_broadcast_state_and_replace_what_was_there(tmp_path):
    empty = OperatorCheckpoint("listed", True, MOST)
    partitions = [list(range(400)), [], [1000]]
    operator = made(tmp_path, Waiting(), partitions, empty)
    operator = made(tmp_path, Rules(), [[("a", 1), ("b", 2), ("a", 3)]], operator)
    shares = [assigned(operator, 2, subtask).state.lists for subtask in range(2)]
    counts = [
        {name: sum(part.count or len(part.elements) for part in parts) for name, parts in each.items()} for each in shares
    ]
    assert sorted(each.pop("waiting") for each in counts) == [200, 201]  # the subtasks of a job share the list
    assert counts == [{"offsets": 3, "rules": 2}] * 2  # and all have the others
    assert listed_in(tmp_path, operator, "waiting", "list") == [*((n,) for n in range(400)), (1000,)]
    assert listed_in(tmp_path, operator, "offsets", "union") == [("0 numbers",), ("1 numbers",), ("400 numbers",)]
    assert listed_in(tmp_path, operator, "rules", "broadcast") == [("a", 3), ("b", 2)]
    operator = made(tmp_path, Waiting(), [[7]], operator)
    assert listed_in(tmp_path, operator, "waiting", "list") == [(7,)]
    assert listed_in(tmp_path, operator, "rules", "broadcast") == [("a", 3), ("b", 2)]
    operator = made(tmp_path, Rules(), [[("c", 4)]], operator)
    assert listed_in(tmp_path, operator, "rules", "broadcast") == [("c", 4)]


class Mixed(Waiting):
    def initialize_state(self, context):
        super().initialize_state(context)
        context.get_operator_state_store().get_broadcast_state(MapStateDescriptor("rules", Types.STRING(), Types.LONG()))


class Failing(Rules):
    def process_element(self, value, ctx):
        raise ValueError("no rule")


def test_functions_of_operator_state_that_do_not_fit_are_refused(tmp_path):
    empty = OperatorCheckpoint("listed", True, MOST)
    with pytest.raises(ConfigurationError, match=r"'rules' of operator 'listed'.*make it by a BroadcastStateBootstrapFunc"):
        made(tmp_path, Mixed(), [], empty)
    other = msgspec.structs.replace(empty, listed={"waiting": ListedState(UNION)})
    with pytest.raises(ConfigurationError, match=r"'waiting' of operator 'listed'.*is a union state in the savepoint"):
        made(tmp_path, Waiting(), [], other)
    with pytest.raises(UserCodeError, match=r"(?s)no rule.*operator 'listed' \(uid 'listed'\).*element: 'x'"):
        made(tmp_path, Failing(), [["x"]], empty)
    with pytest.raises(TypeError, match=r"for keyed state, call key_by\(\) first"):
        OneInputTransformation(None).transform(Numbers())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes a Spark DataFrame, not \[1, 2\]"):
        OperatorTransformation.bootstrap_with([1, 2])  # type: ignore[arg-type]


LONG, TEXT, WHOLE = Types.LONG(), Types.STRING(), Types.BIG_INT()


@pytest.mark.parametrize(
    ("types", "rows", "told"),
    [
        ([LONG], [(1,), (None,)], "column 'value' has a null"),
        ([WHOLE], [("abc",)], r"column 'value' has 'abc', which does not fit Types.BIG_INT"),
        ([Types.INT()], [(2**40,)], "column 'value' has 1099511627776, which does not fit Types.INT"),
        ([TEXT, LONG], [(None, 1)], "column 'key' has a null"),
        ([TEXT, LONG], [("a", 1), ("b", 1), ("a", 2)], "column 'key' has 'a' twice"),
        ([TEXT, WHOLE], [("a", "b")], "column 'value' has 'b', which does not fit"),
    ],
)
def test_rows_that_are_no_elements_or_entries_are_refused_by_state_and_column(tmp_path, types, rows, told):
    columns = ["value"] if len(types) == 1 else ["key", "value"]
    task = _WriteElements("u", "state 's' of operator 'o' (uid 'u')", Target(f"file://{tmp_path}", {}, 0), columns, types)
    with pytest.raises(ConfigurationError, match=rf"state 's' of operator 'o' \(uid 'u'\): the {told}"):
        list(task(0, rows))


def test_a_repeated_key_is_found_among_all_files_of_a_broadcast_state(tmp_path, monkeypatch):
    monkeypatch.setattr(listed, "_IN_FILE", 2)
    task = _WriteElements("u", "state 's'", Target(f"file://{tmp_path}", {}, 0), ["key", "value"], [LONG, LONG])
    assert sum(part.count for part in task(0, [(n, None) for n in range(5)])) == 5
    with pytest.raises(ConfigurationError, match="'key' has 1 twice"):
        list(task(0, [(n % 4, None) for n in range(1, 6)]))


class Unpicklable(KeyedProcessFunction):
    def __init__(self):
        self.lock = threading.Lock()

    def process_element(self, value, ctx):
        pass


def test_what_a_function_declares_is_checked_before_any_row(tmp_path):
    stored = written(str(tmp_path), Numbers(), [("a", 1)], OperatorCheckpoint("keyed", True, MOST), 1)
    target = Target(f"file://{tmp_path}", {}, 0)

    def task(function: Any, key_type: Any = None) -> BootstrapTask:
        return BootstrapTask("keyed", partial(KeyedProcess, function), key_type or Types.STRING(), stored, target, 1)

    task(Numbers()).check()
    changed = ColumnsToState([ListStateDescriptor("list", Types.STRING())])
    with pytest.raises(IncompatibleState, match=r"(?s)state 'list' of operator 'keyed' \(uid 'keyed'\).*stored:.*declared:"):
        task(changed).check()
    with pytest.raises(IncompatibleState, match="declared as STRING and are now declared as LONG"):
        task(Numbers(), Types.LONG()).check()
    with pytest.raises(ConfigurationError, match=r"'keyed' \(uid 'keyed'\) cannot be pickled"):
        task(Unpicklable()).check()


def a_row_that_does_not_fit_names_operator_and_key(tmp_path):
    empty = OperatorCheckpoint("keyed", True, MOST)
    rows = as_rows({"a": (1, None, None, None)})
    with pytest.raises(UserCodeError, match=r"(?s)occurs twice.*operator 'keyed' \(uid 'keyed'\).*key: 'a'"):
        written(str(tmp_path), ColumnsToState(STATES), rows + rows, empty, 1)
    bad = [("a", ("text", None, None, None))]
    with pytest.raises(UserCodeError, match=r"(?s)state 'value'.*key: 'a'"):
        written(str(tmp_path), ColumnsToState(STATES), bad, empty, 1)
    whole = ColumnsToState([ValueStateDescriptor("whole", Types.BIG_INT())])
    with pytest.raises(
        UserCodeError, match=r"(?s)column of state 'whole' has 'x', which does not fit.*\(uid 'keyed'\).*'a'"
    ):
        written(str(tmp_path), whole, [("a", ("x",))], empty, 1)
    pairs = [("a", (None, None, [(1, "x"), (1, "y")], None))]
    with pytest.raises(UserCodeError, match=r"column of state 'map' has .*: a key occurs twice in the map"):
        written(str(tmp_path), ColumnsToState(STATES), pairs, empty, 1)


class Total(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


class Placed(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, *elements


@pytest.mark.parametrize(
    "call",
    [
        lambda windows: windows.reduce(max, window_function=Placed(), output_type=Types.TUPLE([Types.LONG(), Types.LONG()])),
        lambda windows: windows.aggregate(Total(), window_function=Placed(), output_type=Types.PICKLED_BYTE_ARRAY()),
        lambda windows: windows.process(Placed(), output_type=Types.PICKLED_BYTE_ARRAY()),
    ],
)
def test_windows_are_made_by_the_calls_of_the_jobs_program(call):
    elements = OneInputTransformation(cast("Any", None), stamp=int)
    windows = elements.key_by(lambda value: value % 2, Types.LONG()).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    definition = call(windows).definition
    assert definition is not None
    assert definition["of"] == "windows"


def test_a_state_of_the_name_of_the_keys_column_is_read_by_a_function(tmp_path):
    named = ColumnsToState([ValueStateDescriptor("key", Types.LONG())])
    operator = written(str(tmp_path), named, [("a", (1,))], OperatorCheckpoint("keyed", True, MOST), 1)
    with pytest.raises(ConfigurationError, match=r"\(uid 'keyed'\) has a state 'key'.*KeyedStateReaderFunction"):
        content(str(tmp_path), operator)


def a_part_of_a_savepoint_has_a_schema_for_all_subtasks_that_it_comes_from(tmp_path):
    """Different maps and lists have left their rows in the subtasks, so none had this schema."""
    first = next(f"k{n}" for n in range(100) if key_group(f"k{n}", MOST) < MOST // 2)
    second = next(f"k{n}" for n in range(100) if key_group(f"k{n}", MOST) >= MOST // 2)
    table = {first: (None, list(range(300)), None, None), second: (None, None, {n: str(n) for n in range(300)}, None)}
    empty = OperatorCheckpoint("keyed", True, MOST)
    operator = written(str(tmp_path), ColumnsToState(STATES), as_rows(table), empty, 2)
    storage = Storage.open(str(tmp_path))
    (part,) = parts_of("keyed", operator)
    handle, schema = write_part(part, storage, storage, StateBackendSettings.of({}), str(tmp_path))
    assert handle.schema not in operator.schemas
    saved = msgspec.structs.replace(operator, subtasks=[SubtaskState([handle])], schemas={handle.schema: schema})
    assert content(str(tmp_path), saved) == table
