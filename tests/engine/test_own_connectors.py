"""Users' own sources and sinks: what they give to the checkpoint is stored as it was at that moment, or refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from holdfast.checkpoint import manifests
from holdfast.common import WatermarkStrategy
from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError

from .inprocess import CRASH_POINTS, LedgerCommitter, LedgerSink, LedgerWriter, SplitEnumerator, SplitSource
from .small_programs import visible


def copies(source: SplitSource, sink: LedgerSink = LedgerSink("out")) -> Any:  # noqa: B008
    """A program that only copies."""

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "source").uid("source")
        stream.map(lambda value: value).uid("map").sink_to(sink).uid("out")

    return build


@pytest.mark.parametrize("layer", ["in the entry", "in a manifest"])
@pytest.mark.parametrize("point", CRASH_POINTS)
def a_snapshot_that_the_source_goes_on_changing_is_stored_as_it_was(job, monkeypatch, point, layer):
    if layer == "in a manifest":
        monkeypatch.setattr(manifests, "LARGEST_LAYER", 1)
    values = {"a": list(range(40)), "b": list(range(100, 130))}
    job(copies(SplitSource(values, cut=3)), budget=6).run([(point, 5), (point, 3), (point, 4)])
    assert visible() == Counter(map(repr, values["a"] + values["b"]))


class Fruit(Enum):
    APPLE = "apple"


class Pair(NamedTuple):
    a: int
    b: int


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
OTHERS = [
    {"seen": {1, 2}},
    [frozenset({1})],
    {"at": date(2026, 3, 1)},
    {"at": datetime(2026, 3, 1, tzinfo=timezone.utc)},
    timedelta(1),
    UUID(int=7),
    {"amounts": [Decimal("1.5")]},
    Counter("aab"),
    defaultdict(list),
    {"pair": Pair(1, 2)},
    {1: Fruit.APPLE},
    bytearray(b"x"),
    1 << 64,
    ENDLESS,
    object(),
]


@dataclass(frozen=True)
class TellingSource(SplitSource):
    told: Any = None

    def create_enumerator(self, job: JobInfo, uid: str) -> SplitEnumerator:
        enumerator = SplitEnumerator(self, job.generation)
        enumerator.snapshot = lambda: self.told
        return enumerator


@pytest.mark.parametrize("told", OTHERS, ids=lambda told: type(told).__name__)
def a_snapshot_that_would_come_back_as_something_else_ends_the_job(job, told):
    with pytest.raises(ConfigurationError, match=r"the snapshot of the source with uid 'source' is not plain data"):
        job(copies(TellingSource({"a": [1]}, told=told))).run()


class TellingWriter(LedgerWriter):
    def __init__(self, told: Any) -> None:
        super().__init__()
        self.told = told

    def prepare_commit(self) -> list[Any]:
        return [self.told]


class TellingCommitter(LedgerCommitter):
    def commit(self, committables: Sequence[Committable]) -> None:
        GIVEN.extend(each.data for each in committables)
        super().commit([])


@dataclass(frozen=True)
class TellingSink(LedgerSink):
    told: Any = None

    def create_writer(self, context: WriterContext) -> LedgerWriter:
        return TellingWriter(self.told)

    def create_committer(self, job: JobInfo, uid: str) -> LedgerCommitter:
        return TellingCommitter(self.name)


GIVEN: list[Any] = []
"""What committers were given."""


@pytest.mark.parametrize("told", OTHERS, ids=lambda told: type(told).__name__)
def a_committable_that_would_come_back_as_something_else_ends_the_job(job, told):
    with pytest.raises(ConfigurationError, match=r"a committable of the sink with uid 'out' is not plain data"):
        job(copies(SplitSource({"a": [1]}), TellingSink("out", told=told))).run()


@pytest.mark.parametrize("told", [{("a", 1): [None, True, 1, 1.5, "x", b"x"]}, (1, (2,)), [float("inf")], {}], ids=repr)
def a_committable_of_plain_data_is_given_to_the_first_commit_as_to_a_later_one(job, told):
    lab = job(copies(SplitSource({"a": [1]}), TellingSink("out", told=told)))
    GIVEN.clear()
    lab.run([("before commit", 1)])
    assert len(GIVEN) == 2, "committed, and committed again after a crash"
    assert GIVEN[0] == GIVEN[1]
    assert list(map(type, GIVEN[0])) == list(map(type, GIVEN[1]))


class RefusedWriter(LedgerWriter):
    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        raise ConfigurationError("the service refuses the login")


class RefusedSink(LedgerSink):
    def create_writer(self, context: WriterContext) -> LedgerWriter:
        return RefusedWriter()


def a_writers_refusal_ends_the_job_at_once_and_blames_no_record(job):
    with pytest.raises(ConfigurationError, match=r"^the service refuses the login$"):
        job(copies(SplitSource({"a": [1]}), RefusedSink("out"))).run()
