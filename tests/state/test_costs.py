"""The cost of each operation of each kind of state at n and 2n: calls, rows and bytes of the store, memory; no clock."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import pytest

from effort import seeds
from holdfast.checkpoint.metadata import SubtaskState
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Time, Types
from holdfast.datastream.functions import AggregateFunction
from holdfast.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.runtime.operators.function_life import OperatorStates
from holdfast.runtime.plan.listed_states import ListedStates
from holdfast.runtime.plan.redistribution import OperatorSnapshot
from holdfast.state.cells import entries
from holdfast.state.store.ordered import SortedMemory
from holdfast.state.store.store import RocksDBStore
from holdfast.testing.memory_store import MemoryStore

from .backend import Backend

N = 100
TTL = 1000


@dataclass
class Cost:
    """What operations take."""

    calls: int = 0
    """Calls and resumptions of functions in Python, and calls of those in C."""
    rows: int = 0
    """Rows that the store reads, looks at or writes."""
    bytes: int = 0
    """Bytes of their values."""
    memory: int = 0
    """The sum over the operations of the most memory that each takes: one that copies the whole takes as much as that."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Callable[[int], Any]], Cost]]:
    """Counts the cost of some calls of a function."""
    cost = Cost()

    def count(rows: int, values: Any = ()) -> None:
        cost.rows += rows
        cost.bytes += sum(len(value) for value in values if value is not None)

    for store in (SortedMemory, RocksDBStore):
        reads, scans, firsts, writes = store.get_many, store.scan, store.first_key, store.write

        def get_many(self: Any, keys: list[bytes], read: Any = reads) -> Any:
            found = read(self, keys)
            count(len(keys), found)
            return found

        def scan(self: Any, start: bytes, end: bytes, read: Any = scans) -> Any:
            for row in read(self, start, end):
                count(1, row[1:])
                yield row

        def first_key(self: Any, start: bytes, end: bytes, read: Any = firsts) -> Any:
            count(1)
            return read(self, start, end)

        def write(self: Any, puts: Any, deletes: Any = (), *rest: Any, to: Any = writes) -> Any:
            puts, deletes = list(puts), list(deletes)
            count(len(puts) + len(deletes), (value for _, value in puts))
            return to(self, puts, deletes, *rest)

        for name, function in {"get_many": get_many, "scan": scan, "first_key": first_key, "write": write}.items():
            monkeypatch.setattr(store, name, function)

    def measure(times: int, operation: Callable[[int], Any]) -> Cost:
        def called(frame: Any, event: str, argument: Any) -> None:
            cost.calls += event in ("call", "c_call")

        cost.calls = cost.rows = cost.bytes = cost.memory = 0
        with allocations(), profiled(called):
            for number in range(times):
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                operation(number)
                cost.memory += max(tracemalloc.get_traced_memory()[1] - before, 0)
        return Cost(*astuple(cost))

    return measure  # type: ignore[return-value]


@contextmanager
def allocations() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@contextmanager
def profiled(profile: Any) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def excess(once: Cost, twice: Cost) -> list[str]:
    """What grows faster than the work. What is allocated in steps, such as dicts, and for the first time, is allowed for."""
    allowed = Cost(300, 20, 4000, 100_000)
    return [
        f"{name}: {getattr(once, name)} for a number, {getattr(twice, name)} for twice as many"
        for name, spare in vars(allowed).items()
        if getattr(twice, name) > 2.4 * getattr(once, name) + spare
    ]


def all_excess(measured: Callable[[int], dict[str, Cost]]) -> dict[str, list[str]]:
    """What grows faster than the work of each operation, by its name.

    A cost that comes in one step, as that of a buffer, is no growth: what is more from n to 2n is so from 2n to 4n, too.
    """
    once, twice = measured(N), measured(2 * N)
    found = {name: grown for name in once if (grown := excess(once[name], twice[name]))}
    if found:
        most = measured(4 * N)
        found = {name: grown for name in found if (grown := excess(twice[name], most[name]))}
    return found


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def states(ttl: bool) -> list[Any]:
    number = Types.LONG()
    made = [
        ValueStateDescriptor("value", number),
        ValueStateDescriptor("text", Types.STRING()),
        ListStateDescriptor("list", number),
        ListStateDescriptor("texts", Types.STRING()),
        MapStateDescriptor("map", number, number),
        ReducingStateDescriptor("sum", lambda a, b: a + b, number),
        AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([number, number])),
    ]
    if ttl:
        for each in made:
            each.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(TTL)).build())
    return made


