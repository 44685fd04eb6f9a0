"""The simulated job: count the records of each key and write (key, count), exactly once.

A source of two splits, a keyed vertex of two subtasks, a sink: the plan is real, made by the public API.
"""

from __future__ import annotations

from typing import Any

from holdfast.common import WatermarkStrategy
from holdfast.connectors.base import EpochInput, SplitRange
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.runtime.plan.plan import JobPlan, Vertex

from .world import World

SUBTASKS = 2
KEYS = 5
Input = dict[str, list[int]]
"""By split the keys of its records."""
Positions = dict[str, int]


class Numbers:
    """The source in the plan; the driver makes its enumerator."""

    bounded = True

    def create_enumerator(self, job: Any, uid: str) -> Any:
        raise NotImplementedError

    def create_reader(self, context: Any) -> Any:
        raise NotImplementedError


class Nowhere:
    """The sink in the plan; driver and tasks make its halves."""

    def validate(self) -> None:
        raise NotImplementedError

    def create_writer(self, context: Any) -> Any:
        raise NotImplementedError

    def create_committer(self, job: Any, uid: str) -> Any:
        raise NotImplementedError


def _plan() -> JobPlan:
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(SUBTASKS)
    numbers = env.from_source(Numbers(), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    counts = numbers.key_by(lambda n: n).reduce(lambda a, b: a + b).uid("count")
    counts.sink_to(Nowhere()).uid("out")
    return env._plan("simulated")


PLAN = _plan()
READ: Vertex = next(v for v in PLAN.vertices if v.source is not None)
COUNT: Vertex = next(v for v in PLAN.vertices if v.source is None)
CHANNEL = next(channel.id for chained in READ.chain for channel in chained.channels)


def generate(world: World) -> Input:
    """The job's input."""
    chance = world.random
    return {f"s{n}": [chance.randrange(KEYS) for _ in range(chance.randrange(3, 30))] for n in range(SUBTASKS)}


def mine(keys: list[int], subtask: int) -> list[int]:
    """The records that a keyed subtask gets."""
    return [key for key in keys if key % SUBTASKS == subtask]


def model(numbers: Input, subtask: int, positions: Positions) -> dict[int, int]:
    """What the state must be at these positions."""
    counts: dict[int, int] = {}
    for split, keys in numbers.items():
        for key in mine(keys[: positions.get(split, 0)], subtask):
            counts[key] = counts.get(key, 0) + 1
    return counts


class Enumerator:
    """Cuts the splits into epochs at random; sometimes there seems to be nothing new."""

    def __init__(self, world: World, numbers: Input, positions: Positions | None) -> None:
        self._random = world.random
        self._numbers = numbers
        self._positions: Positions = dict.fromkeys(numbers, 0) | (positions or {})

    def plan(self) -> EpochInput:
        ranges = []
        for split, keys in self._numbers.items():
            start = self._positions[split]
            end = min(len(keys), start + self._random.choice((0, 0, 1, 2, 5)))
            if end > start:
                ranges.append(SplitRange(split, start, end, last=end == len(keys)))
                self._positions[split] = end
        left = sum(len(keys) - self._positions[split] for split, keys in self._numbers.items())
        return EpochInput(tuple(ranges), left, finished=left == 0)

    def snapshot(self) -> Positions:
        return dict(self._positions)
