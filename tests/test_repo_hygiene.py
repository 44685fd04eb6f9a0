"""What every file of the repository keeps to."""

from __future__ import annotations

import ast
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_LINES = 500


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """The sources, parsed once."""
    return {path: ast.parse(path.read_text()) for path in SOURCES}


def test_there_are_sources_to_check() -> None:
    assert ROOT / "src" / "holdfast" / "errors.py" in SOURCES


def test_no_module_is_longer_than_five_hundred_lines() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_public_module_says_what_it_is(trees: dict[Path, ast.Module]) -> None:
    silent = [
        name(path) for path, tree in trees.items() if not path.name.startswith("_") and ast.get_docstring(tree) is None
    ]
    assert silent == []


def test_every_name_in_all_exists(trees: dict[Path, ast.Module]) -> None:
    missing = []
    for path, tree in trees.items():
        bound = set(_bound_names(tree))
        for wanted in _exported(tree):
            if wanted not in bound and "*" not in bound and "__getattr__" not in bound:
                missing.append(f"{name(path)}: {wanted}")
    assert missing == []


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=items) | ast.Tuple(elts=items)):
                return [item.value for item in items if isinstance(item, ast.Constant)]
    return []


def _bound_names(tree: ast.AST) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
    return names


def test_no_handler_swallows_every_exception(trees: dict[Path, ast.Module]) -> None:
    swallowed = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(item, ast.Pass) for item in node.body):
                caught = ast.unparse(node.type) if node.type else ""
                if caught in ("", "Exception", "BaseException"):
                    swallowed.append(f"{name(path)}:{node.lineno}")
    assert swallowed == []


def the_readme_links_to_files_that_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_make_help_explains_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: ([a-z-]+)$", text, re.MULTILINE))
    explained = set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE))
    assert phony - explained == {"python"}
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"make {target}" in shown for target in explained)


@pytest.mark.parametrize("path", ["LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "src/holdfast/py.typed"])
def test_a_release_needs_this_file(path: str) -> None:
    assert (ROOT / path).exists()


def a_function_of_a_test_module_is_collected_or_used(pytestconfig: pytest.Config) -> None:
    """A test whose name does not begin as pytest expects would never run."""
    collected = pytestconfig.getini("python_functions")
    idle = []
    for path in ROOT.glob("tests/**/test_*.py"):
        text = path.read_text()
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef) or any(fnmatch(node.name, pattern) for pattern in collected):
                continue
            fixture = any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not fixture and len(re.findall(rf"\b{node.name}\b", text)) == 1:
                idle.append(f"{name(path)}: {node.name}")
    assert idle == []
