"""What open dashboards cost a job: its throughput while they are watched and while they are not, in turns of one job.

Each watcher asks what a page of the dashboard asks, as often: the job's view every two seconds, all jobs every ten.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks import jobs, measure
from benchmarks.stateful import Fraud
from holdfast.common import WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.rest.server import RestServer

_WATCHER = """
import http.client, json, sys, threading, time
host, job, dashboards = sys.argv[1], sys.argv[2], int(sys.argv[3])
asked = []

def watch(number):
    time.sleep(2 * number / dashboards)
    connection, since, turn = http.client.HTTPConnection(host), 0, 0
    while True:
        paths = [f"/jobs/{job}/view?since={since}"] + (["/jobs/overview"] if turn % 5 == 0 else [])
        for path in paths:
            connection.request("GET", path)
            answer = connection.getresponse().read()
            asked.append(len(answer))
            if "/view?" in path:
                since = max([since, *(epoch["sequence"] for epoch in json.loads(answer)["epochs"])])
        turn += 1
        time.sleep(2)

for number in range(dashboards):
    threading.Thread(target=watch, args=(number,), daemon=True).start()
sys.stdin.read()
print(len(asked), sum(asked))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--dashboards", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=8, help="turns with and without dashboards")
    parser.add_argument("--seconds", type=float, default=10, help="of each turn")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--backend", default="rocksdb", choices=("rocksdb", "hashmap"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job under full load; returns the median of the ratios of adjacent turns, watched to not watched."""
    os.environ["PYTHONPATH"] = measure.environment()["PYTHONPATH"]  # of Spark's workers
    work = jobs.scratch()
    env = StreamExecutionEnvironment.get_execution_environment(jobs.settings(work, options.backend, options.set))
    keys = options.keys
    numbers = env.from_source(NumberSequenceSource(1, 1 << 50), WatermarkStrategy.no_watermarks(), "numbers")
    payments = numbers.map(lambda n: (n * 7919 % keys, float(n % 100), n))
    payments.key_by(lambda payment: payment[0]).process(Fraud()).sink_to(jobs.Discard())
    try:
        job = jobs.RunningJob(env, "watched")
        client, server = job.client, RestServer.running

        def next_epoch() -> tuple[float, int]:
            """The end of the running epoch, and the events up to there."""
            before = job.records
            job.until(lambda: job.records > before)
            return time.perf_counter(), job.records

        def rate() -> float:
            began, first = next_epoch()
            while (now := next_epoch())[0] - began < options.seconds:
                pass
            return (now[1] - first) / (now[0] - began)

        while job.records < 20 * keys:
            next_epoch()
        rate()  # warm
        found = server()
        assert found is not None
        host = found.url.partition("://")[2]
        command = [sys.executable, "-c", _WATCHER, host, str(client.get_job_id()), str(options.dashboards)]
        rates: dict[bool, list[float]] = {True: [], False: []}
        asked = size = 0
        for turn in itertools.islice(itertools.cycle((False, True, True, False)), 2 * options.pairs):
            watchers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) if turn else None
            rates[turn].append(rate())
            if watchers is not None:
                told = watchers.communicate()[0].split()
                asked, size = asked + int(told[0]), size + int(told[1])
        client.cancel().result(120)
    finally:
        jobs.tidy(work)
    ratios = [watched / alone for watched, alone in zip(rates[True], rates[False], strict=True)]
    return {
        "dashboards": options.dashboards,
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in sorted(ratios)],
        "watched_events_s": round(statistics.median(rates[True])),
        "alone_events_s": round(statistics.median(rates[False])),
        "requests": asked,
        "mean_answer_bytes": round(size / max(asked, 1)),
        "load": round(os.getloadavg()[0], 1),
        "ok": True,
    }
