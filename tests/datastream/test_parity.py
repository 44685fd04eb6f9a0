"""Holdfast against the surface of PyFlink's DataStream API, name by name and signature by signature.

The data lies in ``parity/``: ``surface.txt`` has PyFlink's names; ``pending.txt`` those of priority 1 and 2 that Holdfast
does not have yet; ``exclusions.txt`` those that it will not have, each with the reason.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from holdfast.common.system.jvm_only import NotHere

DATA = Path(__file__).parent / "parity"


@dataclass(frozen=True)
class Row:
    """One public name of PyFlink."""

    module: str
    name: str
    priority: int
    parameters: str | None
    static: bool

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"

    @cached_property
    def signature(self) -> inspect.Signature:
        namespace: dict[str, Any] = {}
        arguments = ast.parse(f"def f({self.parameters}): ...").body[0].args  # type: ignore[attr-defined]
        arguments.defaults = [_stand_in(default) for default in arguments.defaults]
        exec(f"def f({ast.unparse(arguments)}): ...", namespace)
        return inspect.signature(namespace["f"])


def _stand_in(default: ast.expr) -> ast.expr:
    """The default itself if it is a plain value; else ``...``, which is equal to any default."""
    try:
        eval(compile(ast.Expression(default), "", "eval"), {})
    except NameError:
        return ast.Constant(...)
    return default


def _lines(file: str) -> Iterator[str]:
    for line in (DATA / file).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def _rows() -> Iterator[Row]:
    module = ""
    for line in _lines("surface.txt"):
        if line.startswith("["):
            module = line.strip("[]")
            continue
        found = re.fullmatch(r"([123]) (static )?([\w.]+)(?:\((.*)\))?", line)
        assert found, line
        priority, static, name, parameters = found.groups()
        yield Row(module, name, int(priority), parameters, bool(static))


ROWS = list(_rows())
BY_NAME = {row.full_name: row for row in ROWS}
PENDING = {name: feature for feature, _, name in (line.partition(" ") for line in _lines("pending.txt"))}
EXCLUDED = {name: reason for name, _, reason in (line.partition(": ") for line in _lines("exclusions.txt"))}


class Missing(Exception):
    """Holdfast has no such name."""


def _find(row: Row) -> tuple[Any, Any]:
    """What Holdfast has under the name, and the class that it belongs to."""
    try:
        found: Any = importlib.import_module(f"holdfast.{row.module}")
    except ModuleNotFoundError as error:
        raise Missing(f"no module {error.name}") from None
    owner: Any = None
    for part in row.name.split("."):
        owner, before = found, found
        try:
            found = getattr(before, part)
        except NotHere:
            raise
        except AttributeError:
            if part not in getattr(before, "__annotations__", {}):
                raise Missing(f"no {part}") from None
    return found, owner


def _difference(row: Row, found: Any, owner: Any) -> str:
    """How a call that PyFlink takes would fail here; empty if none would."""
    if row.parameters is None:
        return ""
    if not callable(found):
        return "is not callable"
    if inspect.isclass(found) and "." in row.name and not row.static and not inspect.isclass(owner):
        return ""
    ours = list(inspect.signature(found).parameters.values())
    bound = (
        inspect.isclass(found)
        or inspect.ismodule(owner)
        or isinstance(inspect.getattr_static(owner, row.name.split(".")[-1]), (staticmethod, classmethod))
    )
    if row.static and not bound:
        return "is not static"
    if not bound:
        ours = ours[1:]
    theirs = [p for p in row.signature.parameters.values() if not p.name.startswith("j_")]  # objects of the JVM
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if {p.kind for p in ours} >= set(kinds):
        return ""  # takes anything
    for position, wanted in enumerate(theirs):
        if position >= len(ours):
            return f"has no parameter {wanted.name}"
        given = ours[position]
        if wanted.kind != given.kind:
            return f"takes {given} in the place of {wanted}"
        if wanted.kind not in kinds and wanted.name != given.name:
            return f"calls the parameter {wanted.name} {given.name}"
        if wanted.default is not wanted.empty:
            if given.default is given.empty:
                return f"wants {wanted.name}, which has a default"
            if wanted.default is not ... and given.default is not ... and given.default != wanted.default:
                return f"has {wanted.name}={given.default!r}, not {wanted.default!r}"
    for extra in ours[len(theirs) :]:
        if extra.default is extra.empty and extra.kind not in kinds:
            return f"wants {extra.name}, which PyFlink does not have"
    return ""


def _fault(row: Row) -> str:
    try:
        found, owner = _find(row)
    except Missing as error:
        return str(error)
    except NotImplementedError as error:
        return "" if row.priority == 3 and len(str(error)) > 20 else f"raises NotImplementedError: {error}"
    return _difference(row, found, owner)


def _known(row: Row, names: Iterable[str]) -> bool:
    """Whether the name, or the class that it belongs to, is listed. A listed name may have ``*`` in it."""
    return any(fnmatchcase(row.full_name, name) or row.full_name.startswith(f"{name}.") for name in names)


def a_name_of_priority_1_or_2_exists_with_its_signature_or_is_pending() -> None:
    faults = {
        row.full_name: fault
        for row in ROWS
        if row.priority < 3 and not _known(row, PENDING) and not _known(row, EXCLUDED) and (fault := _fault(row))
    }
    assert faults == {}


def a_name_of_priority_3_is_accepted_or_refused_with_a_reason() -> None:
    faults = {
        row.full_name: fault
        for row in ROWS
        if row.priority == 3 and not _known(row, PENDING) and not _known(row, EXCLUDED) and (fault := _fault(row))
    }
    assert faults == {}


@pytest.mark.parametrize("listed", [PENDING, EXCLUDED], ids=["pending", "excluded"])
def a_listed_name_is_pyflinks_and_does_not_exist_here(listed: dict[str, str]) -> None:
    for name in listed:
        rows = [row for row in ROWS if _known(row, [name])]
        assert rows, f"{name} is no name of PyFlink"
        assert any(map(_fault, rows)), f"{name} exists: take it from the list"


def an_exclusion_tells_its_reason() -> None:
    assert len(EXCLUDED) <= 40, "too many: an exclusion is an exception"
    assert [name for name, reason in EXCLUDED.items() if len(reason) < 20] == []


def a_name_is_told_once() -> None:
    assert [
        row for row, count in Counter((row.full_name, row.parameters is None) for row in ROWS).items() if count > 1
    ] == []
    assert PENDING.keys() & EXCLUDED.keys() == set()


@pytest.mark.parametrize("package", ["datastream", "common"])
def the_names_that_pyflink_exports_at_the_top_are_exported_at_the_top(package: str) -> None:
    module = importlib.import_module(f"holdfast.{package}")
    wanted = next(line for line in _lines("exports.txt") if line.startswith(f"{package}:")).split()[1:]
    pending = {name.rpartition(".")[2] for name in (*PENDING, *EXCLUDED)}
    refused = {row.name for row in ROWS if row.priority == 3 and _refused(row)}
    assert [name for name in wanted if name not in {*module.__all__, *pending, *refused}] == []


def _refused(row: Row) -> bool:
    try:
        _find(row)
    except Missing:
        return False
    except NotImplementedError:
        return True
    return False