OPERATIONS: dict[str, Callable[[Any, int, int], Any]] = {
    "put a new entry": lambda state, i, n: state["map"].put(n + i, i),
    "put an entry": lambda state, i, n: state["map"].put(i, -i),
    "put_all": lambda state, i, n: state["map"].put_all({i: -i}),
    "get an entry": lambda state, i, n: state["map"].get(i),
    "get no entry": lambda state, i, n: state["map"].get(-1 - i),
    "contains": lambda state, i, n: state["map"].contains(i),
    "contains not": lambda state, i, n: state["map"].contains(-1 - i),
    "is_empty": lambda state, i, n: state["map"].is_empty(),
    "remove": lambda state, i, n: state["map"].remove(i),
    "remove from the end": lambda state, i, n: state["map"].remove(n - 1 - i),
    "remove until it is empty": lambda state, i, n: (state["map"].remove(i), state["map"].is_empty()),
    "put, and ask whether it is empty": lambda state, i, n: (state["map"].put(n + i, i), state["map"].is_empty()),
    "add to a list of numbers": lambda state, i, n: state["list"].add(i),
    "add_all to a list of numbers": lambda state, i, n: state["list"].add_all([i]),
    "add to a list": lambda state, i, n: state["texts"].add("text"),
    "add_all to a list": lambda state, i, n: state["texts"].add_all(["text"]),
    "update a value": lambda state, i, n: state["value"].update(i),
    "read a value": lambda state, i, n: state["value"].value(),
    "read a large value": lambda state, i, n: state["text"].value(),
    "clear and update": lambda state, i, n: (state["value"].clear(), state["value"].update(i)),
    "add to a sum": lambda state, i, n: state["sum"].add(i),
    "read a sum": lambda state, i, n: state["sum"].get(),
    "add to a mean": lambda state, i, n: state["mean"].add(i),
    "read a mean": lambda state, i, n: state["mean"].get(),
}
"""Each is done n times."""

WHOLE: dict[str, Callable[[Any, int], Any]] = {
    "items": lambda state, n: all(state["map"].items()),
    "keys": lambda state, n: list(state["map"].keys()),
    "values": lambda state, n: list(state["map"].values()),
    "put entries while iterating": lambda state, n: [state["map"].put(key, -value) for key, value in state["map"].items()],
    "put new entries while iterating": lambda state, n: [state["map"].put(key + n, 0) for key in state["map"]],
    "remove entries while iterating": lambda state, n: [state["map"].remove(key) for key in state["map"]],
    "read entries while iterating": lambda state, n: [state["map"].get(key) for key in state["map"]],
    "iterate a list": lambda state, n: list(state["list"].get()),
    "add while iterating a list": lambda state, n: [state["texts"].add(each) for each in state["texts"].get()],
    "update a list": lambda state, n: state["list"].update(range(n)),
    "clear a map": lambda state, n: state["map"].clear(),
    "clear a list": lambda state, n: state["list"].clear(),
    "clear and fill a map": lambda state, n: (state["map"].clear(), state["map"].put_all({i: i for i in range(n)})),
}
"""Each is done once, with all that there is."""

Measure = Callable[[int, Callable[[int], Any]], Cost]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MOST_IN_ROW", 20)
    monkeypatch.setattr(entries, "_CHUNK", 8)
    monkeypatch.setattr(entries, "_READ_AHEAD", 2)


def filled(kind: str, ttl: bool, restored: bool, n: int) -> Backend:
    """A key for each operation, with n entries, elements and characters."""
    backend = Backend(kind, states(ttl))
    for key in (*OPERATIONS, *WHOLE):
        backend.use(key)
        backend.handles["map"].put_all({number: number for number in range(n)})
        for name, content in {"list": list(range(n)), "texts": ["text"] * n, "text": "x" * n, "value": 0}.items():
            backend.handles[name].update(content)
        backend.handles["sum"].add(1)
        backend.handles["mean"].add(1)
    if restored:
        backend.checkpoint()
        backend.restart(elsewhere=True)
    return backend


