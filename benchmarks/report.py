"""Writes docs/benchmarks.md from a session's recorded results: tables between markers, and graphs."""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks import measure, processors, svg
from benchmarks.clipped import SLICES
from benchmarks.nexmark import session as nexmark
from benchmarks.report_texts import TEXTS, TITLES
from holdfast.metrics.requests import KINDS

PAGE = measure.ROOT / "docs" / "benchmarks.md"
GRAPHS = measure.ROOT / "docs" / "benchmarks"
BEGIN, END = "<!-- results: begin (written by make bench) -->", "<!-- results: end -->"
Result = dict[str, Any]

ENGINES = {
    "holdfast-rocksdb": "Holdfast, RocksDB",
    "flink-java-rocksdb": "Flink in Java, RocksDB",
    "holdfast-hashmap": "Holdfast, heap",
    "flink-java-hashmap": "Flink in Java, heap",
    "bytewax": "Bytewax",
    "pyflink-thread-rocksdb": "PyFlink, thread mode, RocksDB",
    "pyflink-process-rocksdb": "PyFlink, process mode, RocksDB",
}
AGAINST = {"holdfast-rocksdb": "flink-java-rocksdb", "holdfast-hashmap": "bytewax"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--session", help="the session (default: the latest)")


def run(options: argparse.Namespace) -> None:
    """Write the page."""
    write(options.session)


def write(session: str | None = None) -> None:
    """Write the session's tables and graphs. What the session did not measure stays on the page as it is, with its date."""
    everything = list(measure.results())
    if not everything:
        raise SystemExit("There are no results yet: make bench")
    session = session or everything[-1]["session"]
    results = [result for result in everything if result["session"] == session]
    before = PAGE.read_text() if PAGE.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    head, _, rest = before.partition(BEGIN)
    old, _, tail = rest.partition(END)
    sections = merged(old, _sections(session, results))
    PAGE.write_text(head + "\n".join([BEGIN, "", *sections, END]) + tail)


def merged(page: str, measured: Mapping[str, list[str]]) -> list[str]:
    r"""The sections of a page, with those that were measured in their place, by title.

    >>> merged("## Latency\n\nold\n\n## Small parts\n\nold", {"Small parts": ["## Small parts", "", "new", ""]})
    ['## Latency\n\nold\n', '## Small parts', '', 'new', '']
    """
    held = {text.partition("\n")[0].strip(): f"## {text.strip()}\n" for text in re.split(r"^## ", page, flags=re.M)[1:]}
    lines: list[str] = []
    for title in TITLES.values():
        lines += measured.get(title) or ([held[title]] if title in held else [])
    return lines


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    r"""Format a Markdown table; all columns but the first are right-aligned.

    >>> table(["engine", "events/s"], [["one", "1,000"]])
    ['| engine | events/s |', '| --- | ---: |', '| one | 1,000 |', '']
    """
    header = list(header)
    lines = [f"| {' | '.join(header)} |", f"| --- |{' ---: |' * (len(header) - 1)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _sections(session: str, results: list[Result]) -> dict[str, list[str]]:
    """The sections by title."""
    sections: list[tuple[str, Callable[[list[Result]], list[str]]]] = [
        ("stateful", _stateful), ("operators", _operators), ("nexmark", nexmark.table), ("processors", processors.table),
        ("sliding", _sliding), ("async_io", _async_io), ("cdc", _cdc),
        ("kafka", _kafka), ("latency", _latency), ("far", _far), ("start", _start), ("lone", _lone),
        ("costs", _costs), ("checkpointing", _pairs),
        ("memory", _pairs), ("zipf", _zipf), ("rough", _rough), ("flat", _flat), ("growth", _growth), ("tuning", _tuning),
        ("restart", _restart), ("metadata", _metadata), ("clipped", _clipped), ("large", _large),
        ("timers", _timers), ("micro", _micro),
    ]  # fmt: skip
    pages: dict[str, list[str]] = {}
    for scenario, section in sections:
        mine = [result for result in results if result["scenario"] == scenario]
        if not mine:
            continue
        good = [result for result in mine if result.get("ok", True) and "error" not in result]
        page = [f"## {TITLES[scenario]}", "", TEXTS[scenario], ""]
        page += [f"Measured {session}: {measure.circumstances(mine)}.", ""]
        if good:
            page += section(good)
        for failed in (result for result in mine if result not in good):
            reason = "was stopped, too slow" if failed.get("capped") else "failed or gave a wrong result"
            page += [f"`{' '.join(failed['arguments'])}` {reason}.", ""]
        commands = dict.fromkeys("python -m benchmarks " + " ".join(_quoted(result["arguments"])) for result in mine)
        page += ["<details><summary>Commands</summary>", "", "```", *commands, "```", "", "</details>", ""]
        pages[TITLES[scenario]] = page
    return pages


def _quoted(arguments: Iterable[str]) -> list[str]:
    return [f"'{argument}'" if " " in argument else argument for argument in arguments]


def _operators(results: list[Result]) -> list[str]:
    ours, theirs = "holdfast-rocksdb", "flink-java-rocksdb"
    rows = []
    for workload in dict.fromkeys(result["workload"] for result in results):
        runs = {label: [r for r in results if (r["label"], r["workload"]) == (label, workload)] for label in (ours, theirs)}
        figure, subtasks = ("events_per_s", 2) if workload == "async" else ("events_per_cpu_s", 1)
        rates = {label: _median(each, figure) / subtasks for label, each in runs.items() if each}
        ratio = f"{rates[ours] / rates[theirs]:.2f}" if len(rates) == 2 else "-"
        cells = [_k(rates[label]) if label in rates else "-" for label in (ours, theirs)]
        found: dict[str, set[tuple[int, float]]] = {}
        for result in (r for each in runs.values() for r in each):
            found.setdefault(result["data"], set()).add((result["results"], result["sum"]))
        same = "same" if len(rates) == 2 and all(len(each) == 1 for each in found.values()) else "-"
        rows.append([workload, *cells, ratio, str(len(runs[ours])), same])
    return table(["job", "Holdfast", "Flink in Java", "ratio", "runs", "results"], rows)


def _sliding(results: list[Result]) -> list[str]:
    rows = [
        [
            kind,
            *(
                f"{statistics.median(r[kind][name] for r in results):,.2f}"
                for name in ("tumbling_ns", "sliding_ns", "ratio")
            ),
        ]
        for kind in ("aggregate", "reduce")
    ]
    return table(["content", "minute, ns/record", "hour by minute, ns/record", "ratio"], rows)


def _async_io(results: list[Result]) -> list[str]:
    names = ("unordered", "ordered", "asyncio", "unordered_cpu_us", "memory_in_capacities")
    header = ["", "unordered/s", "ordered/s", "asyncio/s", "CPU us/event", "memory"]
    return table(header, [["async I/O", *(f"{_median(results, name):,.1f}" for name in names)]])


def _cdc(results: list[Result]) -> list[str]:
    names = {
        "snapshot": "snapshot",
        "inserts": "log, inserts",
        "updates": "log, elements of updates",
        "one_transaction": "log, one transaction",
        "copied": "sink, rows copied",
        "committed": "sink, rows committed",
    }
    figures = ("per_s", "cpu_s_per_m", "server_cpu_s_per_m")
    rows = [[text, *(f"{_median(results, f'{name}_{figure}'):,.1f}" for figure in figures)] for name, text in names.items()]
    return [
        *table(["", "rows/s", "CPU s/million", "server's CPU s/million"], rows),
        f"Lag of a single row: {_median(results, 'lag_ms'):.1f} ms. While one transaction of all rows is read, the reader "
        f"grows by {_median(results, 'one_transaction_reader_growth_mb'):,.1f} MB, and the server's process has "
        f"{_median(results, 'one_transaction_walsender_mb'):,.1f} MB.",
        "",
    ]


def _metadata(results: list[Result]) -> list[str]:
    kinds = {
        "quiet": "nothing",
        "time": "event time, offsets",
        "hundredth": "and 10 of 1,000 subtasks",
        "all": "all subtasks",
    }
    rows = [
        [name, *(f"{_median(results, f'{kind}_{figure}'):,.1f}" for figure in ("kib", "most_kib", "cpu_ms"))]
        for kind, name in kinds.items()
    ]
    whole, taken = _median(results, "whole_kib"), _median(results, "take_over_cpu_ms")
    return [
        *table(["changed in the epoch", "KiB (mean)", "KiB (most)", "CPU ms"], rows),
        f"All of the metadata: {whole:,.0f} KiB. A driver that takes the job over reads it in {taken:,.0f} ms of CPU.",
        "",
    ]


def _clipped(results: list[Result]) -> list[str]:
    rows = []
    for slices, kind, by in product(SLICES, ("rocksdb", "hashmap"), ("rocksdb", "hashmap")):
        at = f"{slices}_{kind}_by_{by}"
        share, requests = _median(results, f"{at}_share"), _median(results, f"{at}_requests")
        size, taken = _median(results, f"{slices}_{kind}_mb"), _median(results, f"{at}_cpu_s")
        rows.append([str(slices), kind, by, f"{size:,.0f}", f"{share:.1%}", f"{requests:,.0f}", f"{taken:,.2f}"])
    return table(["slices", "written by", "restored by", "MB", "read", "requests", "CPU s"], rows)


def _large(results: list[Result]) -> list[str]:
    rows = []
    for kind in ("rocksdb", "hashmap"):
        figures = [_median(results, f"{kind}_{name}") for name in ("bytes_ratio", "change_us", "small_change_us")]
        bytes_ratio, large, small = figures
        more = [f"{_median(results, f'{kind}_{name}'):,.1f}" for name in ("time_ratio", "chunks", "base_kib_per_epoch")]
        rows.append([kind, f"{bytes_ratio:.2f}", f"{large:,.1f}", f"{small:,.1f}", *more])
    header = ["backend", "bytes written / changed", "us/change", "with 100 entries", "ratio", "chunks for one element"]
    return table([*header, "bases, KiB/epoch"], rows)


def _timers(results: list[Result]) -> list[str]:
    rows = [
        [name, *(f"{_median(results, f'{at}_{figure}'):,.{places}f}" for figure, places in figures)]
        for figures in [(("per_s", 0), ("cpu_us", 2), ("mb", 0))]
        for at, name in (("plain", "plain"), ("timers", "with timers"))
    ]
    restart, fired, memory = (_median(results, name) for name in ("restart_s", "fired_per_s", "restarted_mb"))
    return [
        *table(["job", "records/s", "CPU us/record", "MiB"], rows),
        f"Restart: {restart:.1f} s from the start of the new driver process to its first completed epoch. "
        f"Fired: {fired:,.0f} timers/s, in {memory:,.0f} MiB.",
        "",
    ]


def _median(results: Iterable[Result], name: str) -> float:
    return statistics.median(result[name] for result in results)


def _spread(results: list[Result]) -> str:
    rates = [result["events_per_s"] for result in results]
    return f"{min(rates) / 1000:,.0f}k..{max(rates) / 1000:,.0f}k" if len(rates) > 1 else ""


def _k(rate: float) -> str:
    return f"{rate / 1000:,.0f}k" if rate >= 20_000 else f"{rate / 1000:,.1f}k"


def _stateful(results: list[Result]) -> list[str]:
    cells: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in results:
        cell = (result["workload"], result["data"].split("-")[0])
        cells.setdefault(cell, {}).setdefault(result["label"], []).append(result)
    columns = sorted(cells)
    rows = []
    for label, name in ENGINES.items():
        row = [name]
        for cell in columns:
            runs = cells[cell].get(label)
            if not runs:
                row.append("-")
                continue
            rate = _median(runs, "events_per_s")
            text = _k(rate)
            other = cells[cell].get(AGAINST.get(label, ""))
            if other:
                text += f" ({rate / _median(other, 'events_per_s'):.2f})"
            row.append(text)
        if any(text != "-" for text in row[1:]):
            rows.append(row)
    graph = {
        _cell_name(cell): {
            name: _median(cells[cell][label], "events_per_s") for label, name in ENGINES.items() if label in cells[cell]
        }
        for cell in columns
    }
    detail = [
        [f"{_cell_name(cell)}: {ENGINES[label]}", str(len(runs)), _spread(runs), f"{_median(runs, 'cpu_s'):.0f}",
         f"{_median(runs, 'startup_s'):.1f}", f"{_median(runs, 'peak_rss_mb'):.0f}",
         f"{min(r['load_before'] for r in runs)}..{max(r['load_before'] for r in runs)}"]
        for cell in columns for label in ENGINES if (runs := cells[cell].get(label))
    ]  # fmt: skip
    shares = [f"{_cell_name(cell)} {100 * share:.1f} %" for cell in columns
              if (share := _checkpoint_share(cells[cell].get("holdfast-rocksdb", []))) is not None]  # fmt: skip
    return [
        *table(["events/s (ratio)", *map(_cell_name, columns)], rows),
        "Of Holdfast's time on RocksDB, writing state and metadata and waiting for commits took: "
        f"{'; '.join(shares) or 'not recorded'}.",
        "",
        *_graph("stateful", svg.bars("Stateful jobs", graph, "events/s")),
        "<details><summary>Runs, spread, CPU, memory</summary>",
        "",
        *table(["", "runs", "events/s", "CPU s", "start-up s", "peak RSS MiB", "load before"], detail),
        "</details>",
        "",
    ]


def _cell_name(cell: tuple[str, str]) -> str:
    law, users = cell[1][0], cell[1][1:].upper() if cell[1].endswith("m") else cell[1][1:]
    return f"{cell[0]}, {users} keys{' (zipf)' if law == 'z' else ''}"


def _graph(name: str, content: str) -> list[str]:
    GRAPHS.mkdir(exist_ok=True)
    (GRAPHS / f"{name}.svg").write_text(content)
    return [f"![{name}](benchmarks/{name}.svg)", ""]


def _grouped(results: list[Result], *names: str) -> dict[tuple[str, ...], list[Result]]:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(str(result[name]) for name in names), []).append(result)
    return groups


def _rate_rows(groups: dict[tuple[str, ...], list[Result]]) -> list[list[str]]:
    return [
        [", ".join(key), _k(_median(runs, "events_per_s")), _spread(runs), str(len(runs)), f"{_median(runs, 'epochs'):.0f}",
         f"{_median(runs, 'cpu_s'):.0f}", f"{_median(runs, 'load_before'):.1f}"]
        for key, runs in groups.items()
    ]  # fmt: skip


_RATE_HEADER = ["events/s", "spread", "runs", "epochs", "CPU s", "load before"]


def _kafka(results: list[Result]) -> list[str]:
    return table(["job", *_RATE_HEADER], _rate_rows(_grouped(results, "workload")))


def _latency(results: list[Result]) -> list[str]:
    header = ["job", "records/s", "keys", "p50 ms", "p90 ms", "p99 ms", "max ms", "samples", "epoch ms", "lone epoch ms",
              "load before"]  # fmt: skip
    names = ["p50_ms", "p90_ms", "p99_ms", "max_ms", "samples", "epoch_ms", "lone_epoch_ms", "load_before"]
    return table(
        header,
        [
            [r["label"], f"{r['rate']:,}", f"{r.get('users', 10_000):,}", *(str(r.get(name, "")) for name in names)]
            for r in results
        ],
    )


def _far(results: list[Result]) -> list[str]:
    header = ["checkpoints", "records/s", "p50 ms", "p99 ms", "epoch ms", "read/s", "requests an epoch", "dollars a month"]
    rows = []
    for (store, rate), runs in _grouped(results, "store", "rate").items():
        asked = [sum(r["requests_per_epoch"].get(kind, 0) for kind in KINDS) for r in runs if "requests_per_epoch" in r]
        rows.append([
            store, f"{int(rate):,}",
            *(_range([r[name] for r in runs]) for name in ("p50_ms", "p99_ms", "epoch_ms", "records_per_s")),
            _range(asked), _range([r["dollars_a_month"] for r in runs if "dollars_a_month" in r]),
        ])  # fmt: skip
    return table(header, rows)


def _range(figures: Sequence[float]) -> str:
    """The least and the greatest one.

    >>> _range([12, 15, 13]), _range([2]), _range([])
    ('12 to 15', '2', '')
    """
    ends = dict.fromkeys(f"{end:,}" for end in (min(figures), max(figures))) if figures else {}
    return " to ".join(ends)


def _by_settings(results: list[Result]) -> dict[tuple[str, ...], list[Result]]:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        pairs = zip(result["arguments"], result["arguments"][1:])
        sets = [
            a if option == "--set" else f"parallelism {a}" for option, a in pairs if option in ("--set", "--parallelism")
        ]
        groups.setdefault((", ".join(f"`{s}`" for s in sets) or "as it is",), []).append(result)
    return groups


def _pairs(results: list[Result]) -> list[str]:
    """The first kind of run is the reference for the others."""
    groups = _by_settings(results)
    first = _median(next(iter(groups.values())), "events_per_s")
    rows = _rate_rows(groups)
    for row, runs in zip(rows, groups.values()):
        row.append(f"{_median(runs, 'events_per_s') / first:.2f}")
    return table(["settings", *_RATE_HEADER, "ratio"], rows)


def _tuning(results: list[Result]) -> list[str]:
    page = []
    for (data,), mine in sorted(_grouped(results, "data").items()):
        groups = _by_settings(mine)
        base = next(iter(groups.values()))
        rows = []
        for (settings,), runs in groups.items():
            rows.append([
                settings.removeprefix("`state.backend.cache.size=20mb`, "),
                _k(_median(runs, "events_per_s")), f"{_median(runs, 'events_per_s') / _median(base, 'events_per_s'):.2f}",
                _spread(runs), f"{1000 * _median(runs, 'busy_s') / _median(runs, 'epochs'):.0f}",
                f"{_median(runs, 'peak_rss_mb'):.0f}",
            ])  # fmt: skip
        page += [f"`{data}`:", "", *table(["setting", "events/s", "ratio", "spread", "epoch ms", "peak RSS MiB"], rows)]
    return page


def _checkpoint_share(runs: list[Result]) -> float | None:
    """The share of time spent on writing state (in the slowest task), on metadata, and on waiting for commits."""
    runs = [run for run in runs if "phases_s" in run]
    if not runs:
        return None
    return statistics.median(
        sum(run["phases_s"][phase] for phase in ("task.state", "metadata", "commit")) / run["busy_s"] for run in runs
    )


def _zipf(results: list[Result]) -> list[str]:
    groups = _grouped(results, "workload", "label")
    rows = [
        [
            f"{w}, {ENGINES[label]}",
            _k(_median(runs, "events_per_s")),
            _spread(runs),
            str(len(runs)),
            f"{_median(runs, 'load_before'):.1f}",
        ]
        for (w, label), runs in groups.items()
    ]
    return table(["", "events/s", "spread", "runs", "load before"], rows)


def _flat(results: list[Result]) -> list[str]:
    result = results[-1]
    tenths = result["tenths"]
    header = ["epochs", "epoch ms", "us/event", "CPU us/event", "RSS MiB", "threads", "open files", "local disk MiB"]
    names = ["epochs", "epoch_ms", "us_per_event", "cpu_us_per_event", "rss_mb", "threads", "files", "disk_mb"]
    rows = [[f"{point[name]}" for name in names] for point in tenths]
    series = {
        "elapsed": [(point["epochs"], point["us_per_event"]) for point in tenths[1:]],
        "CPU": [(point["epochs"], point["cpu_us_per_event"]) for point in tenths[1:]],
    }
    return [
        f"{result['records_per_epoch']:,} records an epoch.",
        "",
        *table(header, rows),
        *_graph("flat", svg.lines("Cost per event", series, "epochs", "us/event")),
    ]


def _rough(results: list[Result]) -> list[str]:
    header = ["records/s", "read, records/s", "p50 ms", "p99 ms", "max ms", "epoch ms", "backlog", "too late", "load before"]
    names = ["records_per_s", "p50_ms", "p99_ms", "max_ms", "epoch_ms", "backlog", "late", "load_before"]
    return table(header, [[f"{r['rate']:,}", *(f"{r[name]:,}" for name in names)] for r in results])


def _growth(results: list[Result]) -> list[str]:
    header = ["state GB", "events", "us/event", "CPU us/event", "epoch ms", "RSS MiB", "local disk MiB"]
    names = ["state_gb", "events", "us_per_event", "cpu_us_per_event", "epoch_ms", "rss_mb", "disk_mb"]
    page: list[str] = []
    series: dict[str, list[tuple[float, float]]] = {}
    latest = {result["label"]: result["points"] for result in results}
    for label, points in latest.items():
        page += [f"{ENGINES[label]}:", ""]
        page += table(header, [[f"{point[name]:,}" if name in point else "" for name in names] for point in points])
        engine = ENGINES[label].partition(",")[0]
        series[f"{engine}, elapsed"] = [(point["state_gb"], point["us_per_event"]) for point in points]
        series[f"{engine}, CPU"] = [(point["state_gb"], point["cpu_us_per_event"]) for point in points]
    return [*page, *_graph("growth", svg.lines("Cost per event", series, "GB of state", "us/event"))]


def _restart(results: list[Result]) -> list[str]:
    header = ["backend", "state MiB", "local store kept, s", "deleted, s", "filling, keys/s", "load before"]
    return table(
        header,
        [
            [
                r["label"],
                f"{r['state_mb']:,}",
                f"{r['local_kept_s']}",
                f"{r['local_deleted_s']}",
                f"{r['fill_events_per_s']:,}",
                f"{r['load_before']}",
            ]
            for r in results
        ],
    )


def _start(results: list[Result]) -> list[str]:
    engines = {"warm": "Holdfast, warm", "cold": "Holdfast, cold", "spark": "plain PySpark", "flink": "Flink, local JVM"}
    rows = [
        [title, f"{result[f'{engine}_s']}", "{} to {}".format(*result[f"{engine}_range_s"]), f"{result['load_before']}"]
        for result in results
        for engine, title in engines.items()
        if f"{engine}_s" in result
    ]
    return table(["engine", "first result, s", "range", "load before"], rows)


def _lone(results: list[Result]) -> list[str]:
    rows = [
        [f"{stages}", *(f"{r[f'{engine}_{stages}{part}_ms']}" for engine in ("holdfast", "spark") for part in ("", "_p90")),
         f"{r[f'ratio_{stages}']}", f"{r['load_before']}"]
        for r in results
        for stages in (1, 2)
    ]  # fmt: skip
    return table(["stages", "Holdfast", "90th", "PySpark", "90th", "ratio", "load before"], rows)


def _costs(results: list[Result]) -> list[str]:
    page = []
    for result in results:
        page += [f"`{' '.join(result['what'])}`: {_k(result['events_per_s'])} events/s under the sampler.", ""]
        processes = result["cpu_us_by_process"]
        page += table(["process", "CPU us/event"], [[role, f"{us:.2f}"] for role, us in processes.items()])
        page += table(
            ["in the slots", "CPU us/event"], [[part, f"{us:.2f}"] for part, us in result["slot_parts_us"].items()]
        )
    return page


def _micro(results: list[Result]) -> list[str]:
    parts = results[-1]["parts"]
    return table(
        ["part", "ns", "ratio"],
        [[name.replace("_", " "), f"{f['ns']:,.0f}", f"{f.get('ratio', '')}"] for name, f in parts.items()],
    )
