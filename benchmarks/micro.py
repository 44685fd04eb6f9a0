"""Parts of the hot path in isolation, compared with ``benchmarks/baseline.json``. Prints ratios; never fails on time.

Each part runs until its thread has used a tenth of a second of CPU time, seven times (`--repeats`); the median counts.
Times are scaled by a loop of plain Python measured in between, so that a baseline from another machine is meaningful: 1.00
means "as in the baseline".
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.one_subtask import one_subtask
from holdfast.checkpoint.ids import Epoch
from holdfast.common import Time, Types
from holdfast.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import ListStateDescriptor, ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.runtime.channels.channels import Router
from holdfast.runtime.operators.keyed import KeyedProcess
from holdfast.runtime.records.frames import Frame, decode_data, encode_data
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import OperatorName
from holdfast.runtime.time.clock import Clock, Passing
from holdfast.state.cells.codec import RowCodec, packed_array
from holdfast.state.cells.column import Column
from holdfast.state.cells.row import DIRTY
from holdfast.state.keys.key_groups import group_assigner, key_grouper
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.table import RowTable
from holdfast.state.store.ordered import OrderedStore, SortedMemory
from holdfast.state.store.store import RocksDBStore, rocksdb_settings
from holdfast.state.stored.layout import section
from holdfast.state.stored.registry import OperatorSchemaRegistry
from holdfast.state.stored.schema import ROWS
from holdfast.state.timers.timer_family import TimerFamily

BASELINE = Path(__file__).with_name("baseline.json")
N = 10_000
_REPEATS = 7
_LEAST_S = 0.1
Body = Callable[[], Any]


def _events() -> list[tuple[int, float, int]]:
    pick = random.Random(7)
    return [(pick.randrange(N), pick.randrange(4000) / 4, 1_700_000_000_000 + i) for i in range(N)]


def _columns() -> list[Column]:
    count = ValueStateDescriptor("count", Types.TUPLE([Types.LONG(), Types.LONG()]))
    return [Column.of(count), Column.of(ListStateDescriptor("last", Types.DOUBLE()))]


def _pickled_columns() -> list[Column]:
    return [Column.of(ValueStateDescriptor(name, Types.PICKLED_BYTE_ARRAY())) for name in ("count", "last")]


def _codec(columns: list[Column]) -> RowCodec:
    registry = OperatorSchemaRegistry("benchmark")
    registry.state("keyed", ROWS)
    codec = RowCodec(registry, "keyed")
    for column in columns:
        codec.register(column)
    registry.complete()
    return codec


def _table(store: OrderedStore) -> RowTable:
    """A table of rows without large maps and lists."""
    codec = _codec(_columns())
    codec.grow(1)
    groups_of = key_grouper(128)
    return RowTable(codec, store, section(1).prefix, groups_of, False, *[lambda *_: None] * 3)


def _rows() -> list[list[Any]]:
    return [[0, (n, 1_700_000_000_000 + n), [n / 4] * (n % 10 + 1)] for n in range(N)]


def state_operations() -> Body:
    """value(), update(), get() and update() of two states, per event."""
    state = KeyedState("benchmark")
    space = state.space("keyed")
    count = space.get_state(ValueStateDescriptor("count", Types.TUPLE([Types.LONG(), Types.LONG()])))
    last = space.get_list_state(ListStateDescriptor("last", Types.DOUBLE()))
    keys = [user for user, _, _ in _events()]
    table = space.table()

    def body() -> None:
        table.load(keys)
        rows = table.rows
        for key in keys:
            space.row = rows[key]
            seen = count.value()
            count.update((1, 2) if seen is None else (seen[0] + 1, seen[1]))
            amounts = list(last.get() or ())
            amounts.append(1.0)
            last.update(amounts[-10:])

    return body


def _encoded(codec: RowCodec, keys: Sequence[int], rows: Sequence[list[Any]]) -> bytes:
    """Rows as a piece of a delta has them."""
    return packed_array(codec.encode_each(keys, rows, "benchmark"))


def encode_typed() -> Body:
    """Encode rows of declared types, per row."""
    codec, rows, keys = _codec(_columns()), _rows(), list(range(N))
    return lambda: _encoded(codec, keys, rows)


def decode_typed() -> Body:
    """Decode rows of declared types, per row."""
    codec = _codec(_columns())
    keys = list(range(N))
    data = _encoded(codec, keys, _rows())
    return lambda: codec.decode_many(keys, data, codec.schema_id, 1)


def encode_pickled() -> Body:
    """Encode rows of undeclared types, per row."""
    codec, rows, keys = _codec(_pickled_columns()), _rows(), list(range(N))
    return lambda: _encoded(codec, keys, rows)


def decode_pickled() -> Body:
    """Decode rows of undeclared types, per row."""
    codec = _codec(_pickled_columns())
    keys = list(range(N))
    data = _encoded(codec, keys, _rows())
    return lambda: codec.decode_many(keys, data, codec.schema_id, 1)


def barrier() -> Body:
    """Change every row and collect the changes as the pieces of a delta, ordered by key group, per row."""
    table = _table(SortedMemory())
    keys = list(range(N))

    def body() -> None:
        table.load(keys)
        for key, row in zip(keys, _ROWS):
            kept = table.rows[key]
            kept[:] = [kept[0] | DIRTY, row[1], row[2]]
        table.collect("benchmark")

    return body


def store_read() -> Body:
    """Load rows that are not in memory with one bulk read from RocksDB, per row."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-micro-"))
    _TIDY.append(directory)
    store = RocksDBStore(str(directory / "db"), rocksdb_settings({}))
    table = _table(store)
    keys = list(range(N))
    table.load(keys)
    for key, row in zip(keys, _ROWS):
        table.rows[key][:] = [table.rows[key][0] | DIRTY, row[1], row[2]]
    table.collect("benchmark")
    table.flush()

    def body() -> None:
        table = _table(store)
        table.in_store = True
        table.load(keys)

    return body


