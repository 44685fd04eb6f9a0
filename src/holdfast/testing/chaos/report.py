"""A campaign's report: faults by kind, kills, records in and out, the verdict, seconds until new output."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Injection", "Report", "summary"]


@dataclass
class Injection:
    """One fault and its effects."""

    at: float
    """Seconds since the start of the campaign."""
    fault: str
    what: str
    recovered: float | None = None
    """Seconds from the fault, or from its end if it lasted, until newer output was visible."""


@dataclass
class Report:
    """The outcome of one scenario's campaign."""

    scenario: str
    seed: int
    directory: Path
    seconds: float = 0.0
    injections: list[Injection] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    """The number of processes of each kind killed as a fault."""
    drivers: int = 0
    restarts_in_place: int = 0
    events: int = 0
    outputs: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def table(self) -> str:
        """The figures as a table."""
        return summary([self])


def summary(reports: Sequence[Report]) -> str:
    """The figures of one or several campaigns as a table."""
    injections = [i for report in reports for i in report.injections]
    kills: Counter[str] = sum((report.kills for report in reports), Counter())
    rows = [f"{'fault':<52}{'times':>6}{'new output after, median s':>28}{'longest s':>11}"]
    rows += [_row(name, [i for i in injections if i.fault == name]) for name in sorted({i.fault for i in injections})]
    rows += [_row("all", injections)]
    by_kind = ", ".join(f"{number} {kind}s" for kind, number in sorted(kills.items()))
    rows.append(f"killed: {kills.total()} processes ({by_kind or 'none'})")
    for report in reports:
        rows.append(
            f"{report.scenario}, seed {report.seed}, {report.seconds:.0f} s: {len(report.injections)} faults, "
            f"{report.kills.total()} kills, {report.events} records in, {report.outputs} records out, "
            f"{report.drivers} drivers, {report.restarts_in_place} restarts in place"
        )
        rows += [f"VIOLATION: {violation}" for violation in report.violations]
        if report.violations:
            rows.append(f"FAILED: everything is kept in {report.directory}")
    if reports and not any(report.violations for report in reports):
        rows.append("verdict: nothing lost, nothing twice, in order")
    return "\n".join(rows)


def _row(name: str, injections: Sequence[Injection]) -> str:
    taken = [i.recovered for i in injections if i.recovered is not None]
    shown = f"{statistics.median(taken):>28.1f}{max(taken):>11.1f}" if taken else f"{'-':>28}{'-':>11}"
    return f"{name:<52}{len(injections):>6}{shown}"
