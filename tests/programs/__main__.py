"""Draws and runs programs for some minutes: ``make programs ARGS='--minutes 120 --seed 1'``."""

from __future__ import annotations

import argparse
import logging
import time

from hypothesis import HealthCheck, Phase, given, seed, settings

from .judging import check
from .programs import programs
from .running import ways

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="programs", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each draws a hundred programs")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="print what is found as it was drawn")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    end = time.monotonic() + options.minutes * 60
    tried = found = 0
    number = options.seed
    while time.monotonic() < end:

        @seed(number)
        @settings(
            max_examples=100,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, *([Phase.shrink] if options.shrink else [])],
        )
        @given(programs(), ways())
        def drawn(program, way):
            global tried
            tried += 1
            check(program, way)

        try:
            drawn()
        except AssertionError as error:
            found += 1
            print(f"#### seed {number}", error, sep="\n", flush=True)
        number += 1
    print(f"{found} of {number - options.seed} seeds failed, in {tried} programs")
