"""Imports point one way: between layers (the contract in pyproject.toml) and between the files of a package."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pyspark
from pyspark import broadcast, conf
from pyspark.core import context, rdd
from pyspark.sql import session
from pyspark.sql.classic import dataframe

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


PRIVATE = {
    "runtime/jvm/pyspark_internals.py": {
        "_active_spark_context",
        "_bypass_serializer",
        "_ensure_initialized",
        "_gateway",
        "_jbroadcast",
        "_jdf",
        "_jrdd",
        "_jsc",
        "_jsparkSession",
        "_jvm",
        "_pickled_broadcast_vars",
        "_python_includes",
        "pyspark.cloudpickle",
        "pyspark.java_gateway",
        "pyspark.serializers",
        "pyspark.util",
    },
    "runtime/spark/pyspark_daemon.py": {"pyspark.daemon", "pyspark.worker"},
}
"""The private parts of PySpark that may be used, by file."""
PUBLIC = ("pyspark.sql", "pyspark.errors")


def names_of_pyspark() -> set[str]:
    """The private attributes of PySpark's objects and classes."""
    sources = map(inspect.getsource, (context, rdd, broadcast, conf, session, dataframe))
    return {name for source in sources for name in re.findall(r"\b(?:self|cls|Spark\w+)\.(_[a-z]\w*)", source)}


def private_parts(tree: ast.AST, private: Set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in private and ast.unparse(node.value) not in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("pyspark."))
        elif isinstance(node, ast.ImportFrom) and node.module == "pyspark":
            yield from (f"pyspark.{each.name}" for each in node.names if each.name not in pyspark.__all__)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark."):
            yield str(node.module)


def the_private_parts_of_pyspark_are_used_in_one_module() -> None:
    private = names_of_pyspark()
    named = re.compile(rf"\b(?:pyspark|{'|'.join(private)})\b")
    found = {}
    for path in (ROOT / "src" / "holdfast").rglob("*.py"):
        text = path.read_text()
        if not named.search(text):
            continue
        parts = {part for part in private_parts(ast.parse(text), private) if not part.startswith(PUBLIC)}
        if parts:
            found[str(path.relative_to(ROOT / "src" / "holdfast"))] = parts
    assert found == PRIVATE, "reach them through holdfast.runtime.jvm.pyspark_internals, and list them here"


def a_private_part_is_found_wherever_it_is_used() -> None:
    program = "from pyspark import RDD, shell\nimport pyspark.sql\nfrom pyspark.util import x\na.b._jsc.stop()\nself._jsc"
    found = [part for part in private_parts(ast.parse(program), names_of_pyspark()) if not part.startswith(PUBLIC)]
    assert sorted(found) == ["_jsc", "pyspark.shell", "pyspark.util"]
