"""The entry point of a task slot's process: ``python -m holdfast.runtime.slot_main SOCKET EXECUTOR_PID [LOCK]``."""

from __future__ import annotations

import logging
import os
import signal
import sys

from holdfast.runtime.slot import SlotServer


def main() -> None:
    """Run the slot until it is no longer needed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's; the slot ends when the job does
    # The slot's own log is its standard error, a file; the program's output goes to Spark's.
    own = logging.StreamHandler(sys.stderr)
    own.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("holdfast")
    logger.setLevel(logging.INFO)
    logger.addHandler(own)
    logger.propagate = False
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr = sys.stdout
    path, executor, *lock = sys.argv[1], *map(int, sys.argv[2:])
    try:
        SlotServer(path, executor, *lock).serve()
    except Exception:
        logging.getLogger("holdfast.slot").exception("the slot failed")
        os._exit(1)
    os._exit(0)  # threads of client libraries must not keep the process alive


if __name__ == "__main__":
    main()
