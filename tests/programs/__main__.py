"""Draws and runs programs for some minutes: ``make programs ARGS='--minutes 120 --seed 1'``."""

from __future__ import annotations

import argparse
import logging
import os
import time

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

from .reverted import FAULTS, put_back

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="programs", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of processor time")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each draws a hundred programs")
    parser.add_argument("--first", action="store_true", help="end with the first program that is found")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="print what is found as it was drawn")
    parser.add_argument("--fault", choices=FAULTS, help="put a mended fault back, which should be found")
    parser.add_argument("--operations", help="only these, such as window_drawing.window,joins.table")
    options = parser.parse_args()
    if options.fault:
        put_back(options.fault)
    from holdfast.compiled import PURE

    from .judging import check
    from .programs import OPERATIONS, named, programs
    from .running import ways

    operations = named(options.operations) if options.operations else OPERATIONS

    logging.disable(logging.CRITICAL)
    how = "pure" if os.environ.get(PURE) else "compiled"
    tried = found = 0
    number = options.seed
    last: list[str] = []
    while time.process_time() < options.minutes * 60 and not (found and options.first):
        last.clear()

        @seed(number)
        @settings(
            max_examples=100,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, *([Phase.shrink] if options.shrink else [])],
        )
        @given(programs(operations), ways())
        def drawn(program, way):
            global tried
            tried += 1
            try:
                check(program, way)
            except AssertionError as error:
                last[:] = [str(error)]
                raise

        try:
            drawn()
        except AssertionError as error:
            found += 1
            print(f"#### seed {number}, {time.process_time():.0f} s", error, sep="\n", flush=True)
        except Flaky:  # it depends on threads or on time: the last form that failed may fail again
            found += 1
            print(f"#### seed {number}, {time.process_time():.0f} s, not each time", *last, sep="\n", flush=True)
        number += 1
    seconds = time.process_time()
    print(f"{found} of {number - options.seed} seeds failed: {tried} programs, {how}, {seconds:.0f} s of processor time")
