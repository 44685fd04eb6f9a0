"""Programs whose results do not depend on how records fall into epochs, each with its model in plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.common import Duration, Time, Types, WatermarkStrategy
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
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)

from .inprocess import LedgerSink, SplitSource

MINUTE = 60_000
DELAY = 5_000
END = 10**15
"""Only the end of the input brings time here."""
BIG = OutputTag("big")
LATE = OutputTag("late")

Record = tuple[str, int, int]
"""Key, timestamp, value."""


def records(seed: int, count: int, keys: int = 7, splits: int = 3, jitter: int = DELAY) -> dict[str, list[Record]]:
    """Random records by split. A key stays in its split; timestamps go back by at most ``jitter``."""
    rng = random.Random(seed)
    times = [rng.randint(0, 20_000) for _ in range(splits)]
    result: dict[str, list[Record]] = {f"split-{n}": [] for n in range(splits)}
    for _ in range(count):
        key = rng.randrange(keys)
        split = key % splits
        times[split] += rng.choice([0, 1, 500, 3_000, 20_000])
        result[f"split-{split}"].append((f"k{key}", times[split] - rng.randint(0, jitter), rng.randint(1, 100)))
    return result


def everything(data: dict[str, list[Record]]) -> list[Record]:
    return [record for split in data.values() for record in split]


def stream(env: StreamExecutionEnvironment, data: dict[str, list[Record]], cut: int = 0, uid: str = "source") -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DELAY)).with_timestamp_assigner(
        lambda record, _: record[1]
    )
    return env.from_source(SplitSource(data, cut), strategy, uid).uid(uid)


def start_of(timestamp: int) -> int:
    return timestamp - timestamp % MINUTE


# ---- windows: sums by reduce, means by aggregate, everything by process ------------------------------------------------


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Record, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class Named(ProcessWindowFunction):
    """The window's content with its key and start, and how many windows of the key there were before."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def process(self, key: str, context: Any, elements: Any) -> Iterator[Any]:
        before = context.global_state().get_state(ValueStateDescriptor("before", Types.LONG()))
        before.update((before.value() or 0) + 1)
        yield self.kind, key, context.window().start, before.value(), sorted(map(repr, elements))


def windows(data: dict[str, list[Record]], cut: int = 0, before: Callable[[Any], Any] = lambda source: source) -> Any:
    """``before``: puts operators in front of the windows that change no record."""

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = before(stream(env, data, cut)).key_by(lambda record: record[0])
        minutes = TumblingEventTimeWindows.of(Time.minutes(1))
        sums = keyed.window(minutes).reduce(lambda a, b: (a[0], max(a[1], b[1]), a[2] + b[2]))
        means = keyed.window(minutes).aggregate(Mean(), Named("mean"))
        whole = keyed.window(minutes).process(Named("all"))
        sums.map(lambda s: ("sum", s[0], start_of(s[1]), s[2])).union(means, whole).sink_to(LedgerSink("out"))

    return build


def windows_model(data: dict[str, list[Record]]) -> Counter[Any]:
    groups: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in everything(data):
        groups[record[0], start_of(record[1])].append(record)
    numbers: Counter[str] = Counter()
    expected: list[Any] = []
    for (key, start), members in sorted(groups.items()):
        numbers[key] += 1
        total = sum(m[2] for m in members)
        expected += [
            ("sum", key, start, total),
            ("mean", key, start, numbers[key], [repr(total / len(members))]),
            ("all", key, start, numbers[key], sorted(map(repr, members))),
        ]
    return Counter(map(repr, expected))


# ---- a function with all kinds of state, and timers --------------------------------------------------------------------


class Sessions(KeyedProcessFunction):
    """Counts each element; at the end of each minute, by a timer, tells what five states know of it, and frees it."""

    typed = True

    def open(self, runtime_context: Any) -> None:
        def declared(type_info: Any) -> Any:
            return type_info if self.typed else None

        self.count = runtime_context.get_state(ValueStateDescriptor("count", declared(Types.LONG())))
        self.order = runtime_context.get_list_state(ListStateDescriptor("order", declared(Types.LONG())))
        self.minutes = runtime_context.get_map_state(
            MapStateDescriptor("minutes", declared(Types.LONG()), declared(Types.LONG()))
        )
        self.total = runtime_context.get_reducing_state(
            ReducingStateDescriptor("total", lambda a, b: a + b, declared(Types.LONG()))
        )
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), None))

    def process_element(self, value: Record, ctx: Any) -> Iterator[Any]:
        assert ctx.timestamp() == value[1]
        assert ctx.get_current_key() == value[0]
        self.count.update((self.count.value() or 0) + 1)
        self.order.add(value[2])
        self.total.add(value[2])
        self.mean.add(value)
        start = start_of(value[1])
        self.minutes.put(start, (self.minutes.get(start) or 0) + value[2])
        ctx.timer_service().register_event_time_timer(start + MINUTE)
        ctx.timer_service().register_event_time_timer(END)
        ctx.timer_service().register_event_time_timer(start + MINUTE + 1)
        ctx.timer_service().delete_event_time_timer(start + MINUTE + 1)
        yield "element", value[0], self.count.value()
        if value[2] > 90:
            yield BIG, ("big", value[0], value[2])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        start = timestamp - MINUTE
        if timestamp < END:
            yield "minute", ctx.get_current_key(), start, self.minutes.get(start)
            self.minutes.remove(start)
        else:
            assert self.minutes.is_empty()
            yield "last", ctx.get_current_key(), self.total.get(), self.mean.get(), list(self.order.get())
            for state in (self.count, self.order, self.total, self.mean):
                state.clear()


