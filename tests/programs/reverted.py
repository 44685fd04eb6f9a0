"""Faults that were mended, each put back alone: the drawn programs must find them. ``make sensitivity`` tries all of them.

A fault is a change of one place of a module, made when it is imported: before anything else of Holdfast is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import NamedTuple

__all__ = ["FAULTS", "Fault", "put_back"]

_TIME, _TASK, _CHANNELS = "runtime.time.", "runtime.task.", "runtime.channels."
_WINDOWS, _JOINS = "runtime.operators.windows.", "runtime.operators.joins."


class Fault(NamedTuple):
    """One place of the code with a mend, and without it."""

    module: str
    """Below ``holdfast``."""
    mended: str
    """It occurs once in the module."""
    before: str
    operations: str
    """Those whose programs show it."""


FAULTS = {
    # event time in chains and over rescalings
    "one event time for a chain": Fault(
        _TASK + "chain",
        "        if not self.clock.advance(watermark, self._fire):\n            return\n",
        "        if watermark > self.clock.watermark and not (self.makes_watermarks or self.holds_watermarks):\n"
        "            self.forward(watermark)\n"
        "        if not self.clock.advance(watermark, self._fire):\n            return\n",
        "window_drawing.window,drawing.timers",
    ),
    "event time of operators is not restored": Fault(
        _TIME + "clock",
        "self.watermark = self.fired = time.watermark",
        "self.watermark = self.fired = MIN_TIMESTAMP",
        "window_drawing.window",
    ),
    "key groups that are ahead are forgotten": Fault(
        _TIME + "clock",
        "_Ahead(time.ahead, max_parallelism) if time.ahead else None",
        "None",
        "window_drawing.window",
    ),
    "later input does not hold event time back": Fault(
        _CHANNELS + "channel_state", "    if not later:\n", "    if True:\n", "window_drawing.window,drawing.plus"
    ),
    "a later barrier overtakes records that wait in rounds": Fault(
        _CHANNELS + "channel_state",
        "last.all_processed or merge.end <= watermark",
        "True",
        "window_drawing.window,drawing.plus",
    ),
    "idleness by the wall clock": Fault(
        "runtime.protocol.machine", "int(1000 * self._now.steady)", "self._now.wall_ms", "window_drawing.window"
    ),
    # windows, joins, tables and patterns
    "results of an outer join are late": Fault(
        _JOINS + "interval_join",
        "        pair.stamp = now\n",
        "        pair.stamp = now - 1\n",
        "joins.interval_join,window_drawing.window",
    ),
    "an interval join gives its own elements to functions": Fault(
        _JOINS + "interval_join",
        "one, two = copied(value), copied(each)",
        "one, two = value, each",
        "joins.interval_join",
    ),
    "panes are given to functions": Fault(
        _WINDOWS + "window_base", "same if built_in else self.context.copied", "same", "window_drawing.window"
    ),
    "contents of windows with triggers are given to functions": Fault(
        _WINDOWS + "triggered_windows",
        "own, least = self.context.copied,",
        "own, least = (lambda each: each),",
        "window_drawing.window,window_drawing.counted_windows",
    ),
    "windows of one element share it": Fault(
        _WINDOWS + "merging_windows",
        "given = self.context.copied(value) if left else value",
        "given = value",
        "window_drawing.window",
    ),
    "contents that are merged are given to functions": Fault(
        _WINDOWS + "paned_windows",
        "return merged(copied(content), copied(other))",
        "return merged(content, other)",
        "window_drawing.window",
    ),
    "a collection of one object": Fault(
        "connectors.collection",
        "type(value) in _PLAIN or (type(value) is tuple and _PLAIN.issuperset(map(type, value))) for value in block",
        "True for value in block",
        "drawing.plus,drawing.twice",
    ),
    "map returns one object for several elements": Fault(
        "runtime.operators.stateless",
        "            own_each(mapped, values, held, self.context.copied)\n",
        "            pass\n",
        "drawing.kept,drawing.plus",
    ),
    "keys of a declared type come back as others": Fault(
        _TASK + "chain",
        "key_type=chained.restored_key_type",
        "key_type=chained.key_type",
        "joins.columns",
    ),
    "sessions behind windows merge by the cut": Fault(
        _TASK + "chain",
        "node.is_keyed and any(deadline(0) < 0 for deadline in decided)",
        "False",
        "window_drawing.window",
    ),
    "broadcast state shares its values": Fault(
        "state.cells.broadcast",
        "value if type(value) in _FIXED else self._value_of(stored)",
        "value",
        "joins.broadcast",
    ),
    "a session that is over takes a late element": Fault(
        _WINDOWS + "merging_windows",
        "if self._is_over(window):",
        "if window not in windows and self._is_over(window):",
        "window_drawing.window",
    ),
    "own windows have no deadline": Fault(
        _WINDOWS + "window",
        "        if not isinstance(assigner, PeriodicWindows):\n            return _its_time\n",
        "        if not isinstance(assigner, PeriodicWindows):\n            return None\n",
        "window_drawing.window,window_drawing.windows_of_all",
    ),
    "sliding windows swap two elements": Fault(
        _WINDOWS + "paned_windows",
        "return alive, len(windows) - len(alive)\n",
        "return alive, len(windows) - len(alive) if self.context.clock.passed > self.context.clock.watermark else 0\n",
        "window_drawing.window",
    ),
    "joins of tables give their rows to functions": Fault(
        "table.changes",
        "return self._joiner(copied(left), copied(right))  # the",
        "return self._joiner(left, right)  # the",
        "joins.table",
    ),
    "aggregates of tables are given to functions": Fault("table.changes", "new = copied(old)", "new = old", "joins.table"),
    "a NOT pattern does not stop a repetition in a group": Fault(
        "cep.automaton", "following += behind", "pass", "joins.pattern"
    ),
    "a match's function is given the events of other matches": Fault(
        "cep.operator",
        "list(map(self.own, events))",
        "list(events)",
        "joins.pattern",
    ),
    "triggers of window joins see the number of the input": Fault(
        _WINDOWS + "triggered_windows",
        "self._shown(value[1] if self._spec.two_inputs else value)",
        "self._shown(value)",
        "joins.window_join",
    ),
    "triggers see elements that functions have changed": Fault(
        _WINDOWS + "triggered_windows",
        "self.context.copied if _looks_at_elements(self._trigger) else same",
        "same",
        "window_drawing.window,window_drawing.counted_windows",
    ),
    "sessions that stayed apart merge with any element": Fault(
        _WINDOWS + "merging_windows",
        "return [each for each in chosen if window in each[0]]",
        "return chosen",
        "window_drawing.window",
    ),
    # a program that changed
    "windows of another form are opened as the program's": Fault(
        _WINDOWS + "window",
        'own["form"] == MERGING or stored["form"] == ROWS:\n            return replace(self, evictor=evictor, by_rows=True)',
        "True:\n            return self",
        "window_drawing.window,window_drawing.contents",
    ),
    "windows of another size are opened as the program's": Fault(
        _WINDOWS + "window",
        'for each in ("form", "assigner", "arguments")',
        'for each in ("form",)',
        "window_drawing.contents",
    ),
}


class _PuttingBack(SourceFileLoader):
    def __init__(self, fault: Fault, name: str, path: str) -> None:
        super().__init__(name, path)
        self._fault = fault

    def get_code(self, fullname: str) -> CodeType:
        """The code of the module with the fault."""
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        assert source.count(self._fault.mended) == 1, f"{self._fault.mended!r} is not there once in {path}"
        return compile(source.replace(self._fault.mended, self._fault.before), path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module that has the fault."""
        if name != f"holdfast.{self._fault.module}":
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _PuttingBack(self._fault, name, spec.origin)
        return spec


def put_back(name: str) -> None:
    """Put a fault back, in this process, which has not imported its module."""
    fault = FAULTS[name]
    assert f"holdfast.{fault.module}" not in sys.modules
    sys.meta_path.insert(0, _Finder(fault))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="sensitivity", description=__doc__)
    parser.add_argument("--minutes", default="20", help="of processor time for each fault")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this one; may be repeated")
    parser.add_argument("--seed", default="1", help="the first seed")
    parser.add_argument("--own", action="store_true", help="draw only operations that show the fault")
    options = parser.parse_args()
    for name in options.fault or FAULTS:
        command = [sys.executable, "-m", "programs", "--minutes", options.minutes, "--first", "--no-shrink", "--fault", name]
        command += ["--seed", options.seed, *(["--operations", FAULTS[name].operations] if options.own else [])]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        print(f"{name}: {ran.stdout.splitlines()[-1] if ran.stdout else 'it does not run'}", flush=True)
