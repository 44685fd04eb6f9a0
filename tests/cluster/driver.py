"""A driver of the cluster's tests, started by a plain Python or by spark-submit: runs the numbered job, prints its metrics.

driver.py <settings as JSON> <records> <directory of the output> [plain | submitted | slow | held | mishaps]
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numbered

import holdfast

DEADLY = 700
SLOW = 2200


def came_with_the_job(value):
    """Holdfast is the driver's, which was sent; not what may be installed where the task runs."""
    assert ".zip" in holdfast.__file__, f"Holdfast was loaded from {holdfast.__file__}"
    return value


def runs_as_the_driver_s_form(compiled):
    """The slot uses compiled modules if the driver does."""

    def before(value):
        assert compiled == holdfast.compiled.IN_USE, holdfast.compiled.use.reason
        return came_with_the_job(value)

    return before


def slows_down(output, seconds):
    """Records come slowly as long as a file is there."""

    def before(value):
        if os.path.exists(f"{output}.slow"):
            time.sleep(seconds)
        return value

    return before


def dies(output):
    """The process that reads a certain record is killed, once."""

    def before(value):
        if value == DEADLY and first_time(f"{output}.death"):
            os.kill(os.getpid(), 9)
        return value

    return before


def lags(output):
    """The task that emits a certain result hangs until another one did its work and its result shows; then goes on."""

    def visible():
        return any(f",{SLOW}," in path.read_text() for path in Path(output).glob("part-*"))

    def after(entry):
        if entry[0] == "record" and entry[2] == SLOW and first_time(f"{output}.lag"):
            until = time.monotonic() + 600
            while not visible():
                assert time.monotonic() < until, "no other task did the work"
                time.sleep(0.1)
            Path(f"{output}.zombie").touch()
        return entry

    return after


def first_time(path):
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main(settings, records, output, kind="plain"):
    env = numbered.environment(json.loads(settings))
    if kind != "submitted":
        env.add_python_file(numbered.__file__)
    hooks = {
        "mishaps": (dies(output), lags(output)),
        "slow": (slows_down(output, 0.05),),
        "held": (slows_down(output, 0.02),),
    }.get(kind, (runs_as_the_driver_s_form(holdfast.compiled.IN_USE),) * 2)
    numbered.build(env, int(records), output, *hooks)
    client = env.execute_async("numbered")
    client.get_job_execution_result().result()
    print(json.dumps(client.metrics.snapshot().values))


if __name__ == "__main__":
    main(*sys.argv[1:])
