"""A transactional broker, and a sink that writes to it: stands in for Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.errors import Fenced, HoldfastError

from .world import World


class BrokerTimeout(HoldfastError):
    """No answer; the call may have taken effect."""


class Broker:
    """Transactions: open, prepared, committed, aborted. Committed output is visible, in the order of the commits."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.transactions: dict[str, tuple[int, int, str, list[tuple[int, int]]]] = {}
        """Per name: generation, epoch, status, records."""
        self.visible: list[tuple[int, int]] = []
        self._fence = 0

    def begin(self, name: str, generation: int, epoch: int) -> None:
        self._call(generation)
        self.transactions[name] = (generation, epoch, "open", [])

    def prepare(self, name: str, records: list[tuple[int, int]]) -> None:
        generation, epoch, status, _ = self.transactions[name]
        self._call(generation)
        if status != "open":
            raise Fenced(name)
        self.transactions[name] = (generation, epoch, "prepared", records)

    def commit(self, name: str, by: int) -> None:
        generation, epoch, status, records = self.transactions[name]
        self._world.hazard()
        if status == "committed":
            return
        if by < self._fence:
            raise Fenced(name)
        assert status == "prepared", f"{name} is in a completed checkpoint, but {status}"
        self.transactions[name] = (generation, epoch, "committed", [])
        self.visible += records
        self._answer()

    def fence(self, generation: int) -> None:
        """From now on nothing of earlier generations begins, prepares or commits."""
        self._call(generation)
        self._fence = generation

    def abort_others(self, names: set[str], by: int, up_to_epoch: int | None) -> None:
        """Abort what is not committed, is of this generation or an earlier one, and is not named."""
        for name, (generation, epoch, status, _) in list(self.transactions.items()):
            old = generation < by or (generation == by and up_to_epoch is not None and epoch <= up_to_epoch)
            if old and status in ("open", "prepared") and name not in names:
                self._call(by)
                if self.transactions[name][2] in ("open", "prepared"):
                    self.transactions[name] = (generation, epoch, "aborted", [])

    def _call(self, generation: int) -> None:
        self._world.hazard()
        if generation < self._fence:
            raise Fenced(f"generation {generation} is fenced by {self._fence}")
        self._answer()

    def _answer(self) -> None:
        if self._world.chance("lost"):
            raise BrokerTimeout("no answer")


class Writer:
    """Writes each epoch of one attempt in a transaction of its own."""

    def __init__(self, broker: Broker, context: WriterContext) -> None:
        self._broker = broker
        self._context = context
        self._name: str | None = None
        self._output: list[Any] = []

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        generation = self._context.job.generation
        self._next = (f"{generation}-{epoch}-{self._context.subtask}-{attempt}", generation, epoch)
        self._name, self._output = None, []

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if self._name is None and values:
            self._name = self._next[0]
            self._broker.begin(*self._next)
        self._output += values

    def prepare_commit(self) -> list[Any]:
        if self._name is None:
            return []
        self._broker.prepare(self._name, self._output)
        return [self._name]

    def abort_epoch(self) -> None:
        self._name = None

    def close(self) -> None:
        pass


class Committer:
    """Commits by name; aborts what earlier drivers and dead attempts have left."""

    def __init__(self, broker: Broker, job: JobInfo) -> None:
        self._broker = broker
        self._generation = job.generation

    def recover(self, committables: Sequence[Committable]) -> None:
        self._broker.fence(self._generation)
        names = self._commit(committables)
        self._broker.abort_others(names, self._generation, None)

    def commit(self, committables: Sequence[Committable]) -> None:
        names = self._commit(committables)
        if names:
            self._broker.abort_others(names, self._generation, int(min(names).split("-")[1]))

    def _commit(self, committables: Sequence[Committable]) -> set[str]:
        for committable in committables:
            self._broker.commit(committable.data, self._generation)
        return {committable.data for committable in committables}

    def close(self) -> None:
        pass
