"""Pickled classes that have moved and gained a field: the present class reads what the former one wrote, in any state."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, make_dataclass
from types import ModuleType
from typing import Any

import pytest

from holdfast.common import Time
from holdfast.datastream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)

from .async_programs import Gated
from .inprocess import LEDGERS, LedgerSink
from .small_programs import timed
from .test_unaligned_checkpoints import unaligned


@dataclass
class Present:
    """A class that was `a_former_module.Former`, and has gained a field."""

    n: int
    tags: list[str] = field(default_factory=list)


def shown(objects: Any) -> list[tuple[int, Any]]:
    return [(each.n, getattr(each, "tags", None)) for each in objects]


class Collected(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [*accumulator, value]

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


class Keeps(KeyedProcessFunction):
    """Tells the objects that it has kept, then keeps another one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, ctx):
        if self.kind in ("value", "value with time-to-live"):
            descriptor = ValueStateDescriptor("kept", None)
            if self.kind != "value":
                descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
            self.state = ctx.get_state(descriptor)
            self.all, self.keep = lambda: filter(None, [self.state.value()]), self.state.update
        elif self.kind == "list":
            self.state = ctx.get_list_state(ListStateDescriptor("kept", None))
            self.all, self.keep = self.state.get, self.state.add
        elif self.kind == "map":
            self.state = ctx.get_map_state(MapStateDescriptor("kept", None, None))
            self.all, self.keep = self.state.values, lambda each: self.state.put(each.n, each)
        elif self.kind == "reducing":
            self.state = ctx.get_reducing_state(ReducingStateDescriptor("kept", lambda a, _: a, None))
            self.all, self.keep = lambda: filter(None, [self.state.get()]), self.state.add
        else:
            self.state = ctx.get_aggregating_state(AggregatingStateDescriptor("kept", Collected(), None))
            self.all, self.keep = lambda: self.state.get() or [], self.state.add

    def process_element(self, value, ctx):
        yield shown(self.all())
        self.keep(value[2])


class KeepsInOperator(FlatMapFunction, CheckpointedFunction):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        get = store.get_union_list_state if self.kind == "union list" else store.get_list_state
        self.state = get(ListStateDescriptor("kept"))

    def snapshot_state(self, context):
        pass

    def flat_map(self, value):
        yield shown(self.state.get())
        self.state.add(value[2])


RULES = MapStateDescriptor("rules", None, None)


class KeepsBroadcast(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield []

    def process_broadcast_element(self, value, ctx):
        rules = ctx.get_broadcast_state(RULES)
        yield shown(rules.values())
        rules.put(value[1], value[2])


class ShowsWindow(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield shown(element[2] for element in elements)


class Waits(AsyncFunction):
    async def async_invoke(self, value):
        await Gated().async_invoke(value[1])
        return [shown([value[2]])]


class Passes(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Shows(FlatMapFunction):
    def flat_map(self, value):
        yield shown([value[2]])


def operator(kind: str, stream: Any) -> Any:
    if kind == "window":
        return stream.key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(Time.minutes(1))).process(ShowsWindow())
    if kind == "broadcast":
        return stream.filter(lambda r: False).uid("none").connect(stream.broadcast(RULES)).process(KeepsBroadcast())
    if kind in ("operator list", "union list"):
        return stream.flat_map(KeepsInOperator(kind))
    if kind == "request in flight":
        return AsyncDataStream.ordered_wait(stream, Waits(), Time.seconds(600), 100)
    if kind == "channel state":
        return stream.key_by(lambda r: r[0]).process(Passes()).uid("passes").rebalance().flat_map(Shows())
    return stream.key_by(lambda r: r[0]).process(Keeps(kind))


KEYED = ["value", "value with time-to-live", "list", "map", "reducing", "aggregating", "window"]
OTHERS = ["operator list", "union list", "broadcast", "request in flight", "channel state"]


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(kind, backend) for kind in KEYED for backend in ("rocksdb", "hashmap")] + [(kind, "rocksdb") for kind in OTHERS],
)
def an_object_of_a_former_class_is_read_as_one_of_the_present_class(job, kind, backend, monkeypatch, gate):
    former = make_dataclass("Former", [("n", int)])
    former.__module__ = "a_former_module"
    module = ModuleType("a_former_module")
    module.Former = former  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_former_module", module)

    def build(made: Any, aliases: dict[str, type] | None = None) -> Any:
        def program(env: StreamExecutionEnvironment) -> None:
            for name, present in (aliases or {}).items():
                env.add_class_alias(name, present)
            stream = timed(env, [("a", n, made(n)) for n in range(many)], cut)
            operator(kind, stream).uid("kept").sink_to(LedgerSink("out")).uid("out")

        return program

    many, cut = (60, 20) if kind == "channel state" else (9, 1)
    lab = job(build(former), parallelism=1, config={"state.backend.type": backend})
    if kind == "channel state":
        lab.config, lab.records_before_deadline, lab.early, lab.budget = unaligned(backend, "1"), 1, False, 40
    assert not lab._run_until(*(("after complete", 2) if kind == "channel state" else ("after commit", 8)))
    before = len(LEDGERS["out"].values)
    monkeypatch.delitem(sys.modules, "a_former_module")
    lab.build = build(lambda n: Present(n, ["new"]), {"a_former_module.Former": Present})
    gate.set()
    lab.run()
    after = [each for values in LEDGERS["out"].values[before:] for each in values]
    assert [] in [tags for _, tags in after], "an object that was stored by the former class is among them"
    if kind != "channel state":  # there, the first driver has told some that are not committed
        assert None not in [tags for _, tags in after]
