"""Ordered stores, RocksDB and the one in memory, against a plain dictionary."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Timer

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from effort import examples
from holdfast.state.store import ordered
from holdfast.state.store.ordered import OrderedStore, SortedMemory
from holdfast.state.store.store import RocksDBStore, rocksdb_settings

keys = st.binary(min_size=1, max_size=3).map(lambda rest: b"\0\1" + rest)
bounds = st.lists(keys, min_size=2, max_size=2, unique=True).map(sorted)


class MemoryMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.model: dict[bytes, bytes] = {}
        self.store: OrderedStore = self.made()

    def made(self) -> OrderedStore:
        return SortedMemory()

    @rule(puts=st.lists(st.tuples(keys, st.binary(max_size=3)), max_size=30), deletes=st.lists(keys, max_size=10))
    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        self.store.write(puts, deletes)
        self.model.update(puts)
        for key in deletes:
            self.model.pop(key, None)

    @rule(within=bounds)
    def delete_a_range(self, within: list[bytes]) -> None:
        start, end = within
        self.store.delete_range(start, end)
        self.model = {key: value for key, value in self.model.items() if not start <= key < end}

    @rule(wanted=st.lists(keys, max_size=10))
    def read(self, wanted: list[bytes]) -> None:
        assert self.store.get_many(wanted) == [self.model.get(key) for key in wanted]

    @rule(within=bounds)
    def scan(self, within: list[bytes]) -> None:
        start, end = within
        expected = [(key, self.model[key]) for key in sorted(self.model) if start <= key < end]
        assert list(self.store.scan(start, end)) == expected
        assert self.store.first_key(start, end) == next((key for key, _ in expected), None)

    @rule()
    def scan_everything(self) -> None:
        assert list(self.store.scan(b"\0\1", b"\0\2")) == sorted(self.model.items())


class RocksDBMachine(MemoryMachine):
    def made(self) -> OrderedStore:
        self.path = tempfile.mkdtemp()
        return RocksDBStore(self.path, rocksdb_settings({}))

    def teardown(self) -> None:
        if hasattr(self, "path"):
            self.store.close()
            shutil.rmtree(self.path)


MemoryMachine.TestCase.settings = settings(deadline=None, max_examples=examples(30))
RocksDBMachine.TestCase.settings = settings(deadline=None, max_examples=examples(5))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ordered, "_BLOCK", 3)


class TestMemory(MemoryMachine.TestCase):
    pass


class TestRocksDB(RocksDBMachine.TestCase):
    pass


def test_a_flush_in_the_background_waits_while_rocksdb_takes_no_writes(tmp_path: Path) -> None:
    store = RocksDBStore(str(tmp_path), rocksdb_settings({}))
    for value in (b"1", b"2", b"3"):
        store.flush()
        store.write([(b"\0\1a", value)])
    stop_at = "level0_stop_writes_trigger"
    store._db.set_options({stop_at: "2", "level0_slowdown_writes_trigger": "2"})
    assert store._has("is-write-stopped")
    resumed = Timer(0.3, lambda: store._db.set_options({stop_at: "36", "level0_slowdown_writes_trigger": "20"}))
    resumed.start()
    store.flush(wait=False)
    assert not store._has("is-write-stopped")
    resumed.join()
    assert not store.damaged
    store.close()


PRIORITIES = """
import json, os, sys
from pathlib import Path
from holdfast.state.store.store import RocksDBStore, rocksdb_settings
store = RocksDBStore(sys.argv[1], rocksdb_settings({}), compacts=sys.argv[2] == "at once")
if sys.argv[2] == "later":
    store.compact_from_now_on()
priorities = {}
for thread in os.listdir("/proc/self/task"):
    name = Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    priorities.setdefault(name, []).append(os.getpriority(os.PRIO_PROCESS, int(thread)))
print(json.dumps([priorities["rocksdb:low"], priorities["rocksdb:high"], os.getpriority(os.PRIO_PROCESS, 0)]))
store.close()
"""
"""Tells the priorities of RocksDB's threads, which all stores of a process share."""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the system does not tell threads apart")
@pytest.mark.parametrize("compacts", ["at once", "later"])
def test_rocksdb_compacts_with_less_priority_than_the_tasks(tmp_path: Path, compacts: str) -> None:
    command = [sys.executable, "-c", PRIORITIES, str(tmp_path), compacts]
    low, high, own = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert set(low) == {15}
    assert set(high) == {own}
