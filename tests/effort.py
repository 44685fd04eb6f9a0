"""How many examples the tests by chance try: few in every run, more by command.

`make test EFFORT=20 ARGS=tests/engine` tries twenty times as many. With hypothesis' own seeds, each run tries others.
"""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("EFFORT", "1"))


def examples(count: int) -> int:
    """The number of examples to try where a run without an effort tries `count`."""
    return count * EFFORT
