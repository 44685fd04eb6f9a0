"""The transactional ids of one writer, and their producers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.connectors.kafka.sink.committable import SLOTS
from holdfast.connectors.kafka.sink.producers import TransactionalProducer
from holdfast.connectors.kafka.sink.transactions import Prepared
from holdfast.errors import HoldfastError

__all__ = ["ProducerPool"]


@dataclass(eq=False)
class _Lane:
    """One transactional id of a slot."""

    number: int
    prepared: Epoch | None = None
    """The last epoch prepared under this id."""
    next: Future[TransactionalProducer] | None = None
    """The producer for the next epoch."""


class ProducerPool:
    """Provides each epoch with a producer of its own. Not thread-safe.

    Epoch n uses the transactional ids of slot n mod `SLOTS`, so that the next epochs can be written during its commit. Ids
    are reused, producers are not: a new producer acquires the id (InitProducerId), which raises the producer epoch, so the
    brokers refuse late requests of earlier transactions. Acquiring an id costs several round trips; it happens in the
    background, an epoch or two ahead.

    Args:
        where: The writer, for error messages.
        make: Acquires the id of a slot and lane.
    """

    def __init__(self, where: str, make: Callable[[int, int], TransactionalProducer]) -> None:
        self._where = where
        self._make = make
        self._slots: list[list[_Lane]] = [[] for _ in range(SLOTS)]
        self._lanes = 0
        self._committed = -1
        self._open: tuple[_Lane, TransactionalProducer] | None = None
        self._makers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="kafka-producers")

    def begin(self, epoch: Epoch, committed: CheckpointId) -> None:
        """Acquire ids for the next epochs in the background, if this writer has had output.

        Args:
            epoch: The beginning epoch.
            committed: The last epoch whose output is committed.
        """
        self._committed = committed
        if self._lanes:
            for ahead in (Epoch(epoch + 1), Epoch(epoch + 2)):
                if (lane := self._free(ahead)) is not None:
                    self._renew(ahead, lane)

    def take(self, epoch: Epoch) -> TransactionalProducer:
        """A producer for the epoch, with an open transaction.

        Raises:
            HoldfastError: an earlier epoch of the slot is not yet committed.
        """
        lane = self._free(epoch)
        if lane is None:
            waiting = [other.prepared for other in self._slots[epoch % SLOTS] if other.prepared is not None]
            if any(self._committed < prepared < epoch for prepared in waiting):
                raise HoldfastError(
                    f"{self._where}: epoch {epoch} begins although epoch {min(waiting)} is not yet committed"
                )
            lane = self._add(epoch)
        ahead, lane.next = lane.next, None
        if ahead is not None and ahead.exception() is not None:
            lane, ahead = self._replace(epoch, lane), None
        producer = self._make(epoch % SLOTS, lane.number) if ahead is None else ahead.result()
        self._open = lane, producer
        producer.open()
        return producer

    def prepare(self, epoch: Epoch) -> Prepared:
        """Prepare the open transaction; from now on only the committer ends it.

        Raises:
            HoldfastError: the brokers refused a record.
        """
        assert self._open is not None
        lane, producer = self._open
        prepared = producer.prepare()
        lane.prepared, self._open = epoch, None
        self._makers.submit(producer.close)
        coming = Epoch(epoch + 1)
        if not self._slots[coming % SLOTS]:
            self._add(coming)
        if (following := self._free(coming)) is not None:
            self._renew(coming, following)
        return prepared

    def drop(self) -> None:
        """Abort the open transaction, if any."""
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].discard()

    def close(self) -> None:
        """Close the clients. Prepared transactions stay prepared."""
        self.drop()
        self._makers.shutdown(wait=True, cancel_futures=True)
        for ahead in [lane.next for slot in self._slots for lane in slot if lane.next is not None]:
            if not ahead.cancelled() and ahead.exception() is None:
                ahead.result().close()
        self._slots = [[] for _ in range(SLOTS)]

    def _free(self, epoch: Epoch) -> _Lane | None:
        """An id in the epoch's slot without a transaction waiting for its commit."""
        free = (lane for lane in self._slots[epoch % SLOTS] if lane.prepared is None or lane.prepared <= self._committed)
        return next(free, None)

    def _add(self, epoch: Epoch) -> _Lane:
        """A further id in the epoch's slot."""
        self._lanes += 1
        lane = _Lane(self._lanes)
        self._slots[epoch % SLOTS].append(lane)
        return lane

    def _replace(self, epoch: Epoch, lane: _Lane) -> _Lane:
        """An id in place of one whose acquisition failed.

        The request may still be on its way: when it arrives it locks out whoever holds the id then.
        """
        self._slots[epoch % SLOTS].remove(lane)
        return self._add(epoch)

    def _renew(self, epoch: Epoch, lane: _Lane) -> None:
        if lane.next is not None and lane.next.done() and lane.next.exception() is not None:
            lane = self._replace(epoch, lane)
        if lane.next is None:
            lane.next = self._makers.submit(self._make, epoch % SLOTS, lane.number)
