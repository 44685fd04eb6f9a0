"""The map from what has changed to its tests is complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from changes import ALL, ROOT, TESTS, tests_of, tests_of_all
from generators import GENERATORS
from long_files import LONG


def test_every_folder_of_the_sources_has_tests_of_its_own() -> None:
    folders = {path.parent for path in (ROOT / "src" / "holdfast").rglob("*.py")} - {ROOT / "src" / "holdfast"}
    names = {str(folder.relative_to(ROOT)) for folder in folders if "_compiled" not in folder.parts}
    assert len(names) > 40
    assert {name for name in names if tests_of(f"{name}/module.py") == ALL} == set()


def the_folders_on_both_sides_of_the_map_exist() -> None:
    named = set(TESTS) | {f"tests/{name}" for tests in TESTS.values() for name in tests.split()}
    assert {name for name in named if not (ROOT / name).is_dir()} == set()


def test_every_folder_of_tests_is_run_after_some_change() -> None:
    reached = {test for folder in TESTS for test in tests_of_all([f"{folder}/a"])}
    folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - reached == set()


def test_of_nested_folders_the_innermost_names_the_tests() -> None:
    assert tests_of("src/holdfast/runtime/jvm/gone.py") == ["tests/runtime", "tests/spark"]
    assert "tests/faults" in tests_of("src/holdfast/runtime/gone.py")


def a_module_is_run_for_the_examples_in_its_docstrings() -> None:
    assert tests_of("src/holdfast/table/changes.py")[0] == "src/holdfast/table/changes.py"


def a_changed_test_is_run_alone_and_what_tests_share_runs_their_folder() -> None:
    assert tests_of("tests/engine/test_windows.py") == ["tests/engine/test_windows.py"]
    assert tests_of("tests/engine/inprocess.py") == ["tests/engine"]
    assert tests_of("tests/engine/test_that_was_deleted.py") == ["tests/engine"]


def test_what_may_concern_anything_runs_all_tests() -> None:
    assert tests_of_all(["pyproject.toml", "docs/state.md"]) == ALL
    assert tests_of_all(["src/holdfast/errors.py"]) == ALL
    assert tests_of_all(["tests/conftest.py"]) == ALL


def test_no_test_is_named_twice() -> None:
    found = tests_of_all(["tests/engine/test_windows.py", "tests/engine/inprocess.py", "README.md"])
    assert "tests/engine/test_windows.py" not in found
    assert {"tests/docs", "tests/engine", "tests/test_layers.py"} <= set(found)


def the_command_prints_the_tests_of_what_has_changed() -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("changes.py"), "HEAD"], capture_output=True, text=True, check=True
    )
    assert "tests/test_layers.py" in done.stdout or done.stdout.split() == ALL


def the_files_that_are_long_exist_and_are_named_once_in_order() -> None:
    assert sorted(set(LONG)) == LONG
    assert [name for name in LONG if not (ROOT / "tests" / name).is_file()] == []


def test_the_tests_of_generators_exist() -> None:
    for test in (test for tests in GENERATORS.values() for test in tests):
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / "tests" / file).read_text(), test
