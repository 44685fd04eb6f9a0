"""Maps and lists that outgrow their rows: what functions read does not tell, whatever happens to the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
)
from holdfast.state.cells.entries import MOST_IN_ROW

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

RECORDS = [(f"k{n % 3}", n, (n * 7919) % 1500) for n in range(3 * 3 * MOST_IN_ROW)]
TYPES = [(Types.LONG(), Types.STRING()), (None, None)]


class Ledger(KeyedProcessFunction):
    """Tells, of a map and a list of the key, what depends on all that they hold."""

    def __init__(self, key_type: Any, value_type: Any) -> None:
        self.types = key_type, value_type

    def open(self, runtime_context: Any) -> None:
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", *self.types))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", self.types[0]))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        _, stamp, number = value
        known = self.map.get(number)
        self.map.put(number, f"at {stamp}")
        if stamp % 5 == 0:
            self.map.remove((number * 3) % 1500)
        self.list.add(number)
        if stamp % 1000 == 999:
            self.map.clear()
            self.list.update(list(self.list)[-300:])
        if stamp % 50 == 0:
            entries = sorted(self.map.items())
            yield stamp, known, self.map.contains(stamp), self.map.is_empty(), entries, list(self.list)


def model() -> list[Any]:
    told = []
    maps: dict[str, dict[int, str]] = {}
    lists: dict[str, list[int]] = {}
    for key, stamp, number in RECORDS:
        held, elements = maps.setdefault(key, {}), lists.setdefault(key, [])
        known = held.get(number)
        held[number] = f"at {stamp}"
        if stamp % 5 == 0:
            held.pop((number * 3) % 1500, None)
        elements.append(number)
        if stamp % 1000 == 999:
            held.clear()
            elements[:] = elements[-300:]
        if stamp % 50 == 0:
            told.append((stamp, known, stamp in held, not held, sorted(held.items()), list(elements)))
    return told


def program(types: Any) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, _: r[1])

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(SplitSource({"only": RECORDS}, 0), strategy, "source").uid("source")
        stream.key_by(lambda r: r[0]).process(Ledger(*types)).uid("keyed").sink_to(LedgerSink("out")).uid("out")

    return build


@pytest.mark.parametrize("types", TYPES, ids=["declared", "pickled"])
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("keep_disk", [True, False])
def test_large_maps_and_lists_hold_what_small_ones_would_through_crashes_and_restarts(
    tmp_path: Path, types: Any, backend: str, keep_disk: bool
):
    LEDGERS["out"].committed.clear()
    config = {"state.backend.type": backend, "state.backend.cache.size": "1kb"}
    lab = Lab(program(types), tmp_path, budget=130, config=config, parallelism=2, keep_disk=keep_disk)
    lab.run([("after complete", 3), ("before complete", 4), ("after complete", 5)])
    lab.close()
    assert sorted(LEDGERS["out"].values) == sorted(model())
