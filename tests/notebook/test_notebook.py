"""Jobs and streams in notebooks."""

from __future__ import annotations

import dataclasses
import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ipywidgets
import nbclient
import nbformat
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import Configuration, RestartStrategies, Row, RowKind, WatermarkStrategy
from holdfast.common.values.tabular import as_record, to_arrow, to_pandas, to_polars
from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.notebook import LiveTable, widgets
from holdfast.notebook.html import job_html, table_html
from holdfast.testing import InProcessEnvironment

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Payment:
    user: str
    amount: float


class Total(NamedTuple):
    user: str
    amount: float


ASHA = {"user": "Asha", "amount": 2.5}


@pytest.mark.parametrize(
    ("element", "record"),
    [
        (Row(user="Asha", amount=2.5), ASHA),
        (Row("Asha", 2.5), {"f0": "Asha", "f1": 2.5}),
        (Payment("Asha", 2.5), ASHA),
        (Total("Asha", 2.5), ASHA),
        (ASHA, ASHA),
        (("Asha", 2.5), {"f0": "Asha", "f1": 2.5}),
        ("Asha", {"value": "Asha"}),
        (Payment, {"value": Payment}),
        (Row.of_kind(RowKind.DELETE, "Asha"), {"row_kind": "DELETE", "f0": "Asha"}),
    ],
)
def the_fields_of_an_element_are_its_columns(element: Any, record: dict[str, Any]) -> None:
    assert as_record(element) == record


@pytest.mark.parametrize("convert", [to_pandas, to_polars, to_arrow])
def test_elements_with_different_fields_make_one_table(convert: Callable[[Any], Any]) -> None:
    table = convert([{"a": 1}, {"a": 2, "b": "x"}])
    columns = table.to_pydict() if convert is to_arrow else {name: list(table[name]) for name in ("a", "b")}
    assert columns["a"] == [1, 2]
    assert pandas.isna(columns["b"][0])
    assert columns["b"][1] == "x"
    assert len(convert([])) == 0


@pytest.mark.parametrize("convert", [to_pandas, to_polars, to_arrow])
@pytest.mark.parametrize(
    "values",
    [
        [2**60 + 1, None],
        [1, "x"],
        [1, True],
        [2**60 + 1, 1.5],
        [2**70, 1],
        [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)],
    ],
    ids=str,
)
def a_table_has_the_values_of_its_elements_or_is_refused(convert: Callable[[Any], Any], values: list[Any]) -> None:
    try:
        table = convert([{"c": value} for value in values])
    except ValueError as error:
        assert str(error).startswith("Arrow has no type for the column 'c'")  # noqa: PT017
        return
    found = table["c"].to_pylist() if convert is to_arrow else table["c"].to_list()
    for value, each in zip(values, found, strict=True):
        assert pandas.isna(each) if value is None else (each == value and isinstance(each, type(value)))


def test_two_keys_with_one_text_are_no_two_columns() -> None:
    with pytest.raises(ValueError, match=r"two keys of .* are one column"):
        as_record({1: "a", "1": "b"})


@pytest.mark.parametrize(("module", "convert"), [("pandas", to_pandas), ("polars", to_polars), ("pyarrow", to_arrow)])
def a_missing_library_is_named(module: str, convert: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=f"(?i)needs {module}.*pip install"):
        convert([])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())), st.integers(1, 4), st.booleans(), st.data())
def a_live_table_has_the_latest_elements_whatever_the_epochs(elements, rows, keyed, data) -> None:
    table = LiveTable(rows, (lambda element: element[0]) if keyed else None)
    job, context = JobInfo("job", "job", 1, None), WriterContext(JobInfo("job", "job", 1, None), "sink", 0, 1)
    writer, committer, epoch = table.create_writer(context), table.create_committer(job, "sink"), 0
    rest = list(elements)
    while rest:
        cut, epoch = data.draw(st.integers(1, len(rest))), epoch + 1
        writer.begin_epoch(epoch, "attempt", epoch - 1)
        writer.write(rest[:cut], None)
        committer.commit([Committable("sink", 0, prepared) for prepared in writer.prepare_commit()])
        rest = rest[cut:]
    latest = elements
    if keyed:
        latest = [e for i, e in enumerate(elements) if all(later[0] != e[0] for later in elements[i + 1 :])]
    assert table.elements() == latest[-rows:]
    assert table.mailbox.total == len(elements)


def a_live_table_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of a LiveTable must be at least 1, got 0"):
        LiveTable(0)


def a_live_table_takes_two_streams_of_a_job_and_a_second_job() -> None:
    table = LiveTable(rows=1000)
    for run in ("first", "second"):
        env = InProcessEnvironment()
        for side in ("left", "right"):
            env.from_collection([(run, side, n) for n in range(10)]).sink_to(table)
        env.execute(run)
    expected = [(run, side, n) for run in ("first", "second") for side in ("left", "right") for n in range(10)]
    assert sorted(table.elements()) == expected
    assert table.mailbox.total == 40


