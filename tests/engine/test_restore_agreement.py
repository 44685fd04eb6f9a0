"""What `check_restore` says of a program and a checkpoint or savepoint, and what a start does: the same, for any pair."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Configuration, Types, WatermarkStrategy
from holdfast.connectors.collection import CollectionSource
from holdfast.connectors.datagen import PaymentsSource
from holdfast.connectors.hybrid_source import HybridSource
from holdfast.connectors.number_seq import NumberSequenceSource
from holdfast.datastream import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import IncompatibleState

from .inprocess import LEDGERS, Lab, LedgerSink
from .test_same_results import few, lab
from .test_savepoints import run

NUMBERS = 40
SOURCES: dict[str, Callable[[], Any]] = {
    "numbers": lambda: NumberSequenceSource(1, NUMBERS),
    "others": lambda: NumberSequenceSource(2, NUMBERS + 1),
    "more": lambda: NumberSequenceSource(1, 2 * NUMBERS),
    "values": lambda: CollectionSource(range(NUMBERS)),
    "payments": lambda: PaymentsSource(seed=1, count=NUMBERS),
    "other payments": lambda: PaymentsSource(seed=2, count=NUMBERS),
    "hybrid": lambda: HybridSource([NumberSequenceSource(1, NUMBERS), NumberSequenceSource(1, 3)]),
    "other hybrid": lambda: HybridSource([PaymentsSource(count=NUMBERS), NumberSequenceSource(1, 3)]),
}
TYPES = {"INT": Types.INT, "LONG": Types.LONG, "STRING": Types.STRING, "DOUBLE": Types.DOUBLE}


def value_of(type_name: str) -> Any:
    return {"STRING": "1", "DOUBLE": 1.0}.get(type_name, 1)


@dataclass(frozen=True)
class Program:
    """A program: a source, a function with operator state, and a keyed function."""

    source: str = "numbers"
    source_uid: str = "source"
    mode: str = "list"
    """Of the operator state: ``list``, ``union``, ``broadcast``; empty: a function without state."""
    elements: str = "LONG"
    """The type of its elements."""
    lists_uid: str = "lists"
    kept: str = "value"
    """The kind of the keyed state: ``value``, ``list``, ``map``; empty: a function without state and without keys."""
    values: str = "LONG"
    key: str = "LONG"
    state: str = "state"
    """Its name."""
    parallelism: int = 2
    max_parallelism: str = "64"
    ignore: str = "false"

    @property
    def config(self) -> dict[str, str]:
        return {
            "parallelism.default": str(self.parallelism),
            "pipeline.max-parallelism": self.max_parallelism,
            "execution.state-recovery.ignore-unclaimed-state": self.ignore,
        }

    def __call__(self, env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(SOURCES[self.source](), WatermarkStrategy.no_watermarks(), "in").uid(self.source_uid)
        stream = stream.rebalance().map(Listing(self.mode, self.elements) if self.mode else Plain()).uid(self.lists_uid)
        if self.kept:
            key: Callable[[Any], Any] = number_of if self.key == "LONG" else lambda value: str(number_of(value))
            keyed = stream.key_by(key, TYPES[self.key]()).process(Keeping(self.kept, self.values, self.state))
        else:
            keyed = stream.map(Plain())
        keyed.uid("kept").sink_to(LedgerSink("out")).uid("out")


def number_of(value: Any) -> int:
    return crc32(repr(value).encode()) % 5


class Plain(MapFunction):
    def map(self, value: Any) -> Any:
        return value


class Listing(MapFunction, CheckpointedFunction):
    def __init__(self, mode: str, elements: str) -> None:
        self.mode, self.elements = mode, elements

    def initialize_state(self, context: Any) -> None:
        store, element = context.get_operator_state_store(), TYPES[self.elements]()
        if self.mode == "broadcast":
            self.kept = store.get_broadcast_state(MapStateDescriptor("seen", Types.STRING(), element))
        elif self.mode == "union":
            self.kept = store.get_union_list_state(ListStateDescriptor("seen", element))
        else:
            self.kept = store.get_list_state(ListStateDescriptor("seen", element))

    def snapshot_state(self, context: Any) -> None:
        if self.mode == "broadcast":
            self.kept.put("one", value_of(self.elements))
        else:
            self.kept.update([value_of(self.elements)])

    def map(self, value: Any) -> Any:
        return value


class Keeping(KeyedProcessFunction):
    def __init__(self, kind: str, values: str, name: str) -> None:
        self.kind, self.values, self.name = kind, values, name

    def open(self, ctx: Any) -> None:
        declared = TYPES[self.values]()
        if self.kind == "value":
            self.kept = ctx.get_state(ValueStateDescriptor(self.name, declared))
        elif self.kind == "list":
            self.kept = ctx.get_list_state(ListStateDescriptor(self.name, declared))
        else:
            self.kept = ctx.get_map_state(MapStateDescriptor(self.name, Types.STRING(), declared))

    def process_element(self, value: Any, ctx: Any) -> Any:
        new = value_of(self.values)
        if self.kind == "value":
            self.kept.update(new)
        elif self.kind == "list":
            self.kept.update([new])
        else:
            self.kept.put("one", new)
        yield value


CHOICES: dict[str, list[Any]] = {
    "source": sorted(SOURCES),
    "source_uid": ["source", "elsewhere"],
    "mode": ["list", "union", "broadcast", ""],
    "elements": sorted(TYPES),
    "lists_uid": ["lists", "others"],
    "kept": ["value", "list", "map", ""],
    "values": sorted(TYPES),
    "key": ["LONG", "STRING"],
    "state": ["state", "another"],
    "parallelism": [1, 2, 3],
    "max_parallelism": ["64", "32"],
    "ignore": ["false", "true"],
}
"""By field of a program: what it can be."""
programs = st.builds(
    Program, **{name: st.sampled_from(CHOICES[name]) for name in ("source", "mode", "elements", "kept", "values")}
)
changes = st.lists(
    st.sampled_from(sorted(CHOICES)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(CHOICES[name]))),
    max_size=3,
).map(dict)
VERDICTS: Counter[bool] = Counter()


@settings(few, max_examples=examples(24))
@given(before=programs, changes=changes, saves=st.booleans(), after=st.integers(1, 3))
def agree(before, changes, saves, after):
    program = replace(before, **changes)
    with lab(before, parallelism=before.parallelism, budget=8, config=before.config) as job:
        if saves:
            path = run(job, after)
        else:
            assert not job._run_until("after commit", after + 1)
            path = ""
        with tempfile.TemporaryDirectory() as elsewhere:
            directory = Path(elsewhere) if saves else job.directory
            second = Lab(
                program, directory, parallelism=program.parallelism, budget=8, config=program.config, savepoint=path
            )
            env = StreamExecutionEnvironment.get_execution_environment(
                Configuration.from_dict(
                    {**program.config, "execution.checkpointing.dir": f"file://{directory}/checkpoints"}
                ),
                spark=object(),  # type: ignore[arg-type]
            )
            program(env)
            found = env.check_restore(path or None, "job")
            written = len(LEDGERS["out"].values)
            refused = ""
            try:
                second.run()
            except IncompatibleState as error:
                refused = str(error)
            finally:
                second.close()
            assert found.restorable is not bool(refused), (found, refused)
            if refused:
                assert len(LEDGERS["out"].values) == written, "input was read"
                assert any(refused.splitlines()[-1] in problem for problem in found.problems), (found.problems, refused)
            VERDICTS[found.restorable] += 1


def test_the_check_says_what_a_start_does():
    VERDICTS.clear()
    agree()
    assert VERDICTS[True], VERDICTS
    assert VERDICTS[False], VERDICTS
