"""Tells where a start waits: until a job has begun, no command and no dashboard can show it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.runtime.records.places import outside_of_libraries, place_of

__all__ = ["watched_start"]

_log = logging.getLogger("holdfast")

_FIRST_S = 12.0
_EVERY_S = 60.0
_SPARKS = ("/runtime/spark/", "/runtime/jvm/")
"""Where a start is that waits for Spark to start, which may take long."""


@contextmanager
def watched_start(job: str) -> Iterator[None]:
    """Log the line at which this thread waits for a storage, a broker or another system, if it does so for long.

    Args:
        job: The job's name.
    """
    thread, over = threading.get_ident(), threading.Event()

    def watch() -> None:
        wait, waited = _FIRST_S, 0.0
        while not over.wait(wait):
            waited += wait
            frame = sys._current_frames().get(thread)
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
