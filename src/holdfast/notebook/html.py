"""Pages for a notebook's cells. Pure: from snapshots to HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.values.tabular import as_record
from holdfast.metrics.job import TERMINAL, JobSnapshot

__all__ = ["job_html", "table_html"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 200, 66, 46, 14
_COLOURS = {"FAILED": "#c62828", "RESTARTING": "#c77700", "FINISHED": "#1565c0", "CANCELED": "#616161", "RUNNING": "#2e7d32"}
_MOST_CHARACTERS = 120


def job_html(job: JobSnapshot) -> str:
    """The state of a job: its status and rates, its graph, and the error that it failed with."""
    values = job.values
    seconds = ((job.ended_ms if job.status in TERMINAL else job.now_ms) - job.started_ms) / 1000
    facts = [
        f"{_number(values['numRecordsInPerSecond'])} records/s in, {_number(values['numRecordsOutPerSecond'])} out",
        f"{_number(values['numRecordsIn'])} in, {_number(values['numRecordsOut'])} out so far",
        f"backlog {_number(values['pendingRecords'])}",
        f"{job.counts.completed} checkpoints",
        f"{values['numRestarts']:.0f} restarts",
        f"{seconds:.0f} s",
    ]
    if values["currentInputWatermark"] > MIN_TIMESTAMP and values["currentInputWatermark"] < 1 << 53:
        at = datetime.fromtimestamp(values["currentInputWatermark"] / 1000, timezone.utc)
        facts.append(f"watermark {at:%Y-%m-%d %H:%M:%S} UTC")
    colour = _COLOURS.get(job.status, "#616161")
    said = " &nbsp;·&nbsp; ".join(facts)
    head = f'<b>{escape(job.name)}</b> <b style="color:{colour}">{job.status}</b> &nbsp; {said}'
    error = ""
    if job.failures and job.status in ("FAILED", "RESTARTING"):
        error = f'<pre style="color:#c62828;white-space:pre-wrap">{escape(job.failures[0].text)}</pre>'
    return f"<div>{head}</div>{_graph(job)}{error}"


def _graph(job: JobSnapshot) -> str:
    """The job's vertices, from left to right, as an SVG picture; the busier, the redder."""
    nodes = {node["id"]: node for node in job.plan.get("nodes", [])}
    measured = {vertex.id: vertex.values for vertex in job.vertices}
    levels: dict[str, int] = {}

    def level(node_id: str) -> int:
        if node_id not in levels:
            levels[node_id] = 1 + max((level(each["id"]) for each in nodes[node_id]["inputs"]), default=-1)
        return levels[node_id]

    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for node_id in nodes:
        column = level(node_id)
        row = rows[column] = rows.get(column, -1) + 1
        places[node_id] = (column * (_WIDTH + _GAP_X), row * (_HEIGHT + _GAP_Y))
    if not places:
        return ""
    drawn = []
    for node_id, node in nodes.items():
        x, y = places[node_id]
        for each in node["inputs"]:
            from_x, from_y = places[each["id"]]
            drawn.append(
                f'<path d="M{from_x + _WIDTH} {from_y + _HEIGHT / 2} C{from_x + _WIDTH + _GAP_X / 2} {from_y + _HEIGHT / 2} '
                f'{x - _GAP_X / 2} {y + _HEIGHT / 2} {x} {y + _HEIGHT / 2}" fill="none" stroke="#888"/>'
            )
    for node_id, node in nodes.items():
        drawn.append(_box(*places[node_id], node, measured.get(node_id, {})))
    width = max(x for x, _ in places.values()) + _WIDTH
    picture = "".join(drawn)
    height = max(y for _, y in places.values()) + _HEIGHT
    return (
        f'<svg role="img" aria-label="the graph of the job" viewBox="-2 -2 {width + 4} {height + 4}" '
        f'style="max-width:{width}px;width:100%;margin-top:6px" font-family="sans-serif" font-size="12">{picture}</svg>'
    )


def _box(x: int, y: int, node: Mapping[str, Any], values: Mapping[str, float]) -> str:
    busy = min(1.0, values.get("busyTimeMsPerSecond", 0.0) / 1000)
    name = node["description"]
    lines = (
        name if len(name) <= 29 else f"{name[:28]}…",
        f"×{node['parallelism']}  ·  busy {100 * busy:.0f} %",
        "  ·  ".join(f"{_number(values.get(f'numRecords{way}PerSecond', 0.0))}/s {way.lower()}" for way in ("In", "Out")),
    )
    text = "".join(_line(x + 10, y + 20 + 18 * i, line, bold=i == 0) for i, line in enumerate(lines))
    return (
        f'<g><title>{escape(name)}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" '
        f'fill="hsl({130 - 130 * busy:.0f} 55% 88%)" stroke="hsl({130 - 130 * busy:.0f} 45% 45%)"/>{text}</g>'
    )


def _line(x: int, y: int, text: str, bold: bool) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="#111"{weight}>{escape(text)}</text>'


def table_html(elements: Sequence[Any], total: int, ended: bool) -> str:
    """Elements as a table, under a line that says how many there are."""
    records = [as_record(element) for element in elements]
    names = list(dict.fromkeys(name for record in records for name in record))
    left_out = f", the latest {len(records)} below" if total > len(records) else ""
    head = f"<div>{total:,} rows{left_out}{' · the stream has ended' if ended else ''}</div>"
    if not records:
        return head
    columns = "".join(f"<th>{escape(name)}</th>" for name in names)
    cells = ([_cell(record[name]) if name in record else "" for name in names] for record in records)
    rows = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in cells)
    return f"{head}<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(value: Any) -> str:
    text = str(value)
    return escape(text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…")


def _number(value: float) -> str:
    """Three digits: 1,234,567 is 1.23M."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= bound:
            return f"{value / (1e3 if unit == 'k' else bound):.3g}{unit}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