def timers() -> Body:
    """Register, collect (ordered by key group) and fire timers, per timer."""
    events = _events()
    groups_of = key_grouper(128)

    def body() -> None:
        queue = TimerFamily(1, SortedMemory(), groups_of)
        for user, _, timestamp in events:
            queue.register(timestamp + user, user)
        queue.collect()
        for _ in queue.due(1_800_000_000_000):
            pass

    return body


def frame_encode() -> Body:
    """Encode records to a frame, per record."""
    frame = _frame()
    return lambda: encode_data(frame)


def frame_of_dictionaries() -> Body:
    """Encode dictionaries to a frame and decode them, per record."""
    values: list[dict[str, Any]] = [
        {"user": f"u{user:05d}", "amount": amount, "currency": "INR", "ts_ms": at} for user, amount, at in _events()
    ]
    frame = Frame(0, values, [each["ts_ms"] for each in values], [each["user"] for each in values])
    return lambda: decode_data(memoryview(encode_data(frame)))


def frame_decode() -> Body:
    """Decode records from a frame, per record."""
    data = encode_data(_frame())
    return lambda: decode_data(data)


def key_groups() -> Body:
    """Compute the owning subtasks of keys, per record."""
    assign = group_assigner(128, 2)
    keys = [user for user, _, _ in _events()]
    return lambda: assign(keys)


