"""The documentation builds as a site without a warning, and its API reference is complete."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ["holdfast.datastream", "holdfast.common", "holdfast.cep", "holdfast.table"] + [
    f"holdfast.datastream.connectors.{path.stem}"
    for path in sorted((ROOT / "src/holdfast/datastream/connectors").glob("[a-z]*.py"))
]
"""Modules whose names are the public API."""


def test_the_site_builds_without_a_warning_and_finds_what_is_searched(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    found = {entry["location"] for entry in json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]}
    assert "api/functions/#holdfast.datastream.KeyedProcessFunction.process_element" in found
    assert "state/#key-groups" in found
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]+)"', page.read_text())
        assert [address for address in fetched if "canonical" not in address] == [], f"{page.name} loads from another host"


@pytest.mark.parametrize("module", PUBLIC)
def test_the_api_reference_has_every_public_name(module: str) -> None:
    documented = re.findall(r"^::: (.+)$", "\n".join(p.read_text() for p in (ROOT / "docs/api").glob("*.md")), re.MULTILINE)
    missing = {f"{module}.{name}" for name in importlib.import_module(module).__all__} - set(documented)
    assert missing == set(), "add them to docs/api/"
