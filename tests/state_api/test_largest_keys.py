"""The largest keys of an operator, as the dashboard and `holdfast checkpoints keys` show them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.inprocess import Lab
from holdfast.common import Types
from holdfast.datastream import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import ConfigurationError
from holdfast.state_api import open_snapshot
from holdfast.state_api.snapshots import largest
from holdfast.state_api.snapshots.largest import largest_keys

MANY = 1000
"""More entries than a row holds, so that maps and lists are stored outside of it."""


class Remembers(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", Types.STRING(), Types.STRING()))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        key, kind, size = value
        self.count.update(1)
        for n in range(size):
            if kind == "map":
                self.seen.put(f"entry {n}", "x" * 20)
            elif kind == "list":
                self.all.add("x" * 30)
        yield key


def build(env: StreamExecutionEnvironment) -> None:
    small = [(f"key {n}", "", 0) for n in range(200)]
    large = [("a map", "map", MANY), ("a list", "list", 2 * MANY), (("a", "tuple"), "list", 10)]
    stream = env.from_collection([*small, *large]).key_by(lambda each: each[0])
    stream.process(Remembers()).name("Remembers").uid("remembers").print()


@pytest.fixture(params=["rocksdb", "hashmap"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    config = {"state.backend.type": request.param}
    Lab(build, tmp_path, config=config, ledgers=()).run()
    return str(tmp_path / "checkpoints" / "job")


def the_keys_with_large_maps_and_lists_come_first(job: str) -> None:
    found = largest_keys(open_snapshot(job), "remembers", limit=3)
    assert [each.key for each in found.largest] == ["'a list'", "'a map'", "('a', 'tuple')"]
    a_list, a_map, a_tuple = (each.bytes for each in found.largest)
    assert 30 * 2 * MANY < a_list < 40 * 2 * MANY
    assert 20 * MANY < a_map < 60 * MANY
    assert 300 < a_tuple < 600
    assert (found.keys, found.groups_read, found.groups) == (203, 128, 128)
    assert found.bytes > a_list + a_map + a_tuple
    assert found.largest_groups[0][1] >= a_list
    sizes = dict(found.states)
    assert list(sizes) == ["all", "seen", "count"]
    assert 203 <= sizes["count"] < 5 * 203
    assert 20 * MANY < sizes["seen"] <= a_map < sizes["all"]
    assert sum(sizes.values()) <= found.bytes


def the_largest_keys_are_known_though_the_sizes_of_few_are_held(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = largest_keys(open_snapshot(job), "remembers", limit=3)
    monkeypatch.setattr(largest, "_MOST_KEYS", 20)
    found = largest_keys(open_snapshot(job), "remembers", limit=3)
    assert [each.key for each in found.largest] == [each.key for each in whole.largest]
    assert (found.bytes, found.largest_groups) == (whole.bytes, whole.largest_groups)
    assert found.keys >= whole.keys


def test_another_process_gives_the_same_answer_and_says_what_is_wrong(job: str) -> None:
    def ask(uid: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.state_api.snapshots.largest"]
        return subprocess.run(command, input=json.dumps([job, {}, uid]), capture_output=True, text=True, check=False)

    found = json.loads(ask("remembers").stdout)
    assert [each["key"] for each in found["largest"][:2]] == ["'a list'", "'a map'"]
    wrong = ask("other")
    assert wrong.returncode == 1
    assert wrong.stderr.strip() == "no operator with uid 'other' has keyed state; there is state of remembers"
    with pytest.raises(ConfigurationError, match="no operator with uid"):
        largest_keys(open_snapshot(job), "other")
