"""The main function of a task slot's process, after `holdfast.runtime.slots.slot_starter_main` has forked it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import NoReturn

from holdfast.common.system.core_dumps import forbid_core_dumps
from holdfast.runtime.slots.slot_server import SlotServer

__all__ = ["ignore_interrupts", "run_slot"]

_SWITCH_INTERVAL = 0.001
"""Seconds after which a thread must let another one run. The task releases the interpreter with each read and write; while a
merge or an upload runs in the background, it waits this long to get it back.
"""


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the driver; a slot ends when the job does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_slot(path: str, executor: int, lock: int) -> NoReturn:
    """Run the slot until it is no longer needed, then end the process. For ``lock`` see `SlotServer`."""
    forbid_core_dumps()
    # The slot's own log goes to its standard error, a file; the program's output goes where Spark's goes.
    own = logging.StreamHandler(sys.stderr)
    own.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("holdfast")
    logger.setLevel(logging.INFO)
    logger.addHandler(own)
    logger.propagate = False
    sys.setswitchinterval(_SWITCH_INTERVAL)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr = sys.stdout
    try:
        SlotServer(path, executor, lock).serve()
    except Exception:
        logging.getLogger("holdfast.slot").exception("the slot failed")
        os._exit(1)
    os._exit(0)  # threads of client libraries must not keep the process alive
