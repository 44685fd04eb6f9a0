"""The campaign from the command line."""

from __future__ import annotations

import argparse
import random
import signal
import sys
from pathlib import Path

from holdfast.testing.chaos.campaign import Campaign


def main(arguments: list[str] | None = None) -> int:
    """Run a job on real Spark and real Kafka under random faults; exit with 1 if the output is not exact."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.chaos", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are injected (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="decides on faults and input (default: at random)")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--rate", type=float, default=1000.0, help="input records a second (default: 1000)")
    parser.add_argument("--only", action="append", default=[], metavar="FAULT", help="only faults whose names contain this")
    parser.add_argument("--directory", type=Path, help="keep everything here (default: a new directory, removed on success)")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    campaign = Campaign(
        options.minutes * 60,
        seed,
        options.brokers,
        options.rate,
        directory=options.directory,
        only=options.only,
        say=lambda line: print(line, flush=True),
    )
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(1))  # ends what the campaign started, too
    verdict = campaign.run()
    print(verdict.table, flush=True)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
