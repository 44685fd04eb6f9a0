"""What `make mutants` changes and runs is there."""

from __future__ import annotations

from pathlib import Path

from .modules import EQUIVALENT, MODULES

ROOT = Path(__file__).resolve().parents[2]


def the_modules_and_their_tests_are_there():
    package, tests = ROOT / "src" / "holdfast", ROOT / "tests"
    assert [module for module in MODULES if not (package / module).is_file()] == []
    assert [test for own in MODULES.values() for test in own if not (tests / test.split("::")[0]).is_file()] == []
    for module, lines in EQUIVALENT.items():
        held = {line.strip() for line in (package / module).read_text().splitlines()}
        assert {line.split(" -> ")[0] for line in lines} <= held, module
