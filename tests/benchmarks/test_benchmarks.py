"""The benchmarks measure right: their data, the checks of their results, and what the report makes of them."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.object_store import asked_between, object_store

from benchmarks import (
    costs,
    data,
    growth,
    kafka_jobs,
    largestate,
    latency,
    measure,
    micro,
    pairs,
    plain_loop,
    report,
    svg,
    width,
)
from effort import EFFORT
from holdfast.checkpoint.stores.storage import Storage
from holdfast.testing.kafka import KafkaBroker


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "BENCH", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["u50-5k", "z50-5k"])
def a_data_set_is_the_same_every_time(bench, name):
    first = [part.read_text() for part in sorted(data.data_set(name).glob("*.csv"))]
    again = data.Events(name)
    lines = [f"{u},{a},{t}\n" for u, a, t in again.rows()]
    assert sorted("".join(first).splitlines(keepends=True)) == sorted(lines)
    assert data.expected(name) == again.expected()


def test_users_are_divided_by_parity_and_their_events_keep_their_order(bench):
    directory = data.data_set("u50-5k")
    for parity in (0, 1):
        rows = [line.split(",") for line in (directory / f"part-{parity}.csv").read_text().splitlines()]
        assert {int(row[0]) % 2 for row in rows} == {parity}


def test_no_event_is_later_than_the_disorder_allowed():
    events = data.Events("u50-5k")
    latest = list(itertools.accumulate(events.timestamp.tolist(), max))
    assert all(most - at <= data.DISORDER_MS for most, at in zip(latest, events.timestamp.tolist()))


def test_the_windows_hold_every_amount():
    events = data.Events("z50-5k")
    cells = {(user, (at - data.START_MS) // 60_000) for user, _, at in events.rows()}
    assert events.expected()["window"] == {"windows": len(cells), "total": sum(a for _, a, _ in events.rows())}


def a_name_that_is_no_data_set_is_refused():
    with pytest.raises(SystemExit, match="u10k-2m"):
        data.Events("10k")


def a_run_with_a_wrong_checksum_is_not_right(bench):
    from benchmarks import stateful

    want = data.expected("u50-5k")
    got = {"n": 5000, "total_quarters": int(want["window"]["total"] * 4), "windows": want["window"]["windows"]}
    assert stateful.check("window", "u50-5k", dict(got))
    assert not stateful.check("window", "u50-5k", {**got, "windows": got["windows"] - 1})
    assert not stateful.check("window", "u50-5k", {**got, "n": 4999})


@pytest.mark.parametrize("workload", ["fraud", "window"])
def the_plain_loop_reaches_the_checksums(bench, workload):
    assert plain_loop.run(argparse.Namespace(workload=workload, data="u50-5k"))["ok"]


def a_stack_counts_for_its_innermost_known_frame():
    stack = "run (runtime/host/slot.py:1);process (runtime/operators/keyed.py:120);"
    assert costs.part_of(stack + "process_element (benchmarks/stateful.py:80)") == "function"
    assert costs.part_of(stack + "load (holdfast/state/rows/table.py:80)") == "state read"
    assert costs.part_of(
        stack + "process_element (benchmarks/stateful.py:80);update (holdfast/state/cells/handles.py:9)"
    ) == ("state handles")


@pytest.mark.parametrize(
    "graph",
    [
        svg.bars("Jobs <&>", {"fraud": {"one": 10.0, "two": 2_000_000.0}, "window": {"one": 3}}, "events/s"),
        svg.lines("Cost", {"elapsed": [(1, 2.5), (1000, 2.4)]}, "epochs", "us"),
        svg.bars("Nothing", {}, "events/s"),
    ],
)
def the_graphs_are_well_formed(graph):
    assert ElementTree.fromstring(graph).tag == "{http://www.w3.org/2000/svg}svg"


def _result(label, rate, **more):
    figures = {"events_per_s": rate, "load_before": 1.0, "plain_loop_s": 0.4, "cpu_s": 9.0, "startup_s": 3.0}
    figures |= {"peak_rss_mb": 700}
    named = {"session": "now", "scenario": "stateful", "label": label, "workload": "fraud", "data": "u10k-2m"}
    return {**named, **figures, "ok": True, "arguments": ["stateful"], **more}


def the_page_gives_medians_and_ratios_and_keeps_what_was_not_measured_and_what_is_around_it(tmp_path, monkeypatch):
    page = tmp_path / "benchmarks.md"
    old = "## Stateful jobs beside other engines\n\noutdated\n\n## Latency\n\nof last week\n"
    page.write_text(f"# Before\n\n{report.BEGIN}\n{old}\n{report.END}\n\nafter\n")
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "GRAPHS", tmp_path / "benchmarks")
    runs = [_result("holdfast-rocksdb", rate) for rate in (290_000, 300_000, 500_000)]
    runs.append(_result("flink-java-rocksdb", 200_000, plain_loop_s=0.55))
    runs.append(_result("bytewax", 1, ok=False, capped=True, arguments=["peer", "bytewax"]))
    monkeypatch.setattr(report.measure, "results", lambda: iter(runs))
    report.write("now")
    text = page.read_text()
    assert text.startswith("# Before")
    assert text.endswith("after\n")
    assert "outdated" not in text
    assert "Measured now: " in text
    assert "a plain loop of ten million additions took 0.40 to 0.55 s, and the load average was 1.0 to 1.0" in text
    assert text.index("| Holdfast, RocksDB |") < text.index("of last week")
    assert "| Holdfast, RocksDB | 300k (1.50) |" in text
    assert "`peer bytewax` was stopped, too slow." in text
    assert (tmp_path / "benchmarks" / "stateful.svg").exists()


def the_page_shows_growing_state_of_each_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "GRAPHS", tmp_path)
    point = {"state_gb": 1.02, "events": 2_000_000, "us_per_event": 9.5, "cpu_us_per_event": 17.0}
    point |= {"rss_mb": 1500, "disk_mb": 2e3}
    ours = {"label": "holdfast-rocksdb", "points": [point | {"epoch_ms": 2000.5}]}
    text = "\n".join(report._growth([ours, {"label": "flink-java-rocksdb", "points": [point]}]))
    assert "Holdfast, RocksDB:\n" in text
    assert "| 1.02 | 2,000,000 | 9.5 | 17.0 | 2,000.5 | 1,500 | 2,000.0 |" in text
    assert "Flink in Java, RocksDB:\n" in text
    assert "| 1.02 | 2,000,000 | 9.5 | 17.0 |  | 1,500 | 2,000.0 |" in text
    assert "Flink in Java, CPU" in (tmp_path / "growth.svg").read_text()


def the_events_of_growing_state_have_a_new_key_and_an_earlier_one_in_turn():
    key_of = growth.KeyOf(8_000)
    keys = [key_of(n) for n in range(16_000)]
    assert len(set(keys)) == 8_000
    for begin in range(0, 16_000, 2_000):
        seen: set[int] = set()
        for position, key in enumerate(keys[begin : begin + 2_000]):
            assert (key in seen) == bool(position % 2)
            seen.add(key)


def the_rate_per_core_counts_half_of_the_events_and_not_only_the_end_of_the_job():
    points = [(10, {"slots": 2.0}), (240, {"slots": 3.0}), (490, {"slots": 4.0}), (500, {"slots": 4.5, "JVM": 1.0})]
    assert measure.second_half(points) == (260, {"slots": 1.5, "JVM": 1.0})
    assert measure.second_half([(300, {"slots": 2.0}), (500, {"slots": 3.0})]) == (200, {"slots": 1.0})


def a_change_of_a_large_map_or_list_is_counted_in_small():
    from benchmarks import large

    figures = large.run(argparse.Namespace(entries=3000, elements=1000, epochs=3))
    for kind in ("rocksdb", "hashmap"):
        assert 1 < figures[f"{kind}_bytes_ratio"] <= 3
        assert figures[f"{kind}_chunks"] == 1


def the_recovery_of_what_is_alive_is_measured_on_both_backends_and_checked():
    from benchmarks import alive

    figures = alive.run(argparse.Namespace(keys=300, rate=200, seconds=2))
    assert figures["records"] == 400
    assert {"hashmap_restore_cpu_s", "rocksdb_restore_cpu_s"} <= set(figures)


def the_payments_of_the_timers_benchmark_are_all_read_in_order_of_time():
    from benchmarks import timers

    source = timers.Payments(1000, [5, 6])
    plans, values, times = source.create_enumerator(None, "uid"), [], []
    while ranges := plans.plan(300).ranges:
        assert len(ranges) == timers.SPLITS
        for part in ranges:
            for batch in source.create_reader(None).read(part, 64):
                values += batch.values
                times.append(batch.timestamps)
    assert sorted(value for value in values if value >= 0) == list(range(1000))
    assert times[-4:] == [[5], [5], [6], [6]]
    assert all(each == sorted(each) for each in times)


@pytest.mark.parametrize("part", micro.PARTS)
def test_every_part_of_micro_runs(part):
    try:
        part()()
    finally:
        while micro._TIDY:
            shutil.rmtree(micro._TIDY.pop())


def a_tree_is_measured_in_pairs_with_itself(capsys):
    options = argparse.Namespace(other=measure.ROOT, parts=["key_groups"], pairs=1, core=0, python=sys.executable)
    figures = pairs.run(options)["parts"]["key_groups"]
    assert 0 < figures["middle_half"][0] <= figures["ratio"] <= figures["middle_half"][1]
    assert "key_groups" in capsys.readouterr().err


def the_messages_of_an_epoch_grow_with_the_subtasks_and_not_with_their_pairs():
    narrow, wide = width.driver(4, 2), width.driver(16, 2)
    assert narrow["ok"]
    assert wide["ok"]
    assert wide["barrier_frames"] == 16 * narrow["barrier_frames"]
    for messages in ("calls_kib", "reports_kib"):
        assert wide[messages] < 1.2 * 4 * narrow[messages]


@pytest.mark.spark
@pytest.mark.skipif(
    EFFORT < 2, reason="starts a cluster of four hosts: make test EFFORT=2 ARGS='tests/benchmarks -k cluster'"
)
def the_time_of_a_cluster_is_told_by_process_and_by_thread_of_the_driver():
    figures = measure.child("benchmarks.width_cluster", ("4", "20", "2"))
    assert figures["holdfast"]["metadata_bytes"] > 0
    for name in ("holdfast", "plain", "plain_python"):
        spent, threads = figures[name]["cpu_ms"], figures[name]["driver_jvm_threads_ms"]
        assert {"driver", "JVM", "executors' JVMs", "Spark's master and workers"} <= spent.keys()
        assert threads["the scheduler's event loop"] > 0
        assert threads["tasks out, states in"] > 0
    assert figures["holdfast"]["cpu_ms"]["slots"] > 0
    assert "slots" not in figures["plain"]["cpu_ms"]


def a_growing_store_has_all_its_rows():
    told = largestate.run(argparse.Namespace(gb=0.01, set=[]))
    assert told["ok"]
    assert len(told["points"]) == largestate.POINTS


@pytest.mark.kafka
@pytest.mark.parametrize("rough", [False, True])
def the_records_of_the_latency_benchmark_tell_when_they_were_due(tmp_path, rough):
    with KafkaBroker(tmp_path) as broker:
        broker.create_topic("input", partitions=kafka_jobs.PARTITIONS)
        latency.generate(broker.bootstrap_servers, 2500, 0.5, 100, 10, rough, 1)
        messages = [*kafka_jobs.committed_messages(broker.bootstrap_servers, "input")]
    records = [json.loads(message.value()) for message in messages]
    numbers = sorted(record["number"] for record in records)
    assert numbers[:-1] == list(range(len(numbers) - 1))
    assert numbers[-1] % 10 == 0  # the lone record has a result
    for message, record in zip(messages, records):
        _, created = message.timestamp()
        assert record["sent"] <= created
        assert record["event_time"] == record["sent"] or (rough and record["event_time"] <= record["sent"] - 5_000)


def the_emulated_store_counts_every_request_and_refuses_some_that_are_repeated():
    with object_store(1, throttled=0.3) as store:
        settings = dict(setting.split("=", 1) for setting in store.settings(priced=False))
        storage = Storage.open(settings["execution.checkpointing.dir"], settings)
        before = store.counts()
        for number in range(20):
            storage.put(f"file-{number}", b"content")
        asked = asked_between(before, store.counts())
    assert asked.throttled > 0
    assert asked.put == 20 + asked.throttled
    assert asked.total == asked.put