class UntypedSessions(Sessions):
    typed = False


def sessions(data: dict[str, list[Record]], cut: int = 0, function: type[Sessions] = Sessions, ledger: str = "out") -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        processed = stream(env, data, cut).key_by(lambda record: record[0]).process(function()).uid("sessions")
        processed.union(processed.get_side_output(BIG)).sink_to(LedgerSink(ledger))

    return build


def sessions_model(data: dict[str, list[Record]]) -> Counter[Any]:
    expected: list[Any] = []
    by_key: dict[str, list[Record]] = defaultdict(list)
    for record in everything(data):
        by_key[record[0]].append(record)
    for key, members in by_key.items():
        minutes: Counter[int] = Counter()
        for number, record in enumerate(members, 1):
            expected.append(("element", key, number))
            minutes[start_of(record[1])] += record[2]
            if record[2] > 90:
                expected.append(("big", key, record[2]))
        expected += [("minute", key, start, total) for start, total in minutes.items()]
        values = [m[2] for m in members]
        expected.append(("last", key, sum(values), sum(values) / len(values), values))
    return Counter(map(repr, expected))


# ---- several shuffles, unions, all ways to spread, late data -------------------------------------------------------------


class Numbered(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Record, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value[0], value[1], value[2], self.count.value()


class Everywhere(ProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield "everywhere", self.subtask, value[0], value[2]


def network(data: dict[str, list[Record]], other: dict[str, list[Record]], cut: int = 0) -> Any:
    """key_by -> process -> key_by -> window -> key_by -> window, beside rebalance, broadcast and the user's own way."""

    def build(env: StreamExecutionEnvironment) -> None:
        one, two = stream(env, data, cut, "one"), stream(env, other, cut, "two")
        both = one.union(two)
        numbered = both.key_by(lambda record: record[0]).process(Numbered()).uid("numbered")
        parity = numbered.key_by(lambda n: n[2] % 2).window(TumblingEventTimeWindows.of(Time.minutes(1)))
        sums = parity.reduce(lambda a, b: (a[0], max(a[1], b[1]), a[2] + b[2] - b[2] % 2, a[3] + b[3]))
        # The window's results carry its end as their timestamp: each falls into the window of three minutes around it.
        marked = sums.map(lambda s: ("sums", s[2] % 2, start_of(s[1]), s[3]))
        longer = marked.key_by(lambda m: m[1]).window(TumblingEventTimeWindows.of(Time.minutes(3)))
        most = longer.reduce(lambda a, b: ("longer", a[1], min(a[2], b[2]), a[3] + b[3]))
        most = most.map(lambda m: ("longer", m[1], m[2] - m[2] % (3 * MINUTE), m[3]))
        spread = both.rebalance().map(lambda r: ("spread", *r)).name("spread")
        back = spread.shuffle().filter(lambda r: r[3] % 3 == 0).rescale().map(lambda r: ("back", *r[1:]))
        custom = both.partition_custom(lambda key, n: int(key[1:]) % n, lambda r: r[0]).map(lambda r: ("custom", *r))
        everywhere = one.broadcast().process(Everywhere())
        (
            numbered.map(lambda n: ("numbered", n[0], n[3]))
            .union(marked, most, spread, back, custom, everywhere)
            .sink_to(LedgerSink("out"))
        )

    return build


def network_model(data: dict[str, list[Record]], other: dict[str, list[Record]], parallelism: int) -> Counter[Any]:
    both = everything(data) + everything(other)
    expected: list[Any] = []
    counts: Counter[str] = Counter()
    sums: Counter[tuple[int, int]] = Counter()
    for key, timestamp, value in both:
        counts[key] += 1
        expected.append(("numbered", key, counts[key]))
        expected += [("spread", key, timestamp, value), ("custom", key, timestamp, value)]
        if value % 3 == 0:
            expected.append(("back", key, timestamp, value))
    by_key: Counter[str] = Counter()
    for key, timestamp, value in both:
        by_key[key] += 1
        sums[value % 2, start_of(timestamp)] += by_key[key]
    longer: Counter[tuple[int, int]] = Counter()
    for (parity, start), total in sums.items():
        expected.append(("sums", parity, start, total))
        longer[parity, start - start % (3 * MINUTE)] += total
    expected += [("longer", parity, start, total) for (parity, start), total in longer.items()]
    for subtask in range(parallelism):
        expected += [("everywhere", subtask, record[0], record[2]) for record in everything(data)]
    return Counter(map(repr, expected))
