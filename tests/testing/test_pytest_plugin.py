"""The pytest plugin: its fixtures in a test session of their own, as a user's project has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FIXTURES = """
from holdfast.common import Time
from holdfast.testing import InProcessEnvironment


def test_env(holdfast_env):
    assert list(holdfast_env.from_collection([1, 2]).map(lambda n: 2 * n).execute_and_collect()) == [2, 4]


def test_one_input(holdfast_harness, holdfast_clock):
    harness = holdfast_harness(lambda stream: stream.map(str), clock=holdfast_clock)
    assert harness.process_element(5).extract_output_values() == ["5"]


def test_two_inputs(holdfast_harness):
    harness = holdfast_harness(lambda first, second: first.union(second))
    assert harness.process_element1(5).process_element2(6).extract_output_values() == [5, 6]


def test_clock(holdfast_clock):
    assert holdfast_clock.advance(Time.seconds(1)) == 1000
"""

CLUSTER = """
def test_cluster(holdfast_cluster):
    env = holdfast_cluster.environment()
    assert env.get_parallelism() == 2
    doubled = env.from_collection([1, 2, 3]).key_by(lambda n: n).map(lambda n: 2 * n)
    assert sorted(doubled.execute_and_collect()) == [2, 4, 6]


def test_cluster_again(holdfast_cluster):
    assert list(holdfast_cluster.environment().from_collection([1]).execute_and_collect()) == [1]
"""


def session(directory: Path, tests: str, java: bool) -> str:
    """What pytest says about a file of tests."""
    (directory / "test_user.py").write_text(tests)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if not java:
        environment |= {"PATH": "", "JAVA_HOME": ""}
    options = ["-q", "-p", "holdfast.testing.pytest_plugin", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_user.py"],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment,
        check=False,
    )
    return done.stdout + done.stderr


def the_fixtures_of_the_plugin_need_no_java(tmp_path: Path) -> None:
    assert "4 passed" in session(tmp_path, FIXTURES, java=False)


@pytest.mark.spark
def the_cluster_of_the_plugin_is_shared_by_the_session(tmp_path: Path) -> None:
    assert "2 passed" in session(tmp_path, CLUSTER, java=True)


def the_plugin_is_an_entry_point_of_pytest_and_imports_nothing_of_holdfast_at_its_start() -> None:
    assert '"holdfast.testing.pytest_plugin" = "holdfast.testing.pytest_plugin"' in (ROOT / "pyproject.toml").read_text()
    program = (
        "import sys, holdfast.testing.pytest_plugin as p; print(sorted(m for m in sys.modules if m.startswith('holdfast')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['holdfast', 'holdfast.compiled', 'holdfast.testing', 'holdfast.testing.pytest_plugin']"
