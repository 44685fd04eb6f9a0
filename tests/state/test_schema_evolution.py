"""Stored state whose types change: all kinds of state, both backends, any moment, against a plain model.

``python -m tests.state.test_schema_evolution NAME`` stores a checkpoint for ``golden``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Row, Time, Types
from holdfast.datastream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import IncompatibleState
from holdfast.state.backends import compaction
from holdfast.state.cells import entries
from holdfast.state.store import ordered
from holdfast.state.stored.schema import OperatorSchema

from .backend import Backend
from .test_stored_forms import GOLDEN, Stored

OLD = Types.ROW_NAMED(["id", "total", "gone"], [Types.INT(), Types.INT(), Types.STRING()])
NEW = (
    Types.ROW_NAMED(["amount", "id", "tags"], [Types.DOUBLE(), Types.LONG(), Types.LIST(Types.STRING())])
    .with_aliases({"amount": "total"})
    .with_defaults({"tags": ["old"]})
)
WINDOWS = [0, 60_000]
TTL = StateTtlConfig.new_builder(Time.hours(1)).build()


@dataclass
class End:
    c: str
    d: float


def old(n: int) -> Row:
    return Row(id=n, total=n * 2, gone="x")


def new(n: int, tags: Any = ("old",)) -> Row:
    return Row(amount=float(n * 2), id=n, tags=list(tags))


def newer(one: Any, other: Any) -> Any:
    return other


class Last(AggregateFunction):
    def create_accumulator(self) -> Any:
        return Row(id=0, total=0, gone="")

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def states(declared: Any) -> list[Any]:
    made = [
        ValueStateDescriptor("value", declared),
        ListStateDescriptor("list", declared),
        MapStateDescriptor("map", Types.LONG(), declared),
        ReducingStateDescriptor("reduced", newer, declared),
        AggregatingStateDescriptor("aggregated", Last(), declared),
        ValueStateDescriptor("expiring", declared),
        MapStateDescriptor("expiring-map", Types.LONG(), declared),
        ValueStateDescriptor("unchanged", Types.LONG()),
    ]
    for each in made[5:7]:
        each.enable_time_to_live(TTL)
    return made


def put(one: Backend, key: int, value: Any, size: int, window: int | None = None) -> None:
    one.use(key, window)
    h = one.handles
    h["value"].update(value)
    h["list"].update([value] * size)
    h["map"].clear()
    h["map"].put_all({n: value for n in range(size)})
    h["reduced"].add(value)
    h["aggregated"].add(value)
    h["expiring"].update(value)
    h["expiring-map"].put(key, value)
    h["unchanged"].update(key)


def shown(one: Backend, key: int, window: int | None = None) -> Any:
    """The content of a key's states; None without any."""
    one.use(key, window)
    h = one.handles
    if h["unchanged"].value() is None:
        return None
    assert h["unchanged"].value() == key
    value = h["value"].value()
    for each in (h["reduced"].get(), h["aggregated"].get(), h["expiring"].value(), h["expiring-map"].get(key)):
        assert each == value
    elements = list(h["list"].get())
    assert all(each == value for each in elements)
    assert dict(h["map"].items()) == {n: value for n in range(len(elements))}
    return value, len(elements)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Large maps and lists, materialisations and steps of a migration come soon."""
    monkeypatch.setattr(entries, "MOST_IN_ROW", 4)
    monkeypatch.setattr(compaction, "MOST_DELTAS", 3)
    monkeypatch.setattr(ordered, "_MIGRATED", 5)


kinds = st.sampled_from(["rocksdb", "hashmap"])
keys = st.integers(0, 9)
writes = st.lists(st.tuples(keys, st.integers(0, 1000), st.integers(1, 9), st.sampled_from([None, *WINDOWS])), max_size=6)
epochs = st.lists(writes, min_size=1, max_size=5)


@settings(
    deadline=None,
    max_examples=examples(20),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    before=epochs,
    after=epochs,
    later=epochs,
    kind=st.tuples(kinds, kinds, kinds),
    elsewhere=st.booleans(),
    cache=st.sampled_from(["1kb", "256mb"]),
    crashes=st.booleans(),
    late=st.booleans(),
)
def test_state_of_former_types_reads_as_the_model_says(before, after, later, kind, elsewhere, cache, crashes, late):
    one = Backend(kind[0], states(OLD), **{"state.backend.cache.size": cache})
    model: dict[tuple[int, int | None], Any] = {}

    def run(epochs: Any, make: Any) -> None:
        for epoch in epochs:
            for key, n, size, window in epoch:
                put(one, key, make(n), size, window)
                model[key, window] = (n, size, make is made)
            one.checkpoint()

    def check() -> None:
        for window in (None, *WINDOWS):
            for key in range(10):
                known = model.get((key, window))
                expected = None if known is None else (new(known[0], ["new"] if known[2] else ["old"]), known[1])
                assert shown(one, key, window) == expected

    def made(n: int) -> Row:
        return new(n, ["new"])

    run(before, old)
    one.states = states(NEW)
    if late:
        one.states = one.states[::-1]  # another order of declarations
    one.restart(kind=kind[1], elsewhere=elsewhere)
    if crashes:  # the first epoch with the new types is lost, and what it moved to the store
        for key in range(5):
            put(one, key, made(5), 3)
        one.checkpoint(commit=False)
        one.checkpoints.pop()
        one.restart(elsewhere=elsewhere)
    check()
    run(after, made)
    check()
    one.restart(kind=kind[2])
    check()
    run(later, made)
    check()
    one.close()


def the_store_is_migrated_in_the_background_and_only_once(tmp_path):
    one = Backend("rocksdb", states(OLD), tmp_path, **{"state.backend.cache.size": "1kb"})
    for start in range(5):
        for key in range(start, 40, 5):
            put(one, key, old(key), 9)
        one.checkpoint()
    for _ in range(4):  # a base with all of them, and deltas with one
        one.use(0)
        one.handles["unchanged"].update(0)
        one.checkpoint()
    one.states = states(NEW)
    one.restart(elsewhere=True)
    table, family = one.spaces[False].table(), one.spaces[False].entry_family(2)

    def former() -> int:
        rows = [data for _, data in one.state.store.scan(table.prefix, table.prefix + b"\xff" * 12)]
        whole = family._state.to_bytes(2, "big")
        parts = [data for _, data in one.state.store.scan(whole, whole + b"\xff" * 12)]
        migrated = [
            codec.migrated("", each) for codec, held in ((table.codec, rows), (family.codec, parts)) for each in held
        ]
        return sum(each is not None for each in migrated)

    assert former() > 300
    for n in range(200):
        one.use(n % 40)
        one.handles["unchanged"].update(n % 40)
        one.checkpoint()
    assert former() == 0
    assert [shown(one, key) for key in range(40)] == [(new(key), 9) for key in range(40)]
    one.restart()
    assert one.backend._local.migrated == one.state.schema.evolved
    one.checkpoint()
    one.restart(elsewhere=True)  # a base says so, too
    assert [shown(one, key) for key in range(40)] == [(new(key), 9) for key in range(40)]
    one.close()


def a_store_with_rows_of_new_types_is_not_reused_for_an_older_checkpoint(tmp_path):
    one = Backend("rocksdb", states(OLD), tmp_path, **{"state.backend.cache.size": "1kb"})
    for key in range(40):
        put(one, key, old(key), 2)
    one.checkpoint()
    number = len(one.checkpoints) - 1
    one.restart()
    assert one.backend.reused
    one.states = states(NEW)
    one.restart()
    for key in range(40):
        put(one, key, new(key), 2)
    one.checkpoint(commit=False)
    one.checkpoints.pop()
    one.states = states(OLD)
    one.restart(number)
    assert not one.backend.reused
    assert [shown(one, key) for key in range(40)] == [(old(key), 2) for key in range(40)]
    one.close()


def a_state_that_is_declared_later_is_migrated_in_the_rows_in_memory(tmp_path):
    one = Backend("hashmap", states(OLD), tmp_path)
    for key in range(20):
        put(one, key, old(key), 9)
    one.checkpoint()
    one.states = states(NEW)[-1:]
    one.restart()
    for key in range(5):
        one.use(key)
        one.handles["unchanged"].update(key)
    one.checkpoint()
    one.states = states(NEW)
    one.declare()
    assert [shown(one, key) for key in range(20)] == [(new(key), 9) for key in range(20)]
    for _ in range(4):
        one.checkpoint()
    one.restart(kind="rocksdb", elsewhere=True)
    assert [shown(one, key) for key in range(20)] == [(new(key), 9) for key in range(20)]
    one.close()


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
def test_types_that_change_three_times_are_read_from_any_version(tmp_path, kind):
    types = [
        Types.ROW_NAMED(["a"], [Types.INT()]),
        Types.ROW_NAMED(["b"], [Types.LONG()]).with_aliases({"b": "a"}),
        Types.ROW_NAMED(["b", "c"], [Types.DOUBLE(), Types.STRING()]).with_defaults({"c": "?"}),
        Types.ROW_NAMED(["c", "d"], [Types.STRING(), Types.DOUBLE()]).with_aliases({"d": "b"}),
    ]
    one = Backend(kind, [ValueStateDescriptor("v", types[0])], tmp_path)
    for version, declared in enumerate(types):
        one.states = [ValueStateDescriptor("v", declared)]
        one.restart()
        one.use(version)
        one.handles["v"].update((version,) if version < 2 else (1.0 * version, "!") if version == 2 else ("!", 3.0))
        one.checkpoint()
    one.states = []
    one.restart()  # a program without the state carries it on
    one.checkpoint()
    one.states = [ValueStateDescriptor("v", Types.POJO(End))]
    one.restart(kind="hashmap" if kind == "rocksdb" else "rocksdb")
    found = []
    for version in range(4):
        one.use(version)
        found.append(one.handles["v"].value())
    assert found == [End("?", 0.0), End("?", 1.0), End("!", 2.0), End("!", 3.0)]
    one.close()


def test_pickled_state_gets_a_type_and_loses_it_again(tmp_path):
    one = Backend("rocksdb", [ListStateDescriptor("l"), MapStateDescriptor("m")], tmp_path)
    for declared, value in ((None, 1), (Types.LONG(), 2), (None, 3)):
        one.states = [ListStateDescriptor("l", declared), MapStateDescriptor("m", declared, declared)]
        one.restart()
        one.use("k")
        one.handles["l"].add(value)
        one.handles["m"].put(value, value)
        one.checkpoint()
        one.use("k")
        assert list(one.handles["l"].get()) == list(range(1, value + 1))
        assert dict(one.handles["m"].items()) == {n: n for n in range(1, value + 1)}
    one.close()


@pytest.mark.parametrize(
    "declared",
    [
        MapStateDescriptor("map", Types.STRING(), NEW),
        ValueStateDescriptor("value", Types.LONG()),
        ListStateDescriptor("value", NEW),
    ],
    ids=lambda each: each.name,
)
def test_what_cannot_be_migrated_is_refused(tmp_path, declared):
    one = Backend("hashmap", states(OLD), tmp_path)
    put(one, 1, old(1), 2)
    one.checkpoint()
    one.states = [declared]
    with pytest.raises(IncompatibleState, match=rf"state '{declared.name}' of operator 'op' \(uid 'op'\).*\n    stored:"):
        one.restart()


@pytest.mark.parametrize("by", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("form", ["2_before_evolution", "2_evolved"])
def a_stored_checkpoint_with_former_types_is_restored(tmp_path, form, kind, by):
    data = zstandard.decompress((GOLDEN / f"checkpoint_{kind}_{form}.zst").read_bytes())
    stored = msgspec.msgpack.decode(data, type=Stored)
    one = Backend(by, states(NEW), tmp_path)
    one.close()
    one.objects.objects.update(stored.objects)
    one.begin(stored.handles, OperatorSchema.of_plain(stored.schema))
    for key in range(30):
        tags = ["new"] if form == "2_evolved" and key % 3 == 0 else ["old"]
        assert shown(one, key) == (new(key, tags), 1 + key % 9)
    one.close()


def store(kind: str, name: str, evolved: bool) -> None:
    """Store a checkpoint with a base and deltas behind it; ``evolved``: with rows of two versions."""
    entries.MOST_IN_ROW, compaction.MOST_DELTAS = 4, 3
    one = Backend(kind, states(OLD))
    for start in range(4):
        for key in range(start, 30, 4):
            put(one, key, old(key), 1 + key % 9)
        one.checkpoint()
    if evolved:
        one.states = states(NEW)
        one.restart()
        for key in range(0, 30, 3):
            put(one, key, new(key, ["new"]), 1 + key % 9)
        one.checkpoint()
        one.checkpoint()
    stored_handles, schema = one.checkpoints[-1]
    assert schema is not None
    used = {each.path for handle in stored_handles for each in handle.handles()}
    objects = {path: data for path, data in one.objects.objects.items() if path in used}
    stored = Stored(objects, stored_handles, schema.plain(), [])
    (Path(GOLDEN) / f"{name}.zst").write_bytes(zstandard.compress(msgspec.msgpack.encode(stored), 19))
    one.close()


if __name__ == "__main__":
    for each in ("rocksdb", "hashmap"):
        store(each, f"checkpoint_{each}_{sys.argv[1]}", sys.argv[1].endswith("evolved"))
