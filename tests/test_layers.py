"""Imports point one way: between layers (the contract in pyproject.toml) and between the files of a package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent

STREAMS = {
    f"holdfast.datastream.{name}"
    for name in (
        *("data_stream", "keyed_stream", "windowed_stream", "all_windowed_stream", "connected_streams", "joined_streams"),
        *("operations.batch_operations", "operations.environment_sources", "stream_execution_environment"),
    )
} | {f"holdfast.table.{name}" for name in ("tables", "grouped", "windowed_streams")}
"""A fluent API: the methods of these classes return objects of each other."""


def the_layers_import_only_what_lies_below_them() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def circle(imports: Mapping[str, Set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one repeated at the end; empty if there is none."""
    try:
        TopologicalSorter({m: {t for t in to if not {m, t} <= STREAMS} for m, to in imports.items()}).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def the_files_of_a_package_import_each_other_in_no_circle() -> None:
    """Imports for type checking and inside functions count, too."""
    graph = grimp.build_graph("holdfast", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, imports.values())) > 1000
    assert not circle(imports)


def a_circle_is_found_but_for_the_streams() -> None:
    streams = sorted(STREAMS)[:2]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in (["b", "c", "b"], ["c", "b", "c"])
    assert not circle({"a": {"b", "c"}, "b": {"c"}, streams[0]: {streams[1]}, streams[1]: {streams[0]}})
