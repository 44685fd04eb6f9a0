"""Changes a line of a module at a time, and tells which changes its tests do not notice.

    make mutants ARGS='--module runtime/protocol/pacing.py --fraction 0.2 --seed 1'

Cosmic Ray makes the changes. Its own runner starts a Python for each, which takes seconds to import Holdfast; here the tests
are collected once, and each change is made in a fork, in the code of the functions that are there already.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import parso
import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from hypothesis import Phase, settings

from mutants.modules import EQUIVALENT, MODULES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
LEAST_NOTICED = 0.85
_SHORTEST_LIMIT = 20.0
"""Seconds that the tests of a change may take, at least; else four times those without it."""
_OPERATORS = {
    *("AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
    *(f"ReplaceComparisonOperator_{a}" for a in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")),
    *(f"ReplaceBinaryOperator_{a}" for a in ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Mod_FloorDiv")),
    *(f"ReplaceBinaryOperator_{a}" for a in ("BitOr_BitAnd", "BitAnd_BitOr", "LShift_RShift", "RShift_LShift")),
}
"""One change of each kind: the others of Cosmic Ray hardly say more, and take ten times as long."""


class Mutant(NamedTuple):
    """A changed line, and the code of the functions that it changes."""

    number: int
    before: str
    after: str
    codes: list[tuple[CodeType, CodeType]]


def mutants(path: Path, fraction: float = 1.0, seed: str = "") -> list[Mutant]:
    """The changes of a module's functions, or a random draw of them, in the order of the lines."""
    source = path.read_text()
    original = compile(source, str(path), "exec", dont_inherit=True)
    ways = list(_changes(source))
    drawn = random.Random(seed).sample(ways, max(1, round(fraction * len(ways))))  # before a change is made, which is slow
    return sorted((m for way in drawn if (m := _mutant(path, source, original, way()))), key=lambda m: m[:3])


def _mutant(path: Path, source: str, original: CodeType, changed: str | None) -> Mutant | None:
    try:
        code = compile(changed or source, str(path), "exec", dont_inherit=True)
    except SyntaxError:
        return None
    codes = list(_changed(original, code))
    if changed is None or not codes:  # an annotation, or a constant of the module
        return None
    lines = zip(source.splitlines(), changed.splitlines())
    number, (before, after) = next((n, pair) for n, pair in enumerate(lines, 1) if pair[0] != pair[1])
    if before.strip().startswith("assert "):  # what cannot be
        return None
    return Mutant(number, before.strip(), after.strip(), codes)


def _changes(source: str) -> Iterator[Callable[[], str | None]]:
    tree = get_ast(source)
    for name in sorted(plugins.operator_names()):
        if name.rpartition("/")[2] in _OPERATORS:
            operator = plugins.get_operator(name)()
            count = sum(len(list(operator.mutation_positions(node))) for node in ast_nodes(tree))
            for occurrence in range(count):
                yield partial(mutate_code, source, operator, occurrence)
    for changed in _without_a_statement(source):
        yield partial(str, changed)


def _without_a_statement(source: str) -> Iterator[str]:
    """Leave out each call and each assignment, which no operator of Cosmic Ray does."""
    lines = source.splitlines(keepends=True)
    for node in ast_nodes(parso.parse(source)):
        if node.type != "simple_stmt" or node.children[0].type not in ("expr_stmt", "atom_expr", "return_stmt", "del_stmt"):
            continue
        (first, column), (last, end) = node.children[0].start_pos, node.children[0].end_pos
        kept = lines[first - 1][:column] + "pass" + "\n" * (last - first) + lines[last - 1][end:]
        yield "".join([*lines[: first - 1], kept, *lines[last:]])


