"""Which tests a change concerns: ``python tests/changes.py main`` prints them for what has changed since ``main``.

`make check SINCE=main` and `make test SINCE=main` run these.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent

TESTS: dict[str, str] = {
    "benchmarks": "benchmarks",
    "deploy": "deploy",
    "docs": "docs",
    "examples": "docs",
    "src/holdfast/cep": "cep engine programs",
    "src/holdfast/checkpoint": "checkpoint engine faults security simulator state_api",
    "src/holdfast/checkpoint/stores": "checkpoint security",
    "src/holdfast/cli": "cli docs",
    "src/holdfast/common": "common connectors datastream engine formats state",
    "src/holdfast/common/formats": "common connectors formats kafka",
    "src/holdfast/common/system": "cli common datastream security",
    "src/holdfast/connectors": "connectors engine formats simulator typed_streams",
    "src/holdfast/connectors/file": "connectors formats",
    "src/holdfast/connectors/kafka": "chaos connectors kafka simulator",
    "src/holdfast/connectors/kafka/changelogs": "connectors faults kafka",
    "src/holdfast/datastream": "datastream engine graph programs spark typed_streams",
    "src/holdfast/datastream/connectors": "connectors datastream kafka typed_streams",
    "src/holdfast/datastream/formats": "connectors formats",
    "src/holdfast/demo": "demo",
    "src/holdfast/functions": "datastream engine typed_streams",
    "src/holdfast/graph": "datastream engine graph programs",
    "src/holdfast/metrics": "engine metrics rest",
    "src/holdfast/notebook": "notebook",
    "src/holdfast/rest": "cli rest",
    "src/holdfast/runtime": "engine faults programs runtime spark",
    "src/holdfast/runtime/async_io": "engine faults runtime",
    "src/holdfast/runtime/driver": "cli engine faults rest runtime simulator spark",
    "src/holdfast/runtime/jvm": "runtime spark",
    "src/holdfast/runtime/operators": "cep engine programs state",
    "src/holdfast/runtime/plan": "engine graph programs runtime simulator",
    "src/holdfast/runtime/protocol": "engine runtime simulator",
    "src/holdfast/runtime/records": "engine runtime",
    "src/holdfast/runtime/slots": "chaos engine faults runtime security",
    "src/holdfast/runtime/spark": "cluster runtime security spark",
    "src/holdfast/runtime/time": "engine programs runtime state",
    "src/holdfast/spark": "engine spark",
    "src/holdfast/state": "engine programs security state state_api",
    "src/holdfast/state/api": "datastream engine state",
    "src/holdfast/state/changelogs": "engine faults kafka programs",
    "src/holdfast/state_api": "spark state_api",
    "src/holdfast/table": "engine programs table typed_streams",
    "src/holdfast/testing": "engine kafka testing",
    "src/holdfast/testing/chaos": "chaos faults",
    "src/holdfast/windowing": "datastream engine programs state",
}
"""The folders of `tests` for a change in a folder; of nested folders the innermost counts. Any other change: all tests."""

ALWAYS = ("tests/mutants", "tests/test_changes.py", "tests/test_layers.py", "tests/test_repo_hygiene.py")
ALL = ["src", "tests"]


def tests_of(path: str) -> list[str]:
    """The tests that a change of a file concerns: folders, a test file itself, the examples in a module's docstrings."""
    changed = PurePosixPath(path)
    there = (ROOT / changed).exists()
    if changed.parts[0] == "tests" and len(changed.parts) > 2:
        return [path if there and changed.match("test_*.py") else "/".join(changed.parts[:2])]
    for folder in map(str, changed.parents):
        if folder in TESTS:
            examples = [path] if there and changed.parts[0] == "src" and changed.suffix == ".py" else []
            return examples + [f"tests/{name}" for name in TESTS[folder].split()]
    return ["tests/docs"] if changed.match("*.md") else ALL


def tests_of_all(paths: Iterable[str]) -> list[str]:
    """The tests that changes of these files concern, none of them twice."""
    found = {test for path in paths for test in tests_of(path)} | set(ALWAYS)
    return (
        ALL
        if found >= set(ALL)
        else sorted(test for test in found if found.isdisjoint(map(str, PurePosixPath(test).parents)))
    )


def _changed(since: str) -> list[str]:
    """The files that differ from where this branch left ``since``, committed or not, and new ones."""

    def git(*command: str) -> list[str]:
        return subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()

    return git("diff", "--name-only", git("merge-base", since, "HEAD")[0]) + git(
        "ls-files", "--others", "--exclude-standard"
    )


if __name__ == "__main__":
    print(*tests_of_all(_changed(sys.argv[1])))
