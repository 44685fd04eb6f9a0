"""Runs the queries of Nexmark on Holdfast and on Flink in interleaved rounds, and prints a table of rates per core."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import measure
from benchmarks.nexmark.data import data_set
from benchmarks.nexmark.digest import MEASURES
from benchmarks.nexmark.one import FLINK, HOLDFAST, PARTS, number

PAGE = measure.ROOT / "docs" / "nexmark.md"
BEGIN, END = "<!-- nexmark: begin (written by python -m benchmarks nexmark --peers --write) -->", "<!-- nexmark: end -->"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a session."""
    parser.add_argument("--events", default="1m", help="number of events, e.g. 500k for a quick look")
    parser.add_argument("--rounds", type=int, default=2, help="repetitions of each query on each engine")
    parser.add_argument("--only", nargs="*", choices=MEASURES, default=list(MEASURES), help="run only these queries")
    parser.add_argument("--peers", action="store_true", help="also run Flink in Java, in turn with Holdfast")
    parser.add_argument("--write", action="store_true", help="write the table to docs/nexmark.md")
    parser.add_argument("--cap", type=float, default=300, help="seconds after which a run is stopped")


def run(options: argparse.Namespace) -> None:
    """Run the queries in interleaved rounds, and print the table."""
    data_set(number(options.events), PARTS)
    engines = (HOLDFAST, FLINK) if options.peers else (HOLDFAST,)
    results: list[dict[str, Any]] = []
    for turn in range(options.rounds):
        for query in options.only:
            for engine in engines:
                command = ["nexmark_query", query, "--engine", engine, "--events", options.events]
                figures = measure.holdfast(command, options.cap)
                results.append(figures)
                rate = figures.get("events_per_cpu_s", figures.get("error"))
                _say(
                    f"[{turn + 1}/{options.rounds}] {query} {engine}: {rate} events per CPU second, ok: {figures.get('ok')}"
                )
    print("\n".join(table(results)), flush=True)
    wrong = [figures for figures in results if not figures.get("ok")]
    if wrong:
        raise SystemExit(f"{len(wrong)} runs failed or differ from the model: {wrong[0]}")
    if options.write:
        _write(options, results)


def _write(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> None:
    """Put the table into the page."""
    told = (
        f"{time.strftime('%Y-%m-%d')}: {number(options.events):,} events, medians of {options.rounds} rounds. "
        f"{measure.circumstances(results)}."
    )
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text("\n".join([head + BEGIN, "", told, "", *table(results), END + tail]))


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """The medians by query, with their ratios and the geometric mean of these, as a table in Markdown."""
    rates: dict[str, dict[str, list[int]]] = {}
    for figures in results:
        if figures.get("ok"):
            rates.setdefault(figures["workload"], {}).setdefault(figures["label"], []).append(figures["events_per_cpu_s"])
    page = ["| query | Holdfast | Flink in Java | ratio |", "|---|---:|---:|---:|"]
    ratios = []
    for query, of_query in rates.items():
        cells = [statistics.median(of_query[engine]) if engine in of_query else None for engine in (HOLDFAST, FLINK)]
        texts = ["" if cell is None else f"{cell / 1000:,.0f}k" for cell in cells]
        ratio = ""
        if cells[0] is not None and cells[1] is not None:
            ratios.append(cells[0] / cells[1])
            ratio = f"{ratios[-1]:.2f}"
        page.append(f"| {query} | {texts[0]} | {texts[1]} | {ratio} |")
    if ratios:
        page.append(f"| geometric mean | | | {statistics.geometric_mean(ratios):.2f} |")
    return [*page, ""]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