def _changed(original: CodeType, changed: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions and methods whose code differs."""
    codes = [[const for const in code.co_consts if isinstance(const, CodeType)] for code in (original, changed)]
    for before, after in zip(*codes):
        if before == after:
            continue
        if before.co_flags & 2:  # locals in slots: a function; otherwise the body of a class
            if before.co_freevars == after.co_freevars:  # or no function can take the code, as without its super()
                yield before, after
        else:
            yield from _changed(before, after)


class Forks:
    """A plugin of pytest, which runs the collected tests in a fork for each change."""

    def __init__(self, path: Path, chosen: list[Mutant], equivalent: dict[str, str]) -> None:
        self._path = path
        self._chosen = chosen
        self._equivalent = equivalent
        self.noticed = 0
        self.judged = 0
        self.problem = ""

    def pytest_sessionstart(self) -> None:
        """Let Hypothesis shrink nothing, and try no example of another change again."""
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", settings.get_profile("holdfast"), phases=phases, database=None)
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: Any) -> Any:
        """Take the place of the tests' own run."""
        if session.testsfailed:
            self.problem = "the tests cannot be collected"
            return True
        self._reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        functions = [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename == str(self._path)]
        started = time.monotonic()
        if (code := self._run(None, functions, 1800)) is not False:
            return code  # None: this is the fork
        if self.outcome != 0:
            self.problem = "its tests fail without a change"
            return True
        limit = max(_SHORTEST_LIMIT, 4 * (time.monotonic() - started))
        for mutant in self._chosen:
            if not {mutant.before, f"{mutant.before} -> {mutant.after}"}.isdisjoint(self._equivalent):
                continue
            if (code := self._run(mutant, functions, limit)) is not False:
                return code
            self.judged += 1
            if self.outcome == 0:
                print(f"  {mutant.number}: {mutant.before}\n      -> {mutant.after}", flush=True)
            else:
                self.noticed += 1
        return True

    def _run(self, mutant: Mutant | None, functions: list[FunctionType], limit: float) -> Any:
        """Run the tests in a fork; None in the fork itself, False in this process."""
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            for before, after in [] if mutant is None else mutant.codes:
                for function in functions:
                    if function.__code__ == before:
                        function.__code__ = after
            self._reporter._tw._file = io.StringIO()
            return None
        until = time.monotonic() + limit
        while time.monotonic() < until:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.outcome = os.waitstatus_to_exitcode(status)
                return False
            time.sleep(0.01)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.outcome = -1  # a loop without end is noticed
        return False


def judge(module: str, fraction: float, seed: int) -> bool:
    """Change one module, in this process, which must not have imported Holdfast; returns whether enough is noticed."""
    path = PACKAGE / module
    chosen = mutants(path, fraction, f"{seed} {module}")
    forks = Forks(path, chosen, EQUIVALENT.get(module, {}))
    # pytest rewrites the asserts of Holdfast, which has a plugin: its functions would not be those of the source.
    arguments = ["-x", "-q", "-n", "0", "--assert=plain", "--no-header", "--no-summary"]
    arguments += ["-m", "not spark and not kafka and not fault"]
    print(f"{module}: {len(chosen)} changes", flush=True)
    own = os.getpid()
    try:
        code = pytest.main([*arguments, *(str(ROOT / "tests" / test) for test in MODULES[module])], plugins=[forks])
    except BaseException:  # such as pytest's own, about files that a changed program has left open
        if os.getpid() == own:
            raise
        os._exit(1)
    if os.getpid() != own:
        os._exit(int(code))
    if forks.problem:
        print(f"{module}: {forks.problem}", flush=True)
        return False
    rate = forks.noticed / max(1, forks.judged)
    print(f"{module}: {forks.noticed} of {forks.judged} noticed, {rate:.0%}", flush=True)
    return rate >= LEAST_NOTICED


def main() -> int:
    """Judge each module in a process of its own."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.split("\n")[0])
    parser.add_argument("--module", action="append", choices=sorted(MODULES), help="only this one; may be repeated")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the changes, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    options = parser.parse_args()
    os.environ["HOLDFAST_PURE"] = "1"  # a compiled module has no code to change
    good = True
    for module in options.module or MODULES:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if judge(module, options.fraction, options.seed) else 1)
        good = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
