"""Large maps and lists against plain ones, on both ordered stores, through epochs and restores."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effort import examples
from holdfast.common import Time
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig
from holdfast.state.backends import upkeep
from holdfast.state.backends.compaction import Base
from holdfast.state.cells import entries
from holdfast.state.cells.entries import EntryFamily, LargeList, LargeMap
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.store.ordered import OrderedStore, SortedMemory
from holdfast.state.store.store import RocksDBStore, rocksdb_settings
from holdfast.state.stored import entry_pieces
from holdfast.state.stored.delta import Change

from .backend import Backend

STATE = 40


class Pickled:
    """Parts of cells by pickle."""

    keys_vary = True

    def encode(self, key: Any, part: Any) -> bytes:
        return pickle.dumps(part)

    def decode(self, key: Any, data: bytes) -> Any:
        return pickle.loads(data)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(entries, "_CHUNK", 3)
    monkeypatch.setattr(entries, "_READ_AHEAD", 2)
    monkeypatch.setattr(entries, "_MOST_CACHED", 4)
    monkeypatch.setattr(entries, "MOST_IN_PIECE", 5)


owners = st.sampled_from([(None, 1, "a"), (None, 1, "ab"), (None, 2, ("a", 1))])
map_keys = st.sampled_from([0, 1, 2, -1, "a", "b", ("a", 1), None, 2**70, 1.5, 1.0, True])


class Entries(RuleBasedStateMachine):
    """The large maps and lists of some keys, their models, and what a restore at the last barrier would give."""

    @initialize()
    def begin(self) -> None:
        self.store = self.made()
        self.family = self.opened()
        self.maps: dict[Any, tuple[LargeMap, dict[Any, Any]]] = {}
        self.lists: dict[Any, tuple[LargeList, list[Any]]] = {}
        self.committed: dict[Any, Any] = {}
        self.base: list[tuple[bytes, bytes]] = []
        self.deltas: list[Sequence[Change]] = []

    def made(self) -> OrderedStore:
        return SortedMemory()

    def opened(self) -> EntryFamily:
        family = EntryFamily(STATE, False, self.store)
        family.codec = Pickled()
        return family

    @rule(owner=owners, content=st.dictionaries(map_keys, st.integers()))
    def a_map_becomes_large(self, owner: Any, content: dict[Any, Any]) -> None:
        if owner not in self.lists:
            if owner in self.maps:
                self.maps[owner][0].drop()
            self.maps[owner] = LargeMap(self.family, *owner, content), dict(content)

    @rule(owner=owners, content=st.lists(st.integers(), max_size=10))
    def a_list_becomes_large(self, owner: Any, content: list[Any]) -> None:
        if owner not in self.maps:
            if owner in self.lists:
                self.lists[owner][0].drop()
            self.lists[owner] = LargeList(self.family, *owner, elements=content), list(content)

    @rule(owner=owners)
    def one_is_dropped(self, owner: Any) -> None:
        for held in (self.maps, self.lists):
            if owner in held:
                held.pop(owner)[0].drop()

    @rule(owner=owners, key=map_keys, value=st.none() | st.integers())
    def put(self, owner: Any, key: Any, value: Any) -> None:
        if owner in self.maps:
            large, model = self.maps[owner]
            large[key] = value
            model[key] = value

    @rule(owner=owners, key=map_keys)
    def remove(self, owner: Any, key: Any) -> None:
        if owner in self.maps:
            large, model = self.maps[owner]
            assert (key in large) == (key in model)
            if key in model:
                del model[key]
                assert large.remove(key) == bool(model)

    @rule(owner=owners, key=map_keys)
    def get(self, owner: Any, key: Any) -> None:
        if owner in self.maps:
            large, model = self.maps[owner]
            assert large.get(key) == model.get(key)

    @rule(owner=owners, data=st.data())
    def iterate_while_it_changes(self, owner: Any, data: st.DataObject) -> None:
        if owner in self.maps:
            large, model = self.maps[owner]
            before = dict(model)
            seen = {}
            for key, value in large.items():
                seen[key] = value
                self.put(owner, data.draw(map_keys), 7)
                self.remove(owner, data.draw(map_keys))
            assert seen == before

    @rule(owner=owners, values=st.lists(st.integers(), max_size=7))
    def append(self, owner: Any, values: list[int]) -> None:
        if owner in self.lists:
            large, model = self.lists[owner]
            large.extend(values)
            model.extend(values)

    @rule(owner=owners)
    def append_while_it_is_iterated(self, owner: Any) -> None:
        if owner in self.lists:
            large, model = self.lists[owner]
            before, seen = list(model), []
            for each in large:
                seen.append(each)
                self.append(owner, [each])
            assert seen == before

    @rule(owner=owners, data=st.data())
    def one_is_dropped_while_it_is_iterated(self, owner: Any, data: st.DataObject) -> None:
        for held in (self.maps, self.lists):
            if owner in held:
                large, model = held.pop(owner)
                given = iter(large)
                seen = [next(given) for _ in range(data.draw(st.integers(0, len(model))))]
                large.drop()
                assert sorted([*seen, *given], key=repr) == sorted(model, key=repr)

    @rule(owner=owners, divisor=st.integers(1, 4))
    def keep_some(self, owner: Any, divisor: int) -> None:
        if owner in self.lists:
            large, model = self.lists[owner]
            model[:] = [each for each in model if each % divisor == 0]
            assert large.keep(lambda each: each % divisor == 0) == bool(model)

    @rule()
    def end_the_epoch(self) -> None:
        self.deltas.append(self.family.collect())
        self.family.completed()
        self.committed = {owner: (0, dict(model)) for owner, (_, model) in self.maps.items()}
        self.committed |= {owner: (large.marker, list(model)) for owner, (large, model) in self.lists.items()}

    @rule()
    def materialise(self) -> None:
        self.end_the_epoch()
        self.base = list(self.store.scan(b"", b"\xff"))
        self.deltas = []

    @rule(reuse=st.booleans())
    def restore(self, reuse: bool) -> None:
        """On this host's store, which may be ahead of the base, or on one that is made of the base."""
        if not reuse:
            self.store.delete_range(b"", b"\xff")
            self.store.write(self.base)
        self.family = self.opened()
        for changes in self.deltas:
            for change in changes:
                self.family.apply(change, None)
        self.rows_leave_memory()

    def rows_leave_memory(self) -> None:
        self.maps, self.lists = {}, {}
        for owner, (marker, model) in self.committed.items():
            if isinstance(model, dict):
                self.maps[owner] = LargeMap(self.family, *owner), dict(model)
            else:
                self.lists[owner] = LargeList(self.family, *owner, marker), list(model)

    @rule()
    def rows_leave_memory_between_epochs(self) -> None:
        self.end_the_epoch()
        self.rows_leave_memory()

    @rule()
    def restore_elsewhere_from_a_dump(self) -> None:
        self.end_the_epoch()
        self.base, self.deltas = [], [list(self.family.dump())]
        self.restore(reuse=False)

    @invariant()
    def they_hold_what_their_models_hold(self) -> None:
        for large, model in self.maps.values():
            assert dict(large.items()) == model
            assert list(large) == [key for key, _ in large.items()]
        for chunks, elements in self.lists.values():
            assert list(chunks) == elements


