"""A driver of the cluster's tests, started by a plain Python or by spark-submit: runs the numbered job, prints its metrics.

driver.py <settings as JSON> <records> <directory of the output> [<what happens to records>]
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numbered

import holdfast


def nothing(output):
    """Only see to it that Holdfast came with the job: the executors' own one, if any, must not be used."""

    def before(value):
        assert ".zip" in holdfast.__file__, f"Holdfast was loaded from {holdfast.__file__}"
        return value

    return before


def task_dies(output):
    """The process that sees record 700 is killed, once."""

    def before(value):
        if value == 700 and first_time(output, "death"):
            os.kill(os.getpid(), 9)
        return value

    return before


def task_lags(output):
    """The first task that sees record 700 hangs until its epoch is over, done by another one; then it goes on."""

    def before(value):
        if value == 700 and first_time(output, "lag"):
            print(f"task lags on {os.environ['SPARK_LOCAL_IP']}", file=sys.stderr, flush=True)
            until = time.monotonic() + 60
            while not any("700" in path.read_text() for path in Path(output).glob("part-*")):
                assert time.monotonic() < until, "no other task was started"
                time.sleep(0.02)
        return value

    return before


def first_time(output, what):
    try:
        Path(f"{output}.{what}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main(settings, records, output, happening="nothing"):
    env = numbered.environment(json.loads(settings))
    numbered.build(env, int(records), output, globals()[happening](output))
    client = env.execute_async("numbered")
    client.get_job_execution_result().result()
    print(json.dumps(client.metrics.snapshot().values))


if __name__ == "__main__":
    main(*sys.argv[1:])
