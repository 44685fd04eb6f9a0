"""How many examples the tests by chance try: few in every run, more by command.

`make test EFFORT=20 ARGS=tests/engine` tries twenty times as many. With hypothesis' own seeds, each run tries others;
`make generators` runs those of values, options, names and costs for some minutes each, with other seeds in each run.
"""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("EFFORT", "1"))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))


def examples(count: int) -> int:
    """The number of examples to try where a run without an effort tries `count`."""
    return count * EFFORT


def seeds(count: int) -> range:
    """The seeds to try where a run without an effort tries `count`."""
    return range(FIRST_SEED, FIRST_SEED + examples(count))
