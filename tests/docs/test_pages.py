"""The documentation's links lead somewhere, the tests that it names exist, and its code is code."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_heading(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_reached_from_the_map() -> None:
    reached = {ROOT / "docs" / "index.md"}
    waiting = list(reached)
    while waiting:
        page = waiting.pop()
        for target in re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", page.read_text()):
            there = (page.parent / target).resolve()
            if "://" not in target and there.exists() and there not in reached:
                reached.add(there)
                waiting.append(there)
    assert set(PAGES) - {ROOT / "README.md"} <= reached


def test_every_module_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`([\w/]+/\w+\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    assert len(named) > 80
    assert {module for module in named if not (ROOT / "src" / "holdfast" / module).exists()} == set()


def test_every_test_that_the_guarantees_name_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text())
    assert named
    missing = []
    for path, function in named:
        file = ROOT / "tests" / path
        if not file.exists() or not re.search(rf"^def {function}\(", file.read_text(), re.MULTILINE):
            missing.append(f"{path}::{function}")
    assert missing == []


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_example_is_python_and_imports_what_exists(page: Path) -> None:
    for code in blocks(page):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("holdfast"):
                module = importlib.import_module(node.module)
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert missing == [], f"{page.name}: {node.module} has no {missing}"


PUBLIC = {"cep", "common", "connectors.base", "datastream", "errors", "notebook", "spark", "state_api", "table", "testing"}


def the_code_of_pages_and_examples_imports_public_packages_only() -> None:
    texts = [block for page in PAGES for block in blocks(page)]
    texts += [path.read_text() for path in (ROOT / "examples").rglob("*.py")]
    texts += [path.read_text() for path in (ROOT / "src/holdfast/cli/template").rglob("*.template")]
    imported = {name for text in texts for name in re.findall(r"^\s*(?:from|import) holdfast\.([\w.]+)", text, re.MULTILINE)}
    assert len(imported) > 20
    private = {name for name in imported if not any(f"{name}.".startswith(f"{public}.") for public in PUBLIC)}
    assert private == set()


def a_package_says_whether_programs_may_import_it() -> None:
    named = {f"holdfast.{each}" for each in PUBLIC}
    assert named == set(re.findall(r"``(holdfast\.[\w.]+)``", holdfast.__doc__ or ""))
    for package in (ROOT / "src/holdfast").glob("*/__init__.py"):
        name = package.parent.name
        said = ast.get_docstring(ast.parse(package.read_text())) or ""
        assert ("Private" in said) == (name not in PUBLIC), f"the docstring of holdfast.{name}"
