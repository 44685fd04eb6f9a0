"""The command line of the fault campaign."""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.testing.chaos.campaign import Limits, run
from holdfast.testing.chaos.report import Report, summary
from holdfast.testing.chaos.scenario import Scenario
from holdfast.testing.chaos.scenarios import SCENARIOS


def main(arguments: list[str] | None = None) -> int:
    """Run jobs on real Spark and real Kafka under random faults; exit with 1 if the output is not exact."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.chaos",
        description=main.__doc__,
        epilog="scenarios: " + "; ".join(f"{s.name}: {s.about}" for s in SCENARIOS.values()),
    )
    parser.add_argument(
        "--scenario", action="append", choices=sorted(SCENARIOS), help="run only this scenario; repeatable (default: all)"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of faults per scenario (default: 10)")
    parser.add_argument("--kills", type=int, help="stop after this many killed processes, most of them killed in a row")
    parser.add_argument("--seed", type=int, default=None, help="seed of faults and input (default: random)")
    parser.add_argument("--rate", type=float, default=1000.0, help="input records per second (default: 1000)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FAULT", help="only faults with this in their name; repeatable"
    )
    parser.add_argument(
        "--unaligned", action="store_true", help="unaligned checkpoints, and a slow key in the jobs that number their input"
    )
    parser.add_argument("--directory", type=Path, help="working directory (default: a new one, removed on success)")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(1))  # also ends the campaign's processes
    kinds = [SCENARIOS[name] for name in options.scenario or SCENARIOS]
    reports: list[Report] = []
    try:
        for number, kind in enumerate(kinds):
            kills = options.kills and _part(options.kills - sum(r.kills.total() for r in reports), kinds[number:])
            if kills == 0:
                break
            reports.append(
                run(
                    kind,
                    Limits(options.minutes * 60, kills),
                    seed,
                    rate=options.rate,
                    directory=options.directory,
                    only=options.only,
                    unaligned=options.unaligned,
                    say=lambda line: print(line, flush=True),
                )
            )
            if len(kinds) > 1:
                print(f"{reports[-1].table}\n", flush=True)
    finally:
        print(summary(reports), flush=True)
    return 1 if any(report.violations for report in reports) else 0


def _part(kills: int, kinds: Sequence[type[Scenario]]) -> int:
    """The first scenario's share of the remaining kills."""
    return max(0, math.ceil(kills * kinds[0].share / sum(kind.share for kind in kinds)))


if __name__ == "__main__":
    sys.exit(main())
