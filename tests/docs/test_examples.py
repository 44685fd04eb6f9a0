"""The programs of the documentation that are marked as runnable run, and print what the page says.

Those of the first page that a user reads and those that use Spark themselves run on Spark, the others on the same engine in
one process.
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

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNS = re.compile(r"<!-- runs -->\n```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)

# Each program as if it were a file of its own, all in one process.
RUNNER = """
import json, sys
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.testing import InProcessEnvironment
programs, on_spark = json.load(sys.stdin)
if not on_spark:
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


def run(programs: list[str], directory: str, on_spark: bool) -> list[str]:
    """What each prints."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([programs, on_spark]),
        capture_output=True,
        text=True,
        cwd=directory,
        # Which of two keys' timers for one time is first follows the keys' hashes, which Spark's processes have like this.
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": directory, "PYTHONHASHSEED": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[1:]


def needs_spark(page: str, code: str) -> bool:
    return page == "getting-started.md" or "Spark" in code


@pytest.mark.parametrize("on_spark", [pytest.param(True, marks=pytest.mark.spark), False])
def test_the_programs_in_docs_print_what_the_page_says(directory: str, on_spark: bool) -> None:
    examples = [
        (page.name, *example)
        for page in sorted((ROOT / "docs").glob("*.md"))
        for example in RUNS.findall(page.read_text())
        if needs_spark(page.name, example[0]) == on_spark
    ]
    assert len(examples) >= 2
    printed = run([code for _, code, _ in examples], directory, on_spark)
    assert [(page, text) for (page, _, _), text in zip(examples, printed, strict=True)] == [
        (page, expected) for page, _, expected in examples
    ]
