"""Keyed state, with and without RocksDB, against plain dictionaries: any order of writes, checkpoints and restarts."""

from __future__ import annotations

import copy
import itertools
import random
import shutil
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import compactions
from effort import examples
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor
from holdfast.datastream.state import ValueStateDescriptor as Value
from holdfast.state.backends import compaction, delta_merge, upkeep
from holdfast.state.cells import codec, entries, large_values, row_pieces
from holdfast.state.rows import keyed_state, table
from holdfast.state.snapshots import blob_parts, lazy_file, lazy_files
from holdfast.state.store import blob_file, blob_files
from holdfast.state.timers import timers, timing_wheel

from .backend import Backend

STATES = (
    Value("n", Types.LONG()),
    ListStateDescriptor("l", Types.STRING()),
    ListStateDescriptor("numbers", Types.DOUBLE()),
    MapStateDescriptor("m", Types.INT(), Types.ROW([Types.INT()])),
    ReducingStateDescriptor("sum", lambda a, b: a + b),
    Value("text", Types.STRING()),
    Value("object"),
)
LARGE = ("text", "object")
"""Values that leave their rows and come back."""
keys = st.sampled_from([0, 1, 2, "a", "b", ("c", 1), None, 2.5])
windows = st.sampled_from([0, 60_000, -60_000])

Model = dict[str, Any]
"""Per state name, of the current key; the whole model: by namespace and key."""


