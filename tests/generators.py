"""Runs each generator for some minutes, with other seeds in each run: ``make generators MINUTES=60``.

A generator is a few tests by chance that look for one kind of fault. `tests/programs` has a command of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

GENERATORS = {
    "values": [
        "state/test_values_by_class.py::a_value_of_any_shape_is_read_back_as_it_was_at_once",
        "state/test_unreadable_values.py",
        "state/test_equal_map_keys.py",
        "formats/test_values_through_formats.py",
    ],
    "options": ["connectors/test_options_in_pairs.py"],
    "names": ["connectors/test_names_in_pairs.py", "kafka/test_sink_against_models.py"],
    "positions": ["kafka/test_source_starts_in_transactions.py"],
    "failures": [
        "connectors/test_damaged_files.py",
        "connectors/test_what_never_succeeds.py",
        "connectors/test_what_never_succeeds_with_files.py",
        "security/test_hostile_files.py",
        "security/test_hostile_state.py",
    ],
    "starts": ["engine/test_starts.py", "engine/test_restore_agreement.py", "simulator/test_protocol.py"],
    "costs": ["state/test_costs.py::an_operation_after_another_costs_as_much_for_each_of_2n_as_of_n"],
    "timers": ["state/test_timers.py"],
    "lives": [
        "engine/test_changelog.py",
        "engine/test_rescaling.py",
        "engine/test_same_results.py",
        "engine/test_savepoints.py",
        "engine/test_standbys.py",
        "engine/test_unaligned_checkpoints.py",
        "table/test_versioned_tables.py",
    ],
}
"""By name: values by class; options and names in pairs; start positions and transactions; what can never succeed; every
start, failure and end; cost at n and 2n; timer operations in any order; lives of a job with crashes and moves."""

GROW_BELOW_S = 60.0


def processor_time() -> float:
    """Seconds of processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(name: str, minutes: float, chance: random.Random) -> int:
    """Run a generator; the number of runs that failed."""
    begin, runs, failed, effort = processor_time(), 0, 0, 1
    while (spent := processor_time() - begin) < minutes * 60:
        seed = chance.randrange(1 << 30)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--timeout", "0", f"--hypothesis-seed={seed}"]
        begun = processor_time()
        done = subprocess.run(
            [*command, *(f"tests/{each}" for each in GENERATORS[name])],
            cwd=ROOT,
            env={**os.environ, "EFFORT": str(effort), "FIRST_SEED": str(seed)},
            capture_output=True,
            text=True,
            check=False,
        )
        runs += 1
        if done.returncode:
            failed += 1
            print(
                f"#### {name}: EFFORT={effort} FIRST_SEED={seed} {' '.join(command[1:])}", done.stdout, sep="\n", flush=True
            )
        if processor_time() - begun < GROW_BELOW_S:
            effort *= 2
    print(f"{name}: {failed} of {runs} runs failed, {spent / 60:.1f} minutes of processor time, EFFORT={effort}", flush=True)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="generators", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="of processor time, for each generator")
    parser.add_argument("--seed", type=int, help="of the runs' seeds")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of {', '.join(GENERATORS)}")
    options = parser.parse_args()
    if unknown := set(options.names) - set(GENERATORS):
        parser.error(f"no generators: {', '.join(sorted(unknown))}; there are {', '.join(GENERATORS)}")
    chance = random.Random(options.seed)
    sys.exit(any([run(name, options.minutes, chance) for name in options.names or GENERATORS]))
