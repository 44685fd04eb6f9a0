"""Watches a start that waits for another system: logs where it waits, and lets signals end it.

No command can show a job that has not begun.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from holdfast.runtime.records.places import outside_of_libraries, place_of

__all__ = ["interruptibly", "watched_start"]

_log = logging.getLogger("holdfast")

_LOOK_EVERY_S = 0.2
"""Interval in seconds at which a wait lets Python handle signals."""
_FIRST_S = 12.0
_EVERY_S = 60.0
_SPARKS = ("/runtime/spark/", "/runtime/jvm/")
"""Where a start waits for Spark to start, which may take long."""
_calls: dict[int, int] = {}
"""For each thread that waits in `interruptibly`, the thread that makes the call."""


@contextmanager
def watched_start(job: str) -> Iterator[None]:
    """Log the line at which this thread waits for a storage, a broker or another system, if it waits long.

    Args:
        job: The job's name.
    """
    thread, over = threading.get_ident(), threading.Event()

    def watch() -> None:
        wait, waited = _FIRST_S, 0.0
        while not over.wait(wait):
            waited += wait
            frame = sys._current_frames().get(_calls.get(thread, thread))
            place = "" if frame is None else place_of(outside_of_libraries(frame))
            if any(each in place for each in _SPARKS):
                continue
            wait = _EVERY_S
            _log.warning(
                "job %r has not begun: its start has lasted for %.0f s, and waits at %s. Look at the system that this line "
                "asks, and at the network",
                job,
                waited,
                place,
            )

    threading.Thread(target=watch, name="holdfast-watches-start", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def interruptibly(call: Callable[[], object]) -> None:
    """Make a call that may wait in C, where Python handles no signals, such that Ctrl-C and SIGTERM end the wait for it.

    Raises:
        Exception: that of the call.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    thread = threading.Thread(target=run, name="holdfast-start", daemon=True)
    thread.start()
    _calls[threading.get_ident()] = thread.ident or 0
    try:
        while thread.is_alive():
            thread.join(_LOOK_EVERY_S)
    finally:
        del _calls[threading.get_ident()]
    done.result()
