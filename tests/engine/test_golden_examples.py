"""Arroyo's golden protocol for every example: a full run; then three checkpoints at parallelism 2, restored at 3.

The programs run as they are, in this process. Only sources and sinks are replaced: the records of a topic or socket come
from a list, and results go to a ledger, which sees only what was committed.
"""

from __future__ import annotations

import json
import random
import runpy
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.file.source import FileSource
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.operations.stream_output import StreamOutput
from holdfast.runtime.driver import coordinator

from .inprocess import LEDGERS, Lab, LedgerSink, SplitEnumerator, SplitSource

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
START = 1_700_000_040_000
MINUTE = 60_000
CHECKPOINTS = 3

Splits = dict[str, list[Any]]


def split_in_two(records: list[Any]) -> Splits:
    return {"0": records[::2], "1": records[1::2]}


# ---- input ------------------------------------------------------------------------------------------------------------


def payments(chance: random.Random, count: int = 400) -> list[dict[str, Any]]:
    """Payments of two dozen merchants within ten minutes, up to four seconds out of order."""
    times = sorted(START + chance.randrange(10 * MINUTE) for _ in range(count))
    return [
        {
            "merchant_id": f"m{chance.randrange(24)}",
            "amount": chance.randrange(-20, 1000),
            "category": f"c{chance.randrange(3)}",
            "ts_ms": at - chance.randrange(4000),
        }
        for at in times
    ]


def lines(values: list[Any]) -> list[str]:
    return [json.dumps(value) for value in values]


def upi(chance: random.Random) -> dict[str, Splits]:
    return {"upi-source": split_in_two(lines(payments(chance)))}


def bursts(chance: random.Random) -> dict[str, Splits]:
    """Payments of a group of merchants within 40 s, and none of them for two minutes after it.

    So what a timer of a minute clears does not depend on the moment when it fires among the records.
    """
    made = []
    for number in range(12):
        names = [f"g{number % 4}-{i}" for i in range(4)]
        times = sorted((START + number * 40_000 + chance.randrange(40_000), n) for n in names for _ in range(14))
        made += [{"merchant_id": name, "ts_ms": at} for at, name in times]
    return {"payments": {"0": lines(made)}}


def limits(chance: random.Random) -> dict[str, Splits]:
    """As many changes of limits as payments, so that both go on in every epoch."""
    paid = lines(payments(chance))
    rules = lines([{"category": f"c{chance.randrange(3)}", "limit": chance.randrange(100, 900)} for _ in paid])
    return {"upi-payments": {"0": paid}, "upi-limits": {"0": rules}}


def to_enrich(chance: random.Random) -> dict[str, Splits]:
    return {"payments": split_in_two(lines(payments(chance)))}


def accounts(chance: random.Random) -> dict[str, Splits]:
    """Accounts that are opened, move to another city, and are closed. All changes of an account are in one split."""
    splits: Splits = {"0": [], "1": []}
    for _ in range(400):
        number = chance.randrange(30)
        row = {"city": f"city {chance.randrange(5)}", "balance": chance.randrange(100)} if chance.random() < 0.8 else None
        splits[str(number % 2)].append((f"a{number}", row))
    return {"topic accounts": splits}


def orders(chance: random.Random) -> dict[str, Splits]:
    """Orders, some of them sent twice, and payments of most."""
    ordered, paid = [], []
    for number in range(200):
        order = {"order_id": f"o{number}", "amount": chance.randrange(100), "ts_ms": START + number * 10_000}
        ordered += [order] * chance.choice([1, 1, 2])
        if chance.random() < 0.7:
            paid.append({**order, "ts_ms": order["ts_ms"] + chance.randrange(20 * MINUTE)})
    paid.sort(key=lambda each: each["ts_ms"])
    return {"orders": {"0": lines(ordered)}, "order-payments": {"0": lines(paid)}}


def card_payments(chance: random.Random) -> dict[str, Splits]:
    made = [
        {"card": f"card {chance.randrange(6)}", "amount": chance.choice([1, 2, 3, 50, 900]), "ts_ms": START + n * 3000}
        for n in range(400)
    ]
    return {"payments": split_in_two(lines(made))}


def numbers(chance: random.Random) -> dict[str, Splits]:
    return {"Socket Stream": {"0": [str(chance.randrange(1000)) for _ in range(400)]}}


def typed_words(chance: random.Random) -> dict[str, Splits]:
    return {"Socket Stream": {"0": [f"w{n} w{n + 1}" for n in range(400)]}}


def written_files(chance: random.Random) -> dict[str, Splits]:
    """Files in the directory ``payments``."""
    Path("payments").mkdir()
    for number, records in split_in_two(lines(payments(chance))).items():
        Path("payments", f"{number}.json").write_text("\n".join(records) + "\n")
    return {}


