"""The live view of a job's REST API and its outputs: a screen on a terminal, otherwise plain lines."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol, TextIO

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

__all__ = ["METRICS", "Figures", "PlainView", "RichView", "Shown", "grid", "job_rows", "moment", "view_for"]

METRICS = (
    "numRecordsInPerSecond",
    "numRecordsIn",
    "epochDuration",
    "checkpointDuration",
    "stateSizeBytes",
    "lastCheckpointSize",
    "currentInputWatermark",
    "lastCompletedCheckpointId",
)
"""The metrics that the view requests."""

_ALERTS_SHOWN = 10
_MERCHANTS_SHOWN = 5


class Shown(Protocol):
    """The content of a view."""

    def rows(self) -> list[tuple[str, str]]:
        """The figures with their names."""

    def screen(self) -> Group:
        """Everything, as a screen."""


@dataclass
class Figures:
    """The content of the view of payments."""

    url: str = ""
    status: str = "CREATED"
    metrics: Mapping[str, float] = field(default_factory=dict)
    planted: int = 0
    """Planted episodes of fraud that have begun in the job's input."""
    caught: int = 0
    """Planted episodes with an alert."""
    false_alerts: int = 0
    """Alerts on payments without fraud."""
    by_rule: Mapping[str, int] = field(default_factory=dict)
    """Number of alerts by rule."""
    latest: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=_ALERTS_SHOWN))
    minute: int = 0
    """Start of the latest minute with totals, ms."""
    totals: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Merchant -> payments and their sum, of that minute."""
    total_lines: int = 0

    @property
    def alerts(self) -> int:
        """All alerts since the job was started."""
        return sum(self.by_rule.values())

    @property
    def precision(self) -> float | None:
        """Share of alerts on planted fraud."""
        return (self.alerts - self.false_alerts) / self.alerts if self.alerts else None

    @property
    def recall(self) -> float | None:
        """Share of planted episodes with an alert."""
        return min(self.caught / self.planted, 1.0) if self.planted else None

    def take_alerts(self, alerts: Iterable[Mapping[str, Any]]) -> list[str]:
        """Keep the latest alerts; return a line for each of these."""
        new = list(alerts)
        self.latest.extend(new)
        return [
            f"ALERT {moment(alert['ts_ms'])} {alert['customer']} {alert['rule']}: {alert['detail']}"
            for alert in new[-_ALERTS_SHOWN:]
        ]

    def take_totals(self, totals: Iterable[Mapping[str, Any]]) -> None:
        """Add totals per merchant and minute; keep the latest minute."""
        for line in totals:
            self.total_lines += 1
            if line["minute_ms"] > self.minute:
                self.minute, self.totals = line["minute_ms"], {}
            if line["minute_ms"] == self.minute:
                self.totals[line["merchant"]] = (line["payments"], line["sum"])

    def rows(self) -> list[tuple[str, str]]:
        """The figures with their names."""
        watermark = self.metrics.get("currentInputWatermark", -1)
        return [
            *job_rows(self.status, self.metrics),
            ("watermark", moment(int(watermark)) if watermark > 0 else "-"),
            ("alerts", f"{self.alerts:,}"),
            ("precision", _percent(self.precision)),
            ("recall", f"{_percent(self.recall)} of {self.planted:,} planted" if self.planted else "-"),
            ("totals", f"{self.total_lines:,}"),
        ]

    def screen(self) -> Group:
        """The job, the totals of the latest minute, and the latest alerts."""
        job = grid(self.rows())
        totals = Table.grid(padding=(0, 2))
        top = sorted(self.totals.items(), key=lambda item: -item[1][1])[:_MERCHANTS_SHOWN]
        for merchant, (payments, amount) in top:
            totals.add_row(merchant, f"{payments:,}", f"{amount:,.2f}")
        if not top:
            totals.add_row(Text("the first minute is not over yet", style="dim"))
        minute = f"payments per merchant, {moment(self.minute)}" if self.minute else "payments per merchant"
        alerts = Table.grid(padding=(0, 2))
        for alert in reversed(self.latest):
            mark = Text("planted", style="green") if alert["planted"] else Text("no fraud", style="red")
            alerts.add_row(
                moment(alert["ts_ms"]), alert["customer"], Text(alert["rule"], style="bold"), mark, alert["detail"]
            )
        rules = "  ".join(f"{rule} {count:,}" for rule, count in sorted(self.by_rule.items()))
        return Group(
            Columns([Panel(job, title="Holdfast on Spark"), Panel(totals, title=minute)]),
            Panel(alerts, title="latest alerts", subtitle=rules or None),
            Text(f"metrics: {self.url}   Ctrl-C stops; the next start resumes", style="dim"),
        )


class PlainView:
    """One line per second and one per event, for pipes, logs and CI."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._due = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *failure: object) -> None:
        self._out.flush()

    def show(self, figures: Shown, news: Iterable[str]) -> None:
        """Print the news, and the figures at most once per second."""
        for line in news:
            self.note(line)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + 1
            self.note("  ".join(f"{name} {value}" for name, value in figures.rows()))

    def note(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._out, flush=True)


class RichView:
    """A screen redrawn in place."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def __enter__(self) -> RichView:
        self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._live.stop()

    def show(self, figures: Shown, news: Iterable[str]) -> None:
        """Redraw."""
        self._live.update(figures.screen(), refresh=True)

    def note(self, text: str) -> None:
        """Print a line above the screen."""
        self._console.print(text, highlight=False, markup=False)


def view_for(out: TextIO = sys.stdout) -> PlainView | RichView:
    """Return the view that suits the output."""
    return RichView(out) if out.isatty() else PlainView(out)


def job_rows(status: str, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """What is known of any job."""

    def number(name: str, shape: str = "{:,.0f}", factor: float = 1) -> str:
        value = metrics.get(name)
        return "-" if value is None else shape.format(value * factor)

    completed = "lastCompletedCheckpointId" in metrics
    checkpoint = f"{number('lastCompletedCheckpointId')} in {number('checkpointDuration', '{:,.0f} ms')}"
    state = f"{number('stateSizeBytes', '{:,.1f} MB', 1e-6)} (+{number('lastCheckpointSize', '{:,.2f} MB', 1e-6)})"
    return [
        ("job", status.lower()),
        ("events/s", number("numRecordsInPerSecond")),
        ("events", number("numRecordsIn")),
        ("epoch", number("epochDuration", "{:,.0f} ms")),
        ("checkpoint", checkpoint if completed else "-"),
        ("state", state if completed else "-"),
    ]


def grid(rows: Iterable[tuple[str, str]]) -> Table:
    """Figures with their names, as a table."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value, style="bold"))
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def moment(ms: int) -> str:
    """The time of day, in UTC."""
    return datetime.fromtimestamp(ms / 1000, tz=timezone.utc).strftime("%H:%M:%S")
