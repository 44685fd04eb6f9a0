"""Steps: the calls with which a driver changes or reads storage and brokers, and at which it may be killed or paused.

A step is the beginning or the end of such a call, so that its effect may or may not have happened.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.checkpoint.stores.kafka_topic import KafkaTopic
from holdfast.connectors.kafka.sink.producers import RecordProducer, TransactionalProducer
from holdfast.connectors.kafka.sink.transactions import TransactionClient
from holdfast.testing.chaos.processes import STEP

__all__ = ["act_at"]


def _public(owner: type) -> tuple[str, ...]:
    return tuple(name for name, value in vars(owner).items() if inspect.isfunction(value) and not name.startswith("_"))


_CALLS: dict[type, tuple[str, ...]] = {
    DirectoryStore: _public(DirectoryStore),
    KafkaTopic: _public(KafkaTopic),
    TransactionClient: _public(TransactionClient),
    TransactionalProducer: ("__init__", "open", "prepare", "commit"),
    RecordProducer: ("send", "flush"),
}


def act_at(number: int, what: int, only: str = "", since: str = "") -> None:
    """Send a signal to this process at a step.

    Args:
        number: The step's number, from 1.
        what: The signal.
        only: Count only steps with this in their name, e.g. ``before TransactionClient.end``.
        since: Start counting at the first step with this in its name.
    """
    counter = _Counter(number, signal.Signals(what), only, since)
    for owner, names in _CALLS.items():
        for name in names:
            setattr(owner, name, _counted(getattr(owner, name), counter))


def _counted(method: Callable[..., Any], counter: _Counter) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        counter.step(f"before {method.__qualname__}")
        result = method(*args, **kwargs)
        counter.step(f"after {method.__qualname__}")
        return result

    return call


class _Counter:
    def __init__(self, number: int, what: signal.Signals, only: str, since: str) -> None:
        self._left, self._what, self._only, self._since = number, what, only, since
        self._lock = threading.Lock()

    def step(self, name: str) -> None:
        with self._lock:
            if self._since and self._since not in name:
                return
            self._since = ""
            self._left -= self._only in name
            if self._left == 0:
                self._left = -1
                print(f"{STEP}{name}: {self._what.name}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), self._what)