def merchants(chance: random.Random) -> dict[str, Splits]:
    with closing(sqlite3.connect("merchants.db")) as database, database:
        database.execute("create table merchants (merchant_id text primary key, category text)")
        database.executemany("insert into merchants values (?, ?)", [(f"m{n}", f"kind {n % 3}") for n in range(16)])
    return to_enrich(chance)


# ---- output -----------------------------------------------------------------------------------------------------------


def every_result(results: list[Any]) -> Any:
    return Counter(map(repr, results))


def last_of_each_key(results: list[Any]) -> Any:
    """The state of a table: which of two changes from different splits comes first is open."""
    return dict(results)


def words_of_each_burst(results: list[Any]) -> Any:
    """The words go through several subtasks, so their order within a burst is open."""
    return Counter(tuple(sorted(result.split())) for result in results)


@dataclass(frozen=True)
class Golden:
    records: Callable[[random.Random], dict[str, Splits]]
    """Makes the records of each source by its name."""
    view: Callable[[list[Any]], Any] = every_result


GOLDEN = {
    "account_balances": Golden(accounts, last_of_each_key),
    "changing_limits": Golden(limits),
    "enrich_payments": Golden(merchants),
    "fraud_counter": Golden(bursts),
    "probing_fraud": Golden(card_payments),
    "running_average": Golden(numbers),
    "sessions": Golden(typed_words, words_of_each_burst),
    "totals_by_batches": Golden(written_files),
    "unpaid_orders": Golden(orders),
    "upi_per_minute": Golden(upi),
}


def test_every_example_has_its_input_here() -> None:
    assert set(GOLDEN) == {path.stem for path in EXAMPLES.glob("*.py") if not path.stem.startswith("test_")}


# ---- the protocol -----------------------------------------------------------------------------------------------------


class Clock:
    """Processing time by the position in the input: after some records, nothing is typed for a while."""

    now = START

    def at(self, position: int) -> None:
        self.now = START + 1000 * position + 9000 * (position // 60)


CLOCK = Clock()


class TypedSource(SplitSource):
    """Records of a socket: the clock is that of their arrival."""

    def create_enumerator(self, job: Any, uid: str) -> TypedEnumerator:
        return TypedEnumerator(self, job.generation)


class TypedEnumerator(SplitEnumerator):
    def start(self, state: Any | None) -> None:
        super().start(state)
        CLOCK.at(sum(self._next.values()))

    def plan(self, max_records: int) -> Any:
        planned = super().plan(max_records)
        CLOCK.at(sum(self._next.values()))
        return planned


def golden(name: str, where: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A job of the example, with sources and sinks of this process."""
    records = GOLDEN[name].records(random.Random(name))
    add_source = StreamExecutionEnvironment._add_source

    def source(env: Any, given: Any, called: str, *rest: Any, **settings: Any) -> Any:
        if not isinstance(given, FileSource):
            given = (TypedSource if called == "Socket Stream" else SplitSource)(records[called])
        return add_source(env, given, called, *rest, **settings)

    sink_to = StreamOutput._sink_to
    monkeypatch.setattr(StreamExecutionEnvironment, "_add_source", source)
    monkeypatch.setattr(StreamOutput, "_sink_to", lambda stream, *_: sink_to(stream, LedgerSink("out"), "out", "sink_to()"))
    monkeypatch.setattr(StreamExecutionEnvironment, "execute", lambda *_: None)
    monkeypatch.setattr(coordinator.time, "time_ns", lambda: CLOCK.now * 1_000_000)

    def build(env: StreamExecutionEnvironment) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StreamExecutionEnvironment, "get_execution_environment", staticmethod(lambda: env))
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    return Lab(build, where, parallelism=2, budget=40)


def begin() -> None:
    LEDGERS["out"].committed.clear()
    CLOCK.at(0)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def an_example_restored_from_its_third_checkpoint_at_another_parallelism_has_the_output_of_a_full_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE", str(tmp_path / "merchants.db"))
    whole = golden(name, tmp_path / "whole", monkeypatch)
    results, view = LEDGERS["out"], GOLDEN[name].view
    try:
        begin()
        whole.run()
        expected = list(results.values)
        begin()
        cut = Lab(whole.build, tmp_path / "cut", parallelism=2, budget=whole.budget)
        try:
            assert not cut._run_until("after complete", CHECKPOINTS)
            before = len(results.values)
            shutil.rmtree(cut.disk, ignore_errors=True)  # restored on another host
            cut.parallelism = 3
            cut.run()
        finally:
            cut.close()
    finally:
        whole.close()
    assert view(list(results.values)) == view(expected)
    assert before < len(expected), "the restored job had nothing to do"
    assert len(expected) > 5