class RocksDBEntries(Entries):
    def made(self) -> OrderedStore:
        self.path = tempfile.mkdtemp()
        return RocksDBStore(self.path, rocksdb_settings({}))

    def teardown(self) -> None:
        if hasattr(self, "path"):
            self.store.close()  # type: ignore[attr-defined]
            shutil.rmtree(self.path)


Entries.TestCase.settings = settings(deadline=None, max_examples=examples(80), stateful_step_count=30)
RocksDBEntries.TestCase.settings = settings(deadline=None, max_examples=examples(8), stateful_step_count=30)


class TestEntriesInMemory(Entries.TestCase):
    pass


class TestEntriesInRocksDB(RocksDBEntries.TestCase):
    pass


@settings(deadline=None)
@given(st.lists(st.tuples(map_keys, st.integers()), max_size=20), st.integers(0, 20))
def test_the_order_of_a_large_map_does_not_depend_on_epochs(puts: list[tuple[Any, int]], cut: int):
    family = EntryFamily(STATE, False, SortedMemory())
    family.codec = Pickled()
    large = LargeMap(family, None, 1, "key", {})
    other = LargeMap(family, None, 2, "other", dict(puts))
    for key, value in puts[:cut]:
        large[key] = value
    family.collect()
    family.completed()
    for key, value in puts[cut:]:
        large[key] = value
    assert list(large.items()) == list(other.items())


def an_added_entry_is_written_alone_and_an_added_element_with_its_chunk():
    family = EntryFamily(STATE, False, SortedMemory())
    family.codec = Pickled()
    large = LargeMap(family, None, 1, "key", dict.fromkeys(range(1000), 0))
    chunks = LargeList(family, None, 2, "key", elements=list(range(1000)))
    family.collect()
    family.completed()
    large[17] = 1
    chunks.append(1000)
    ((_, dropped, (piece,), _),) = family.collect()
    drops, _, values, deletes = entry_pieces.unpack_entries(piece)
    assert not dropped
    assert (drops, deletes) == ([], [])
    assert [pickle.loads(value) for value in values] == [{17: 1}, [999, 1000]]


class Counted(SortedMemory):
    """A store that counts the rows that it is asked for."""

    asked = 0

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self.asked += len(keys)
        return super().get_many(keys)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = list(super().scan(start, end))
        self.asked += len(rows)
        return iter(rows)

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        self.asked += 1
        return super().first_key(start, end)