def merge() -> Body:
    """Merge and decode two channels' frames by watermark, per record."""
    from holdfast.runtime.channels.channels import InputMerge
    from holdfast.runtime.records.frames import BARRIER, DATA, Barrier, encode_barrier, pack_frame

    events = _events()
    frames = []
    for sender in (0, 1):
        parts = [events[i : i + 1000] for i in range(sender * N // 2, (sender + 1) * N // 2, 1000)]
        for sequence, part in enumerate(parts):
            content = Frame(part[-1][2], part, [e[2] for e in part], [e[0] for e in part])
            frames.append(pack_frame(DATA, 1, 0, 0, sender, sequence, encode_data(content)))
        end = Barrier(Epoch(1), "a", len(parts), parts[-1][-1][2], False)
        frames.append(pack_frame(BARRIER, 1, 0, 0, sender, len(parts), encode_barrier(end)))
    plan, vertex = _two_stage_plan()
    directory = tempfile.mkdtemp(prefix="holdfast-micro-")
    _TIDY.append(Path(directory))

    def body() -> None:
        merged = InputMerge.of(plan, vertex, 0, -(2**63), directory, 256 << 20)
        for frame in frames:
            merged.add(frame)
        merged.verify(Epoch(1))
        for _ in merged.frames():
            pass

    return body


def _calls(function: KeyedProcessFunction) -> Body:
    """The calls of a keyed function, and its results."""
    operator = KeyedProcess(function)
    operator.context = one_subtask(Clock(), KeyedState("benchmark"))
    operator.open()
    frame = _frame()
    return lambda: operator.process(frame.batch())


def keyed_function() -> Body:
    """An element of a keyed function that keeps a user's last ten amounts and has a result for each, per event."""
    return _calls(_Last())


def keyed_function_without_state() -> Body:
    """An element of a keyed function without state that has a result for each, per event."""
    return _calls(_Passes())


class _Last(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", Types.DOUBLE()))

    def process_element(self, value: tuple[int, float, int], ctx: Any) -> Iterator[tuple[int, float]]:
        amounts = list(self.last.get())
        amounts.append(value[1])
        self.last.update(amounts[-10:])
        yield value[0], value[1]


class _Passes(KeyedProcessFunction):
    def process_element(self, value: tuple[int, float, int], ctx: Any) -> Iterator[tuple[int, float]]:
        yield value[0], value[1]


def window_per_record() -> Body:
    """Sum and count of a user's amounts by minute, a result for each user and minute, per event."""
    events = [
        (1_700_000_040_000 + n * 30, user % 300, amount) for n, (user, amount, _) in enumerate(_events())
    ]  # five minutes
    clock = Clock()
    operator = _windows(clock)
    span = 300_000
    frames = [events[at : at + 1000] for at in range(0, N, 1000)]
    batches = [
        ([(user, amount) for _, user, amount in part], [stamp for stamp, _, _ in part], [user for _, user, _ in part])
        for part in frames
    ]

    def body() -> None:
        for n, (values, stamps, keys) in enumerate(batches):
            operator.process(RecordBatch(values, stamps, keys))
            clock.watermark = stamps[-1] - 5000 if n + 1 < len(batches) else stamps[-1] // 60_000 * 60_000 + 59_999
            operator.advance_watermark(clock.watermark)
            stamps[:] = [stamp + span for stamp in stamps]

    return body


def _windows(clock: Clock) -> Any:
    """The operator of windows of a minute, with the functions of the window job."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())
    env.set_parallelism(1)
    windows = (
        env.from_collection([(1, 1.0)]).key_by(lambda event: event[0]).window(TumblingEventTimeWindows.of(Time.minutes(1)))
    )
    made = windows.aggregate(_SumAndCount(), _Emit())
    factory: Any = made._transformation.factory  # type: ignore[attr-defined]
    operator = factory.create()
    operator.context = one_subtask(clock, KeyedState("benchmark"), emit=lambda batch: None)
    operator.open()
    return operator


class _SumAndCount(AggregateFunction):
    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: tuple[int, float], accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator

    def merge(self, acc_a: tuple[float, int], acc_b: tuple[float, int]) -> tuple[float, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class _Emit(ProcessWindowFunction):
    def process(self, key: int, context: Any, elements: Any) -> Iterator[tuple[int, int, float, int]]:
        for total, count in elements:
            yield key, context.window().start, total, count


def route() -> Body:
    """Send a record to one of two subtasks by its key, per record."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())
    env.set_parallelism(2)
    env.from_collection([(1, 1.0, 1)]).key_by(lambda event: event[0]).process(_Passes()).print()
    plan = env._plan("benchmark")
    vertex = next(vertex for vertex in plan.vertices if vertex.chain[-1].channels)
    (channel,) = vertex.chain[-1].channels
    router = Router(plan, vertex, channel, 0, lambda partition, frame: None, OperatorName("route", "route"), Passing())
    batch = _frame().batch()

    def body() -> None:
        router.begin()
        router.process(batch)
        router.end(Epoch(1), "attempt")

    return body


def _two_stage_plan() -> tuple[Any, Any]:
    """A source and a keyed operator with two subtasks each."""
    from types import SimpleNamespace

    from holdfast.runtime.plan.plan import InputKind, Partitioning

    channel = SimpleNamespace(id=0, target=1, partitioning=Partitioning.HASH, input_index=0)
    sender = SimpleNamespace(parallelism=2, chain=[SimpleNamespace(channels=[channel])])
    receiver = SimpleNamespace(id=1, parallelism=2, chain=[SimpleNamespace(channels=[])], inputs=[InputKind.KEYED])
    return SimpleNamespace(vertices=[sender, receiver]), receiver


def _frame() -> Frame:
    events = _events()
    return Frame(0, events, [e[2] for e in events], [e[0] for e in events])


_ROWS = _rows()
_TIDY: list[Path] = []
PARTS: list[Callable[[], Body]] = [
    state_operations,
    encode_typed,
    decode_typed,
    encode_pickled,
    decode_pickled,
    barrier,
    store_read,
    timers,
    key_groups,
    frame_encode,
    frame_decode,
    frame_of_dictionaries,
    merge,
    keyed_function,
    keyed_function_without_state,
    window_per_record,
    route,
]


def _yardstick() -> None:
    """A fixed amount of plain Python, which measures the machine's present speed."""
    table: dict[int, list[int]] = {}
    for i in range(N):
        table.setdefault(i * 7919 % 1009, []).append(i)


def _time(body: Body, repeats: int) -> float:
    """Nanoseconds per operation, of which the body runs N; without garbage collection, as in a slot."""
    body()
    taken = []
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        rounds = 0
        began = time.thread_time()
        while (passed := time.thread_time() - began) < _LEAST_S:
            body()
            rounds += 1
        taken.append(passed / rounds)
        gc.enable()
    return statistics.median(taken) / N * 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--save", action="store_true", help="make these figures the baseline")
    parser.add_argument("--repeats", type=int, default=_REPEATS, help="of each part (default: %(default)s)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every part; returns figures and ratios."""
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    figures: dict[str, dict[str, float]] = {}
    print(f"{'':<18}{'ns':>10}{'baseline':>10}{'ratio':>8}", file=sys.stderr)
    try:
        for make in PARTS:
            body = make()
            unit = _time(_yardstick, options.repeats)
            spent = _time(body, options.repeats)
            before = baseline.get(make.__name__)
            figures[make.__name__] = {"ns": round(spent, 1), "yardstick_ns": round(unit, 1)}
            line = f"{make.__name__:<18}{spent:>10.1f}"
            if before is not None:
                scaled = before["ns"] * unit / before["yardstick_ns"]
                figures[make.__name__]["ratio"] = round(spent / scaled, 2)
                line += f"{scaled:>10.1f}{spent / scaled:>8.2f}"
            print(line, file=sys.stderr)
    finally:
        for directory in _TIDY:
            shutil.rmtree(directory, ignore_errors=True)
    if options.save:
        kept = {name: {"ns": f["ns"], "yardstick_ns": f["yardstick_ns"]} for name, f in figures.items()}
        BASELINE.write_text(json.dumps(kept, indent=1) + "\n")
    return {"parts": figures}
