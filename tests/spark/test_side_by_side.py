"""The pairs of programs in docs/from-structured-streaming.md: a query of PySpark and a job give the same results.

The jobs are one job in the process of the test, whose rows the session computes; the queries run one after the other.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from holdfast.datastream import StreamExecutionEnvironment
from holdfast.testing import InProcessEnvironment
from spark_sessions import spark_session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

PAGE = (Path(__file__).parents[2] / "docs/from-structured-streaming.md").read_text()
CODE = r" -->\n```python\n(.*?)^```\n"
BEGINNINGS = dict(re.findall(rf"^<!-- all: (\w+){CODE}", PAGE, re.MULTILINE | re.DOTALL))
CLOSING = "end"
"""The shop of the last payment, which closes all windows before it."""
CLOSED = 99
"""Its id."""
_STARTS = 3


class Pair(NamedTuple):
    """Two programs."""

    mode: str
    """The query's output mode; or ``batch``, or the directory to which the program writes."""
    query: str
    how: str
    """Of the job: ``shared``, if it uses what the query's program defines; or the directory."""
    job: str


PAIRS = {
    heading: Pair(*found)
    for heading, *found in re.findall(
        rf"^### ([^\n]+)\n(?:(?!^#).)*?^<!-- pyspark: (\S+){CODE}(?:(?!^#).)*?^<!-- holdfast(?:: (\S+))?{CODE}",
        PAGE,
        re.MULTILINE | re.DOTALL,
    )
}


def payment(number: int, shop: str, amount: int, time: str) -> dict[str, Any]:
    return {"id": number, "shop": shop, "amount": amount, "at": f"2026-03-01T{time}Z"}


def write(directory: Path, *files: list[Any]) -> None:
    directory.mkdir(parents=True)
    for n, lines in enumerate(files):
        path = directory / f"{n}.json"
        path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))
        os.utime(path, (1_750_000_000 + n,) * 2)  # Spark reads files by their times of modification


PAYMENTS = [
    payment(1, "tea", 3, "10:00:01"),
    payment(2, "tea", 4, "10:00:30"),
    payment(2, "tea", 4, "10:00:31"),
    payment(3, "books", 20, "10:00:40"),
    payment(4, "tea", 9, "10:02:10"),
    payment(5, "books", 7, "10:02:25"),
    payment(6, "books", 8, "10:02:50"),
    payment(CLOSED, CLOSING, 5, "23:00:00"),
]
REFUNDS = [
    {"id": 1, "reason": "broken", "at": "2026-03-01T10:03:00Z"},
    {"id": 3, "reason": "late", "at": "2026-03-01T10:09:00Z"},
    {"id": 4, "reason": "too late", "at": "2026-03-01T10:20:00Z"},
    {"id": 90, "reason": CLOSING, "at": "2026-03-01T23:00:00Z"},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    write(made / "payments", PAYMENTS)
    write(made / "refunds", REFUNDS)
    write(made / "shops", [{"shop": "tea", "city": "Pune"}, {"shop": "books", "city": "Delhi"}])
    write(made / "lines", ["to be", "or not to be"])
    return made


@pytest.fixture(scope="module")
def spark():
    settings = {"spark.sql.shuffle.partitions": "1", "spark.sql.session.timeZone": "UTC"}
    settings["spark.sql.streaming.stateStore.providerClass"] = (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
    with spark_session([], settings, "local[2]") as made:
        yield made


def program(heading: str, side: str, data: Path) -> str:
    """Its text, with the files of this test."""
    code = PAIRS[heading].query if side == "pyspark" else PAIRS[heading].job
    return code.replace("/data/", f"{data}/")


def begun(side: str, data: Path) -> dict[str, Any]:
    """The names of a program after the common beginning."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for each in dict.fromkeys(("pyspark", side)):
        exec(BEGINNINGS[each].replace("/data/", f"{data}/"), names)
    return names


def written(spark: SparkSession, directory: str, data: Path) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.read.json(directory.replace("/data/", f"{data}/") + "/*").collect()]


@pytest.fixture(scope="module")
def queries(spark, data):
    """The names that each query's program defines."""
    found = {}
    for heading in PAIRS:
        names = found[heading] = begun("pyspark", data)
        exec(program(heading, "pyspark", data), names)
    return found


@pytest.fixture(scope="module")
def of_jobs(queries, data):
    """The results of each job's program, in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamExecutionEnvironment, "get_execution_environment", lambda spark: InProcessEnvironment())
        beginning = begun("holdfast", data)
    streams = []
    for heading, pair in PAIRS.items():
        names = {**(queries[heading] if pair.how == "shared" else {}), **beginning}
        names.pop("found", None)
        exec(program(heading, "holdfast", data), names)
        if "found" in names:
            streams.append(names["found"].map(lambda element, heading=heading: (heading, *element)))
    found: dict[str, list[Any]] = {heading: [] for heading in PAIRS}
    with streams[0].union(*streams[1:]).execute_and_collect("side by side") as results:
        for heading, *values in results:
            found[heading].append(tuple(values))
    return found


def of_query(spark: SparkSession, frame: Any, mode: str) -> list[tuple[Any, ...]]:
    """The results of a query, in order of its batches."""
    if not frame.isStreaming:
        return [tuple(row) for row in frame.collect()]
    rows: list[tuple[Any, ...]] = []
    writer = frame.writeStream.outputMode(mode).foreachBatch(lambda batch, _: rows.extend(map(tuple, batch.collect())))
    for attempt in range(_STARTS):  # Spark gives its first worker ten seconds to start, too few on a busy machine
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            break
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or attempt == _STARTS - 1:
                raise
            rows.clear()
    return rows


def comparable(rows: list[tuple[Any, ...]], mode: str) -> Any:
    """All rows; in the mode update the last of each key. Those that close the others' windows are left out."""
    kept = [row for row in rows if CLOSING not in row and CLOSED not in row]
    return {row[0]: row for row in kept} if mode == "update" else Counter(kept)


@pytest.mark.parametrize("heading", PAIRS)
def test_a_query_and_a_job_give_the_same_results(heading, spark, data, queries, of_jobs):
    pair = PAIRS[heading]
    if pair.mode.startswith("/data/"):
        expected, found = written(spark, pair.mode, data), written(spark, pair.how, data)
    else:
        expected, found = of_query(spark, queries[heading]["found"], pair.mode), of_jobs[heading]
    assert comparable(found, pair.mode) == comparable(expected, pair.mode)
    assert len(comparable(expected, pair.mode)) > 1


def test_every_pair_of_the_page_is_run():
    assert len(PAIRS) == PAGE.count("<!-- pyspark: ") == PAGE.count("<!-- holdfast") > 15
