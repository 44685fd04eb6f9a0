"""The programs of the documentation that are marked as runnable run, and print what the page says."""

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

pytestmark = pytest.mark.spark

# Each program as if it were a file of its own, all on one Spark.
RUNNER = """
import json, sys
for code in json.load(sys.stdin):
    print("\\0", end="", flush=True)
    exec(compile(code, "example.py", "exec"), {"__name__": "__main__"})
"""


@pytest.fixture
def directory() -> Iterator[str]:
    """An empty directory with a short name: sockets are made below it."""
    with tempfile.TemporaryDirectory(prefix="docs-") as path:
        yield path


def run(programs: list[str], directory: str) -> list[str]:
    """What each prints."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": directory},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[1:]


def test_the_programs_in_docs_print_what_the_page_says(directory: str) -> None:
    examples = [
        (page.name, *example) for page in sorted((ROOT / "docs").glob("*.md")) for example in RUNS.findall(page.read_text())
    ]
    assert len(examples) >= 5
    printed = run([code for _, code, _ in examples], directory)
    assert [(page, text) for (page, _, _), text in zip(examples, printed, strict=True)] == [
        (page, expected) for page, _, expected in examples
    ]