def costs_of_keyed_state(
    kind: str, ttl: bool, restored: bool, n: int, time: int, counted: Measure, earlier: dict[str, str] | None = None
) -> dict[str, Cost]:
    """The cost of each operation at a time, each after an earlier one if these are given."""
    backend = filled(kind, ttl, restored, n)
    backend.clock.processing_time = time
    state = backend.handles
    for name, before in (earlier or {}).items():
        backend.use(name)
        if before in WHOLE:
            WHOLE[before](state, n)
        for i in range(n if before in OPERATIONS else 0):
            OPERATIONS[before](state, i, n)
    if earlier and random.Random(str(earlier)).random() < 0.5:
        backend.checkpoint()
    found: dict[str, Cost] = {}
    for name, each in OPERATIONS.items():
        backend.use(name)
        found[name] = counted(n, lambda i, each=each: each(state, i, n))
    for name, whole in WHOLE.items():
        backend.use(name)
        found[name] = counted(1, lambda _, whole=whole: whole(state, n))
    found["clean-up"] = counted(1, lambda _: backend.space.sweep())
    found["checkpoint"] = counted(1, lambda _: backend.checkpoint())
    backend.close()
    return found


@pytest.mark.parametrize("restored", [False, True], ids=["new", "restored"])
@pytest.mark.parametrize("content", ["lasting", "live", "expired"])
@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def an_operation_of_keyed_state_costs_as_much_for_each_of_2n_as_of_n(
    kind: str, content: str, restored: bool, counted: Measure
):
    time = TTL if content == "expired" else 0
    assert all_excess(lambda n: costs_of_keyed_state(kind, content != "lasting", restored, n, time, counted)) == {}


@pytest.mark.parametrize("seed", seeds(1))
def an_operation_after_another_costs_as_much_for_each_of_2n_as_of_n(seed: int, counted: Measure):
    pick = random.Random(seed)
    kind, ttl, restored = pick.choice(["hashmap", "rocksdb"]), pick.random() < 0.5, pick.random() < 0.5
    time = pick.choice([0, TTL]) if ttl else 0
    names = [*OPERATIONS, *WHOLE]
    earlier = dict(zip(names, pick.choices(names, k=len(names)), strict=True))
    found = all_excess(lambda n: costs_of_keyed_state(kind, ttl, restored, n, time, counted, earlier))
    assert {(name, earlier.get(name)): grown for name, grown in found.items()} == {}


@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def a_map_with_a_time_to_live_is_read_without_a_copy_of_it(kind: str, counted: Measure):
    backend = filled(kind, True, True, 2 * N)
    for name in ("items", "keys", "values"):
        backend.use(name)
        few = counted(1, lambda _, name=name: next(iter(getattr(backend.handles["map"], name)())))
        assert few.calls < N
    backend.close()


TIMERS: dict[str, Callable[[Any, int, int], Any]] = {
    "register far ones": lambda queue, i, n: queue.register(10**9 + i, i),
    "register at one time": lambda queue, i, n: queue.register(10**9, i),
    "register far apart": lambda queue, i, n: queue.register(10**9 + (i << 17), i),
    "register near ones": lambda queue, i, n: queue.register(10 + i, i),
    "register again": lambda queue, i, n: queue.register(10**6, i),
    "delete": lambda queue, i, n: queue.delete(10**6, i),
    "delete near ones": lambda queue, i, n: queue.delete(5, i),
    "delete none": lambda queue, i, n: queue.delete(10**6, -1 - i),
    "delete and register": lambda queue, i, n: (queue.delete(10**6, i), queue.register(10**6, i)),
    "move on": lambda queue, i, n: (
        queue.delete(10**6 + (i << 14), "moved"),
        queue.register(10**6 + ((i + 1) << 14), "moved"),
    ),
    "fire one after another": lambda queue, i, n: list(queue.due(10**7 + i)),
    "fire, and register the next": lambda queue, i, n: [queue.register(time + 1, i) for time, _ in queue.due(2 * 10**7 + i)],
}
"""On a queue in which n timers each are at 5, at 10**6, and from 10**7 and 2 * 10**7 on."""