def stored_map(count: int) -> tuple[LargeMap, Counted]:
    """A large map as a restore finds it, with the keys below ``count``."""
    store = Counted()
    family = EntryFamily(STATE, False, store)
    family.codec = Pickled()
    LargeMap(family, None, 1, "key", dict.fromkeys(range(count), 0))
    family.collect()
    family.completed()
    return LargeMap(family, None, 1, "key"), store


@pytest.mark.parametrize("order", [1, -1])
def an_entry_is_removed_at_the_same_cost_however_many_there_are(order: int):
    for count in (100, 200, 400):
        large, store = stored_map(count)
        for key in range(count)[::order]:
            assert large.remove(key) == (key != range(count)[::order][-1])
        assert store.asked <= 2 * count + 1


def the_entries_that_were_asked_for_leave_memory_as_others_are():
    large, store = stored_map(10)
    for key in range(1000):
        assert (key in large) == (key < 10)
    assert store.asked == 1000
    assert len(large._read_last) <= 2 * entries._MOST_CACHED
    assert 999 not in large
    assert store.asked == 1000


def a_slice_is_dropped_with_the_entries_of_all_its_keys():
    store = SortedMemory()
    family = EntryFamily(STATE, True, store)
    family.codec = Pickled()
    for slice in (10, 20):
        for key in range(3):
            LargeMap(family, slice, 1, key, {"a": 1})
    family.collect()
    family.completed()
    LargeMap(family, 10, 1, 0)["b"] = 2
    family.drop_namespace(10)
    (change,) = family.collect()
    family.completed()
    assert (change.section.slice, change.dropped, change.pieces) == (10, True, [])
    assert len(store) == 3


def a_restore_of_some_key_groups_takes_their_entries_only():
    family = EntryFamily(STATE, False, SortedMemory())
    family.codec = Pickled()
    for group in range(4):
        LargeMap(family, None, group, group, {"a": group, "b": group})
    part = EntryFamily(STATE, False, SortedMemory())
    part.codec = Pickled()
    for change in family.collect():
        part.apply(change, KeyGroupRange(1, 2))
    assert [dict(LargeMap(part, None, group, group).items()) for group in range(4)] == [
        {},
        {"a": 1, "b": 1},
        {"a": 2, "b": 2},
        {},
    ]


def a_key_without_a_canonical_form_is_refused_where_it_is_put():
    family = EntryFamily(STATE, False, SortedMemory())
    large = LargeMap(family, None, 1, "key", {})
    with pytest.raises(TypeError):
        large[float("nan")] = 1


class Point:
    """Equal by its own definition, for which no stored form is known."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __hash__(self) -> int:
        return hash(self.x)


@pytest.mark.parametrize("at_once", [False, True], ids=["put", "put_all"])
@pytest.mark.parametrize("expires", [False, True], ids=["", "ttl"])
@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def a_key_of_any_class_may_come_to_a_large_map_as_to_a_small_one(kind: str, expires: bool, at_once: bool):
    state = MapStateDescriptor("m", Types.PICKLED_BYTE_ARRAY(), Types.LONG())
    if expires:
        state.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    backend = Backend(kind, [state])
    backend.use("k")
    backend.handles["m"].put_all({number: number for number in range(300)})
    backend.checkpoint()
    backend.restart()
    backend.use("k")
    held = backend.handles["m"]
    assert held.get(Point(1)) is None
    assert not held.contains(Point(1))
    with pytest.raises(TypeError, match="unhashable"):
        held.put([1], 1)
    held.remove(7)
    if at_once:
        held.put_all({300: 300, Point(1): -1, 301: 301})
    else:
        for key, value in ((300, 300), (Point(1), -1), (301, 301)):
            held.put(key, value)
    model = {**{number: number for number in range(302) if number != 7}, Point(1): -1}
    for elsewhere in (False, True):
        assert dict(backend.handles["m"].items()) == model
        assert backend.handles["m"].get(Point(1)) == -1
        backend.checkpoint()
        backend.restart(elsewhere=elsewhere)
        backend.use("k")
    assert dict(backend.handles["m"].items()) == model
    backend.close()


def a_dump_leaves_rows_as_they_are_even_if_the_limit_was_higher_when_they_were_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: None)
    backend = Backend("hashmap", [ListStateDescriptor("l", Types.STRING())])
    backend.use("key")
    backend.handles["l"].update(["a", "b", "c"])
    backend.checkpoint()
    monkeypatch.setattr(entries, "MOST_IN_ROW", 2)
    backend.restart()
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
    backend.checkpoint()
    backend.checkpoint()
    assert backend.checkpoints[-1][0][-1].base
    backend.restart()
    backend.use("key")
    assert list(backend.handles["l"].get()) == ["a", "b", "c"]
    backend.close()
    shutil.rmtree(backend.root)


def an_entry_that_many_changes_replace_is_not_read_as_it_was():
    large, _ = stored_map(10)
    family = large._family
    assert large.get(0) == 0
    large.update(dict.fromkeys(range(10), 1))
    family.collect()
    family.completed()
    assert large.get(0) == 1