def a_live_table_of_a_job_that_is_started_again_in_the_program_has_each_element_once(tmp_path: Path) -> None:
    table = LiveTable(rows=1000)
    for _ in range(3):
        settings = Configuration().set_string("execution.checkpointing.dir", str(tmp_path))
        env = InProcessEnvironment(settings.set_string("holdfast.epoch.max-records", "50"))
        numbers = env.from_source(NumberSequenceSource(1, 400), WatermarkStrategy.no_watermarks(), "n").uid("n")
        numbers.sink_to(table).uid("table")
        env.execute("the same job")
        assert sorted(table.elements()) == list(range(1, 401))


def a_live_table_with_a_key_has_all_keys_and_its_page_the_latest() -> None:
    table = LiveTable(key=lambda element: element[0])
    env = InProcessEnvironment()
    env.from_collection([(n, "x") for n in range(150)]).sink_to(table)
    env.execute("keys")
    assert table.elements() == [(n, "x") for n in range(150)]
    assert table.mailbox.latest() == ([(n, "x") for n in range(50, 150)], 150)


@pytest.mark.parametrize("wrong", [{"x": 1}, {"merchant": ["a", "list"]}])
def a_key_of_a_live_table_that_fails_ends_the_job_and_names_the_element(wrong: dict[str, Any]) -> None:
    table = LiveTable(key=lambda element: element["merchant"])
    env = InProcessEnvironment()
    env.from_collection([{"merchant": n} for n in range(5)] + [wrong]).sink_to(table).name("totals")
    with pytest.raises(UserCodeError, match="the key function of the LiveTable fails") as failure:
        env.execute("keys")
    assert "in operator 'totals'" in str(failure.value)
    assert f"element: {wrong!r}" in str(failure.value)


def a_page_never_contains_what_a_record_or_a_name_says_in_html() -> None:
    page = table_html([Row(**{"<b>": "<script>alert(1)</script>"})], 1, True)
    assert "<script>" not in page
    assert "<b>" not in page
    env = InProcessEnvironment()
    env.from_collection([1]).name("<script>").print()
    job = env.execute_async("<script>")
    job.get_job_execution_result().result(600)
    assert "<script>" not in job_html(job.metrics.snapshot())  # type: ignore[attr-defined]


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was displayed; pages update quickly."""
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr(widgets, "_INTERVAL_S", 0.01)
    return shown


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def slow(value: int) -> int:
    time.sleep(0.002)
    return value


def a_job_shows_its_graph_and_its_button_cancels_it(displayed: list[Any]) -> None:
    env = InProcessEnvironment(
        Configuration.from_dict({"holdfast.epoch.max-records": "100"})
    )  # it is cancelled between epochs
    numbers = env.from_source(NumberSequenceSource(1, 10**12), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.map(slow).key_by(lambda n: n % 3).reduce(max).start_new_chain().print()
    env.execute_async("endless")._ipython_display_()  # type: ignore[attr-defined]
    ((page, cancel),) = (box.children for box in displayed)
    assert isinstance(cancel, ipywidgets.Button)
    cancel.click()
    wait_for(lambda: "CANCELED" in page.value and displayed[0].children == (page,))
    assert page.value.count("<rect") == 2
    assert page.value.count("<path") == 1


def a_failed_job_shows_the_programs_own_traceback(displayed: list[Any]) -> None:
    env = InProcessEnvironment()
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.from_collection([1, 0]).map(lambda n: 1 / n).print()
    job = env.execute_async("wrong")
    job._ipython_display_()  # type: ignore[attr-defined]
    page = displayed[0].children[0]
    wait_for(lambda: "FAILED" in page.value)
    assert "ZeroDivisionError: division by zero" in page.value
    assert "test_notebook.py" in page.value


def the_results_are_shown_without_being_read(displayed: list[Any]) -> None:
    env = InProcessEnvironment()
    with env.from_collection(list(range(250))).execute_and_collect() as results:
        results._ipython_display_()
        wait_for(lambda: "the stream has ended" in displayed[0].value)
        assert "250 rows, the latest 100 below" in displayed[0].value
        assert "<td>249</td>" in displayed[0].value
        assert "<td>149</td>" not in displayed[0].value
        assert list(results.to_pandas()["value"]) == list(range(250))


@pytest.mark.spark
def the_example_runs_headless() -> None:
    notebook = nbformat.read(ROOT / "examples" / "payments.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [o for o in outputs if o["output_type"] == "error"] == []
    texts = [str(o.get("data", {}).get("text/plain", "")) for o in outputs]
    assert "square" in texts[-1]
    assert sum(text.startswith("VBox(") for text in texts) == 1, "the job's widget"
    assert sum(text.startswith("HTML(") for text in texts) == 1, "the table's widget"