def costs_of_timers(kind: str, restored: bool, n: int, counted: Measure) -> dict[str, Cost]:
    """The cost of each operation."""
    backend = Backend(kind, [])

    def queues() -> dict[str, Any]:
        return {name: backend.state.timer_queue(str(number)) for number, name in enumerate(TIMERS)}

    for queue in queues().values():
        for number in range(n):
            for time in (5, 10**6, 10**7 + number, 2 * 10**7):
                queue.register(time, number)
    if restored:
        backend.checkpoint()
        backend.restart(elsewhere=True)
    found: dict[str, Cost] = {}
    for name, queue in queues().items():
        begin = {"fire one after another": 10**7, "fire, and register the next": 2 * 10**7}.get(name, 1)
        list(queue.due(begin - 1))
        found[name] = counted(n, lambda i, name=name, queue=queue: TIMERS[name](queue, i, n))
    found["checkpoint"] = counted(1, lambda _: backend.checkpoint())
    found["fire all"] = counted(1, lambda _: [list(queue.due(10**12)) for queue in queues().values()])
    backend.close()
    return found


@pytest.mark.parametrize("restored", [False, True], ids=["new", "restored"])
@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def an_operation_of_timers_costs_as_much_for_each_of_2n_as_of_n(kind: str, restored: bool, counted: Measure):
    assert all_excess(lambda n: costs_of_timers(kind, restored, n, counted)) == {}


LISTED: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "put a new entry": lambda mapped, listed, i, n: mapped.put(n + i, i),
    "put an entry": lambda mapped, listed, i, n: mapped.put(i, -i),
    "put_all": lambda mapped, listed, i, n: mapped.put_all({i: -i}),
    "get an entry": lambda mapped, listed, i, n: mapped.get(i),
    "contains": lambda mapped, listed, i, n: mapped.contains(i),
    "is_empty": lambda mapped, listed, i, n: mapped.is_empty(),
    "add": lambda mapped, listed, i, n: listed.add(i),
    "add_all": lambda mapped, listed, i, n: listed.add_all([i]),
    "read the first": lambda mapped, listed, i, n: next(iter(listed.get())),
    "remove": lambda mapped, listed, i, n: (mapped.remove(i), mapped.is_empty()),
}


def costs_of_operator_state(restored: bool, n: int, counted: Measure) -> dict[str, Cost]:
    """The cost of each operation."""
    storage = Storage(MemoryStore())
    number = Types.LONG()

    def opened(lists: ListedStates) -> tuple[Any, Any]:
        held = OperatorStates(lists, "'op'")
        mapped = held.get_broadcast_state(MapStateDescriptor("map", number, number))
        return mapped, held.get_union_list_state(ListStateDescriptor("list", number))

    lists = ListedStates(storage, None)
    mapped, listed = opened(lists)
    mapped.put_all({key: key for key in range(n)})
    listed.update(list(range(n)))
    if restored:
        lists.store("map", mapped.drain())
        lists.store("list", listed.drain())
        parts, described = lists.snapshot(iter("ab").__next__)
        mapped, listed = opened(ListedStates(storage, OperatorSnapshot(SubtaskState([], parts), listed=described)))
        assert len(list(mapped.items())) == len(list(listed.get())) == n
    found = {
        name: counted(n, lambda i, each=each: each(mapped, listed, i, n))  # type: ignore[misc]
        for name, each in LISTED.items()
    }
    found["checkpoint"] = counted(1, lambda _: (mapped.drain(), listed.drain()))
    return found


@pytest.mark.parametrize("restored", [False, True], ids=["new", "restored"])
def an_operation_of_operator_state_costs_as_much_for_each_of_2n_as_of_n(restored: bool, counted: Measure):
    assert all_excess(lambda n: costs_of_operator_state(restored, n, counted)) == {}