class StateMachine(RuleBasedStateMachine):
    kind = "rocksdb"
    cache = "1kb"
    """So little that rows move to the store all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.backend: Backend | None = None

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        upkeep.due = compactions.anything(seed)
        outcome = random.Random(seed)
        # Of each column, first its uses are judged, and then its reads: values outside of their rows are never left unread.
        turns = itertools.cycle([outcome.choice([(True, True, False, None), (False, None)]), (True, True, False, None)])
        large_values.ValueUses.judge = lambda self, rows, uses: outcome.choice(next(turns))
        blob_files._LEAST = outcome.choice([1, 20, 512])
        keyed_state._PORTION = outcome.choice([1, 512 << 10])  # rows go to the store in many steps, or all at once
        timers._AT_ONCE = timing_wheel._AT_ONCE = outcome.choice([1, 8192])
        timers._MANY = outcome.choice([0, 65_536])
        upkeep._CHANGED = outcome.choice([-1, 200, 1 << 30])
        compaction.ALIKE = outcome.choice([1, 64])
        delta_merge._LEAST = outcome.choice([1, 8])
        delta_merge._KEPT = outcome.choice([-1.0, 0.75, 2.0])  # files are joined always, sometimes or never
        self.backend = Backend(self.kind, STATES, **{"state.backend.cache.size": self.cache})
        self.model: dict[Any, dict[Any, Model]] = {None: {}}
        self.timers: set[tuple[int, Any]] = set()
        self.committed: list[Any] = [self._image()]

    def teardown(self) -> None:
        if self.backend is not None:
            self.backend.close()
            shutil.rmtree(self.backend.root)

    def _image(self) -> Any:
        return copy.deepcopy((self.model, self.timers))

    def _use(self, key: Any, namespace: int | None) -> Model:
        assert self.backend is not None
        self.backend.use(key, namespace)
        return self.model.setdefault(namespace, {}).setdefault(key, {})

    @rule(key=keys, namespace=st.none() | windows, n=st.none() | st.integers(-(2**63), 2**63 - 1))
    def update_a_value(self, key: Any, namespace: int | None, n: int | None) -> None:
        row = self._use(key, namespace)
        self.backend.handles["n"].update(n)
        row["n"] = n

    @rule(key=keys, namespace=st.none() | windows, name=st.sampled_from(LARGE), text=st.none() | st.text(max_size=3))
    def update_a_value_that_may_be_large(self, key: Any, namespace: int | None, name: str, text: str | None) -> None:
        row = self._use(key, namespace)
        self.backend.handles[name].update(text)
        row[name] = text

    @rule(key=keys, number=st.integers(0, 1))
    def update_a_value_to_what_looks_like_a_marker(self, key: Any, number: int) -> None:
        row = self._use(key, None)
        self.backend.handles["object"].update(number)
        row["object"] = number

    @rule(key=keys, namespace=st.none() | windows, text=st.text(max_size=3), many=st.booleans())
    def add_to_a_list(self, key: Any, namespace: int | None, text: str, many: bool) -> None:
        row = self._use(key, namespace)
        handle = self.backend.handles["l"]
        added = [text, text + "!"] if many else [text]
        handle.add_all(added) if many else handle.add(text)
        row["l"] = [*(row.get("l") or []), *added]

    @rule(key=keys, namespace=st.none() | windows, given=st.lists(st.floats(-9, 9), max_size=4), added=st.booleans())
    def update_a_list_of_numbers(self, key: Any, namespace: int | None, given: list[float], added: bool) -> None:
        row = self._use(key, namespace)
        handle = self.backend.handles["numbers"]
        handle.update([*handle.get(), *given] if added else given)
        row["numbers"] = [*(row.get("numbers") or []), *given] if added else given

    @rule(key=keys, namespace=st.none() | windows, number=st.integers(-9, 9))
    def add_to_a_list_of_numbers(self, key: Any, namespace: int | None, number: int) -> None:
        row = self._use(key, namespace)
        self.backend.handles["numbers"].add(number)
        row["numbers"] = [*(row.get("numbers") or []), float(number)]

    @rule(key=keys, namespace=st.none() | windows, entry=st.integers(0, 3), value=st.integers(0, 9))
    def put_an_entry(self, key: Any, namespace: int | None, entry: int, value: int) -> None:
        row = self._use(key, namespace)
        self.backend.handles["m"].put(entry, (value,))
        row["m"] = {**(row.get("m") or {}), entry: (value,)}

    @rule(key=keys, namespace=st.none() | windows, entry=st.integers(0, 3))
    def remove_an_entry(self, key: Any, namespace: int | None, entry: int) -> None:
        row = self._use(key, namespace)
        self.backend.handles["m"].remove(entry)
        (row.get("m") or {}).pop(entry, None)

    @rule(key=keys, namespace=st.none() | windows, value=st.integers())
    def add_to_a_reduced_value(self, key: Any, namespace: int | None, value: int) -> None:
        row = self._use(key, namespace)
        self.backend.handles["sum"].add(value)
        row["sum"] = row["sum"] + value if row.get("sum") is not None else value

    @rule(frame=st.lists(keys, max_size=8), namespace=st.none() | windows, clears=st.integers(0, 3))
    def process_a_frame(self, frame: list[Any], namespace: int | None, clears: int) -> None:
        rows = self.backend.go_to(namespace).table(namespace).load(frame)
        for number, (key, self.backend.space.row) in enumerate(zip(frame, rows, strict=True)):
            row = self.model.setdefault(namespace, {}).setdefault(key, {})
            if number < clears:
                for state in STATES:
                    self.backend.handles[state.name].clear()
                row.clear()
            else:
                self.backend.handles["n"].update(number)
                row["n"] = number

    @rule(key=keys, namespace=st.none() | windows, name=st.sampled_from([s.name for s in STATES]))
    def clear_a_state(self, key: Any, namespace: int | None, name: str) -> None:
        row = self._use(key, namespace)
        self.backend.handles[name].clear()
        row[name] = None

    @rule(key=keys, namespace=st.none() | windows)
    def clear_all_states_of_a_key(self, key: Any, namespace: int | None) -> None:
        for state in STATES:
            self.clear_a_state(key, namespace, state.name)

    @rule(namespace=windows)
    def drop_a_window(self, namespace: int) -> None:
        if namespace in self.backend.spaces[True].tables:
            self.backend.spaces[True].drop(namespace)
        self.model.pop(namespace, None)

    @rule(time=st.integers(0, 200_000), key=keys, delete=st.booleans())
    def set_or_delete_a_timer(self, time: int, key: Any, delete: bool) -> None:
        queue = self.backend.state.timer_queue("event")
        (queue.delete if delete else queue.register)(time, key)
        (self.timers.discard if delete else self.timers.add)((time, key))

    @rule(key=keys, namespace=st.none() | windows)
    def read_a_key(self, key: Any, namespace: int | None) -> None:
        self._check(key, namespace)

    @rule()
    def free_memory(self) -> None:
        self.backend.backend.bound()

    @rule()
    def complete_a_checkpoint(self) -> None:
        self.backend.checkpoint()
        self.committed.append(self._image())

    @rule(elsewhere=st.booleans(), kind=st.sampled_from(["", "rocksdb", "hashmap"]))
    def fail_and_restart(self, elsewhere: bool, kind: str) -> None:
        """... with the same backend, or with the other one."""
        self.backend.restart(elsewhere=elsewhere, kind=kind)
        self.model, self.timers = copy.deepcopy(self.committed[-1])

    @rule(elsewhere=st.booleans())
    def fail_right_after_a_checkpoint(self, elsewhere: bool) -> None:
        self.backend.checkpoint(commit=False)
        self.committed.append(self._image())
        self.fail_and_restart(elsewhere, "")

    @precondition(lambda self: self.backend.kind == "rocksdb")
    @rule(completes=st.booleans())
    def be_killed(self, completes: bool) -> None:
        """... at any time, or right after a checkpoint that the subtask does not know to be complete."""
        if completes:
            self.backend.checkpoint(commit=False)
            self.committed.append(self._image())
        self.backend.kill()
        self.model, self.timers = copy.deepcopy(self.committed[-1])

    @precondition(lambda self: len(self.committed) > 1)
    @rule(data=st.data(), back=st.integers(1, 4))
    def go_back_to_an_older_checkpoint(self, data: st.DataObject, back: int) -> None:
        number = max(0, len(self.committed) - 1 - back)
        del self.committed[number + 1 :]
        self.backend.restart(number)
        self.model, self.timers = copy.deepcopy(self.committed[-1])

    @rule(host=st.integers(0, 3))
    def move_to_a_host_that_has_an_old_store(self, host: int) -> None:
        self.backend.close()
        self.backend.directory = self.backend.root / f"host-{host}"
        self.backend.open(len(self.committed) - 1)
        self.model, self.timers = copy.deepcopy(self.committed[-1])

    def _check(self, key: Any, namespace: int | None) -> None:
        self.backend.use(key, namespace)
        row = self.model.get(namespace, {}).get(key, {})
        handles = self.backend.handles
        assert handles["n"].value() == row.get("n")
        assert list(handles["l"].get()) == (row.get("l") or [])
        assert repr(list(handles["numbers"].get())) == repr(row.get("numbers") or [])
        found = {k: tuple(v) for k, v in handles["m"].items()}
        assert found == (row.get("m") or {})
        assert handles["m"].is_empty() == (not row.get("m"))
        assert handles["sum"].get() == row.get("sum")
        assert [handles[name].value() for name in LARGE] == [row.get(name) for name in LARGE]

    @rule()
    def check_everything(self) -> None:
        for namespace in (None, 0, 60_000, -60_000):
            for key in (0, 1, 2, "a", "b", ("c", 1), None, 2.5):
                self._check(key, namespace)
        for each in self.backend.spaces.values():
            each.row = []

    @rule()
    def all_rows_of_a_window_are_found_in_memory_or_store(self) -> None:
        for namespace, rows in self.model.items():
            if namespace is None:
                continue  # only windows are read as a whole
            rows_of_window = self.backend.spaces[True].table(namespace)
            stored = dict(rows_of_window.stored_rows()) if rows_of_window.in_store else {}
            found = {**stored, **rows_of_window.rows}
            held = {key for key, row in found.items() if any(cell is not None for cell in row[1:])}
            assert held == {key for key, row in rows.items() if any(row.get(s.name) for s in STATES) or _some(row)}

    @invariant()
    def the_timers_are_those_of_the_model(self) -> None:
        if self.backend is not None:
            queue = self.backend.state.timer_queue("event")
            assert sorted(queue.all(), key=repr) == sorted(self.timers, key=repr)


def _some(row: Model) -> bool:
    return any(row.get(name) is not None for name in ("n", "sum", *LARGE))


class RoomyMachine(StateMachine):
    cache = "1mb"  # what a restore finds stays encoded until it is read


class HeapMachine(StateMachine):
    kind = "hashmap"


LIMITS = settings(
    deadline=None,
    max_examples=examples(12),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
StateMachine.TestCase.settings = LIMITS
RoomyMachine.TestCase.settings = LIMITS
HeapMachine.TestCase.settings = LIMITS


@pytest.fixture(autouse=True)
def a_piece_every_few_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upkeep, "due", upkeep.due)  # each run has its own
    monkeypatch.setattr(large_values.ValueUses, "judge", large_values.ValueUses.judge)
    monkeypatch.setattr(codec, "_LARGE_VALUE", 1)
    monkeypatch.setattr(table, "_PART", 3)
    monkeypatch.setattr(keyed_state, "_PORTION", 1)  # each run has its own of these
    monkeypatch.setattr(timers, "_AT_ONCE", 1)
    monkeypatch.setattr(timing_wheel, "_AT_ONCE", 1)
    monkeypatch.setattr(timers, "_MANY", 0)
    monkeypatch.setattr(upkeep, "_CHANGED", 0)
    monkeypatch.setattr(compaction, "ALIKE", 1)
    monkeypatch.setattr(delta_merge, "_LEAST", 1)
    monkeypatch.setattr(delta_merge, "_KEPT", 1)
    monkeypatch.setattr(delta_merge, "_AT_ONCE", 0)
    monkeypatch.setattr(row_pieces, "_BLOCK", 5)
    monkeypatch.setattr(row_pieces, "_LEAST", 1)
    monkeypatch.setattr(entries, "MOST_IN_ROW", 2)  # maps and lists of three leave their rows
    monkeypatch.setattr(entries, "_CHUNK", 2)
    monkeypatch.setattr("holdfast.state.snapshots.lazy_restore._LARGE", 0)  # files of a base arrive while the state is used
    monkeypatch.setattr(lazy_files, "_LEAST", 1)
    monkeypatch.setattr(lazy_file, "_GAP", 0)
    monkeypatch.setattr(blob_files, "_LEAST", 512)  # each run has its own
    monkeypatch.setattr(blob_files, "_FILE_SIZE", 400)
    monkeypatch.setattr(blob_file, "_CHUNK", 60)
    monkeypatch.setattr(blob_parts, "_GAP", 0)


class TestRocksDB(StateMachine.TestCase):
    pass


class TestRocksDBWithRoomInMemory(RoomyMachine.TestCase):
    pass


class TestHeap(HeapMachine.TestCase):
    pass
