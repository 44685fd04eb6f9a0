"""A driver of one of the examples: ``driver_with_faults.py SETTINGS.json``.

It runs the example's file as it is, with small epochs, and kills (or stops) itself at a chosen point of the protocol. Exits
with 0 when the job has ended, 3 when another driver took over, 1 for any other failure.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.checkpoint.log import CheckpointLog
from holdfast.common import Configuration
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.sink.transactions import TransactionClient
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import Fenced
from holdfast.runtime.driver.job import Job
from holdfast.testing.chaos.driver import run_without_spark

FENCED = 3
AT = "reached the point: "


class Point:
    """Does what is to be done when the point is reached for the n-th time."""

    def __init__(self, name: str, nth: int, sign: str) -> None:
        self._name, self._left, self._signal = name, nth, getattr(signal, sign)

    def reached(self) -> bool:
        self._left -= 1
        return self._left == 0

    def act(self) -> None:
        print(AT + self._name, flush=True)
        os.kill(os.getpid(), self._signal)


def before(owner: type, method: str) -> Callable[[Point], None]:
    return lambda point: _wrap(owner, method, lambda call: _first(point, call))


def after(owner: type, method: str) -> Callable[[Point], None]:
    return lambda point: _wrap(owner, method, lambda call: _last(point, call))


def _wrap(owner: type, method: str, around: Callable[[Callable[[], Any]], Any]) -> None:
    original = getattr(owner, method)
    setattr(owner, method, lambda self, *args, **kwargs: around(lambda: original(self, *args, **kwargs)))


def _first(point: Point, call: Callable[[], Any]) -> Any:
    if point.reached():
        point.act()
    return call()


def _last(point: Point, call: Callable[[], Any]) -> Any:
    result = call()
    if point.reached():
        point.act()
    return result


def metadata(around: Callable[[Point, Callable[[], Any]], Any]) -> Callable[[Point], None]:
    """At the metadata of an epoch; a job that starts from a savepoint first stores that of its copy."""

    def install(point: Point) -> None:
        original = CheckpointLog.complete

        def complete(self: CheckpointLog, checkpoint: Any, savepoint: str = "") -> None:
            if savepoint:
                original(self, checkpoint, savepoint)
            else:
                around(point, lambda: original(self, checkpoint))

        CheckpointLog.complete = complete  # type: ignore[method-assign]

    return install


def between_commits(point: Point) -> None:
    """When the transactions of several subtasks are to be committed: one is, the others are not."""
    original = TransactionClient.end

    def end(self: TransactionClient, transactions: Any, *, commit: bool) -> Any:
        if commit and len(transactions) > 1 and point.reached():
            original(self, transactions[:1], commit=True)
            point.act()
        return original(self, transactions, commit=commit)

    TransactionClient.end = end  # type: ignore[method-assign]


POINTS: dict[str, Callable[[Point], None]] = {
    "before the metadata": metadata(_first),
    "between metadata and sink commit": metadata(_last),
    "between two subtasks' commits": between_commits,
    "right after the commit": after(KafkaCommitter, "commit"),
    "after the take-over": after(CheckpointLog, "take_over"),
    "before the commit is repeated": before(KafkaCommitter, "recover"),
    "before old transactions are fenced": before(KafkaCommitter, "_fence_all"),
    "after the commit was repeated": after(KafkaCommitter, "recover"),
}


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.DEBUG)  # a line for each epoch
    settings = json.loads(Path(arguments[0]).read_text())
    if settings["fault"]:
        name, nth, sign = settings["fault"]
        POINTS[name](Point(name, nth, sign))
    ahead = settings["hours"] * 3_600_000
    Job._clocks = {"wall_clock": lambda: time.time_ns() // 1_000_000 + ahead}
    os.environ.update(settings["environment"])
    configuration = Configuration.from_dict(settings["configuration"])
    if settings["without_spark"]:
        run_without_spark(settings["configuration"])
    create = StreamExecutionEnvironment.get_execution_environment
    StreamExecutionEnvironment.get_execution_environment = staticmethod(lambda: create(configuration))  # type: ignore
    try:
        runpy.run_path(settings["program"], run_name="__main__")
    except Fenced as error:
        logging.error("Fenced: %s", error)
        return FENCED
    except Exception:
        logging.exception("the job failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
