"""The README's program, copied into a file and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
def test_the_readmes_program_prints_what_the_readme_says() -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"^```python\n(.*?)^```.*?^```text\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="docs-") as directory:
        Path(directory, "totals.py").write_text(found[1])
        done = subprocess.run(
            [sys.executable, "totals.py"],
            capture_output=True,
            text=True,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": directory},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == found[2]


def test_the_readmes_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
