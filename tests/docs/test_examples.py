"""The programs of the documentation that are marked as runnable run, and print what the page says.

Those of the first page that a user reads and those that use Spark themselves run on Spark, in each of the ways in which
programs of PySpark are run; the others on the same engine in one process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest

from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import scripts_environment

ROOT = Path(__file__).resolve().parents[2]
RUNS = re.compile(r"<!-- runs -->\n```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)

# Each program as if it were a file of its own, all in one process.
RUNNER = """
import json, sys
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.testing import InProcessEnvironment
with open(sys.argv[1]) as file:
    programs = json.load(file)
if sys.argv[2:] == ["in process"]:
    StreamExecutionEnvironment.get_execution_environment = InProcessEnvironment
for code in programs:
    print("\\0", end="", flush=True)
    exec(compile(code, "example.py", "exec"), {"__name__": "__main__"})
"""


@pytest.fixture
def directory() -> Iterator[str]:
    """An empty directory with a short name: sockets are made below it."""
    with tempfile.TemporaryDirectory(prefix="docs-") as path:
        yield path


def run(programs: list[str], directory: str, *interpreter: str, on_spark: bool = True) -> list[str]:
    """What each prints."""
    Path(directory, "runner.py").write_text(RUNNER)
    Path(directory, "programs.json").write_text(json.dumps(programs))
    done = subprocess.run(
        [*(interpreter or (sys.executable,)), "runner.py", "programs.json", *([] if on_spark else ["in process"])],
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, **environment(directory)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[1:]


def environment(directory: str) -> dict[str, str]:
    # Which of two keys' timers for one time is first follows the keys' hashes, which Spark's processes have like this.
    return {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": directory, "PYTHONHASHSEED": "0"}


def needs_spark(page: str, code: str) -> bool:
    return page == "getting-started.md" or "Spark" in code


def examples(on_spark: bool) -> tuple[list[str], list[str], list[str]]:
    """Their pages, their code, and what they print."""
    found = [
        (page.name, *example)
        for page in sorted((ROOT / "docs").glob("*.md"))
        for example in RUNS.findall(page.read_text())
        if needs_spark(page.name, example[0]) == on_spark
    ]
    assert len(found) >= 2
    pages, programs, printed = map(list, zip(*found))
    return pages, programs, printed


@pytest.mark.parametrize("on_spark", [pytest.param(True, marks=pytest.mark.spark), False])
def test_the_programs_in_docs_print_what_the_page_says(directory: str, on_spark: bool) -> None:
    pages, programs, expected = examples(on_spark)
    printed = run(programs, directory, on_spark=on_spark)
    assert list(zip(pages, printed, strict=True)) == list(zip(pages, expected))


@pytest.mark.spark
def test_programs_that_use_spark_run_by_spark_submit(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, programs, expected = examples(on_spark=True)
    submit = Path(sys.executable).with_name("spark-submit")
    for name, value in scripts_environment(find_java(own_first=True)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    # Spark makes one stream of a program's output and errors, among which is a line about a busy machine.
    told = run(programs, directory, str(submit), "--master", "local[2]")
    printed = [re.sub(r"^job '.*\n", "", text, flags=re.MULTILINE) for text in told]
    assert list(zip(pages, printed, strict=True)) == list(zip(pages, expected))


@pytest.mark.spark
def test_programs_that_use_spark_run_in_a_notebook(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, programs, expected = examples(on_spark=True)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in programs])
    for name, value in environment(directory).items():
        monkeypatch.setenv(name, value)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": directory}}
    ).execute()
    printed = ["".join(each.text for each in cell.outputs if each.get("name") == "stdout") for cell in notebook.cells]
    assert list(zip(pages, printed, strict=True)) == list(zip(pages, expected))
