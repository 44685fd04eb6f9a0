"""The sink's committer in the driver: the second phase of the commit, and its recovery.

Exactly-once for every failure between the two phases:

- A prepared transaction is committed by name (EndTxn). Its transactional id, producer id and producer epoch identify this
  transaction only, so the request may be repeated and may arrive late.
- If the transaction is gone (it timed out, its producer was fenced, its id was forgotten or reused), its token tells
  whether it was committed. If not, its records are rewritten from the outbox, with the token, in a transaction whose id
  is reserved for the subtask. Acquiring that id aborts and fences all earlier attempts to rewrite, before the tokens are
  read.
- Rewriting happens only in `recover`, when no later output of the job exists, so the order of records is kept. In a
  running job, a lost transaction is an error: the job restarts from the checkpoint and recovers.
- Ids and tokens name the job by the identity that its checkpoint log keeps over all drivers: jobs that share a transactional
  id prefix neither end each other's transactions nor take each other's tokens for their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.checkpoint.stores.storage import NotFound
from holdfast.connectors.base import Committable, JobInfo
from holdfast.connectors.job_files import JobFiles
from holdfast.connectors.kafka.sink.committable import (
    SLOTS,
    KafkaCommittable,
    TransactionalId,
    id_prefix,
    rewriter_id,
    rewriting_job,
)
from holdfast.connectors.kafka.sink.outbox import outbox_epoch, read_outbox
from holdfast.connectors.kafka.sink.output import KafkaOutput
from holdfast.connectors.kafka.sink.producers import TransactionalProducer
from holdfast.connectors.kafka.sink.tokens import Token, ensure_token_topic, never_written, read_tokens, token_topic
from holdfast.connectors.kafka.sink.transactions import Outcome, TransactionClient, TransactionState
from holdfast.errors import ConfigurationError, CorruptFile, Fenced, HoldfastError, IncompatibleState, StorageError

__all__ = ["KafkaCommitter"]

_logger = logging.getLogger(__name__)
_UNFINISHED = (TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_EPOCH_FENCE)
_SWEEP_EPOCHS = 1000
_FIRST_LOOK_S, _LAST_LOOK_S = 2.0, 60.0
"""An idle job looks for transactions of overtaken attempts after this time, then after twice the time, up to the last."""
_PATIENCE_S = 30.0
"""Seconds that recovery waits for silent brokers; after that, transaction timeouts end what they coordinate."""


class KafkaCommitter:
    """Commits prepared transactions, aborts those of dead attempts, and empties the outbox."""

    _advice = "Each job needs a prefix of its own: set_transactional_id_prefix(...)"

    def __init__(self, sink: KafkaOutput, job: JobInfo, uid: str) -> None:
        self._sink = sink
        self._job = job
        self._uid = uid
        self._where = f"Kafka sink (uid {uid})"
        self._prefix = sink.transactional_id_prefix
        self._closed = threading.Event()
        self._client = TransactionClient(sink.properties, cancelled=self._closed.is_set)
        self._cleaner = TransactionClient(sink.properties, cancelled=self._closed.is_set)
        """For the background. A broker answers the requests of a connection in turn: no commit waits behind a clean-up."""
        self._files = None if job.storage_uri is None else JobFiles(job, "sinks", uid)
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-committer")
        self._cleaning: Future[None] | None = None
        self._lock = threading.Lock()
        self._busy = False
        self._calls = 0
        self._committed: list[tuple[int, list[KafkaCommittable]]] = []
        """Commits waiting for clean-up: the number of the call to `commit`, and its committables."""
        self._latest: list[tuple[int, int]] = []
        """The last two commits that were cleaned up: the number of the call to `commit`, and the epoch."""
        self._disturbed = threading.Event()
        """Set by a commit, which ends the looks of an idle job."""
        self._known: set[str] = set()
        self._jobs = {job.identity, ""}
        """The jobs whose transactions are this job's: itself, those without an identity, those whose output it restores."""
        self._swept = 0

    def recover(self, committables: Sequence[Committable]) -> None:
        """Commit the restored checkpoint's transactions, and abort all others of this sink."""
        ours = [KafkaCommittable.decode(c) for c in committables]
        origins = [self._origin(c) for c in ours]
        self._jobs |= {origin.job for origin in origins}
        outcomes = self._client.end([c.transaction for c in ours], commit=True)
        for prefix in {self._prefix, *(origin.prefix for origin in origins)}:
            self._fence_all(prefix)
        lost = [c for c in ours if outcomes[c.transaction] is Outcome.LOST]
        self._rewrite(lost)
        try:
            # Older generations only: a driver fenced during recovery must not delete its successor's copies.
            self._empty_outbox(lambda generation, epoch: generation < self._job.generation)
        except StorageError as error:  # a later clean-up will do it
            _logger.warning("%s: copies of committed output stay in the storage for now: %s", self._where, error)
        _logger.info(
            "%s: %d transactions committed again, %d written again or found committed",
            self._where,
            len(ours) - len(lost),
            len(lost),
        )

    def commit(self, committables: Sequence[Committable]) -> None:
        """Commit the transactions."""
        ours = [KafkaCommittable.decode(c) for c in committables]
        with self._lock:
            self._calls += 1
        if not ours:
            return
        outcomes = self._client.end([c.transaction for c in ours], commit=True)
        lost = [c for c in ours if outcomes[c.transaction] is Outcome.LOST]
        if lost:
            self._explain(lost[0])
        with self._lock:
            self._committed.append((self._calls, ours))
            self._disturbed.set()
            if not self._busy:
                self._busy = True
                self._cleaning = self._background.submit(self._clean_up)
                self._background.submit(self._look_again)

    def close(self) -> None:
        """Close the clients."""
        self._closed.set()
        with self._lock:
            self._disturbed.set()
        self._background.shutdown(wait=True)
        self._cleaner.close()
        self._client.close()

    def _origin(self, committable: KafkaCommittable) -> TransactionalId:
        """The transactional id of prepared output: its prefix and job may be others than those of the running program."""
        name = committable.transaction.transactional_id
        parsed = TransactionalId.of_sink(name, self._uid)
        if parsed is None:
            raise IncompatibleState(f"{self._where}: the checkpoint holds the transaction {name}, which is not of this sink")
        return parsed

    def _fence_all(self, prefix: str) -> None:
        """Abort every unfinished transaction of this sink, and fence the previous driver's writers.

        Raises:
            Fenced: a later driver has an unfinished one: this driver was overtaken, and did not know it yet.
        """
        found = self._client.list(id_prefix(prefix, self._uid), _PATIENCE_S)
        every = {name: parsed for name in found if (parsed := TransactionalId.parse(name, prefix, self._uid))}
        ids = {name: parsed for name, parsed in every.items() if parsed.job in self._jobs}
        if every and not ids:
            self._refuse_newcomer([parsed for name, parsed in every.items() if found[name] in _UNFINISHED])
        self._known |= set(ids)
        ours = [i.generation for n, i in ids.items() if i.job == self._job.identity and found[n] in _UNFINISHED]
        if (newest := max(ours, default=0)) > self._job.generation:
            raise self._overtaken(newest)
        before = max((i.generation for i in ids.values() if i.generation < self._job.generation), default=None)
        wanted = [n for n, i in ids.items() if found[n] in _UNFINISHED or i.generation == before]
        wanted += [
            n for n, state in found.items() if state in _UNFINISHED and rewriting_job(n, prefix, self._uid) in self._jobs
        ]
        self._client.fence(wanted, self._sink.transaction_timeout_ms)
        if dangling := sum(found[n] in _UNFINISHED for n in wanted):
            _logger.warning("%s: %d unfinished transactions of earlier attempts aborted", self._where, dangling)

    def _refuse_newcomer(self, others: Sequence[TransactionalId]) -> None:
        """Refuse a job that has no transaction with the prefix yet, while another job has open ones.

        Raises:
            ConfigurationError: as described.
        """
        if not others:
            return
        other = others[0]
        raise ConfigurationError(
            f"{self._where}: {self._owner(other)} (identity {other.job}; this one is job {self._job.job_name!r}, identity "
            f"{self._job.identity}) has an open transaction with the transactional id prefix {other.prefix!r}: {other}. "
            f"{self._advice}. If the other job has ended for good, start again when its transaction has timed out "
            "(transaction.timeout.ms)"
        )

    def _owner(self, transaction: TransactionalId) -> str:
        """The job of another job's transaction."""
        try:
            tokens = read_tokens(self._sink.properties, token_topic(transaction.prefix), wait=False)
        except HoldfastError as error:  # they would only tell the other job's name
            _logger.info("%s: the tokens could not be read: %s", self._where, error)
            tokens = {}
        names = [token.job_name for key, token in tokens.items() if f"/{transaction.job}/".encode() in key]
        return f"job {names[0]!r}" if names else "another job"

    def _rewrite(self, lost: Sequence[KafkaCommittable]) -> None:
        """Rewrite the records of lost transactions, unless they were committed.

        A token topic that was deleted while the job ran is created again.
        """
        for prefix in {self._prefix, *(self._origin(c).prefix for c in lost)}:
            topic = token_topic(prefix)
            ensure_token_topic(self._sink.properties, topic, self._sink.topic)
            epochs = sorted({c.epoch for c in lost if self._origin(c).prefix == prefix})
            if epochs and never_written(self._sink.properties, topic):
                _logger.error(
                    "%s: the topic %s with the tokens of this sink was deleted, so that it is unknown whether the output of "
                    "epoch %s was committed. It is written again, and may be there twice: look at it",
                    self._where, topic, ", ".join(map(str, epochs)),
                )  # fmt: skip
        for committable in sorted(lost, key=lambda c: (c.generation, c.epoch, c.subtask)):
            self._restore(committable)

    def _restore(self, committable: KafkaCommittable) -> None:
        """Rewrite the records of a lost transaction unless it was committed. A kill at any point is safe."""
        origin = self._origin(committable)
        topic = token_topic(origin.prefix)
        name = rewriter_id(origin.prefix, self._uid, committable.subtask, origin.job)
        # Acquire the id first: from here on, no other attempt to rewrite can succeed.
        producer = TransactionalProducer(
            self._sink.properties, self._where, name, self._sink.transaction_timeout_ms, self._client, [topic]
        )
        try:
            key = Token.key(self._uid, committable.subtask, origin.job, committable.generation)
            token = read_tokens(self._sink.properties, topic).get(key)
            what = f"epoch {committable.epoch} of subtask {committable.subtask}"
            if token is not None and token.id == committable.token:
                _logger.info("%s: %s was already committed", self._where, what)
                return
            if token is not None and (token.generation, token.epoch) > (committable.generation, committable.epoch):
                # Check before reading the copy, whose deletion may be pending.
                _logger.info("%s: %s was already committed, as was a later epoch", self._where, what)
                return
            if committable.outbox is None or self._files is None:
                raise HoldfastError(
                    f"{self._where}: the transaction of {what} was lost before it was committed, and without "
                    "checkpoint storage there is no copy of it"
                )
            where = self._files.locate(committable.outbox)
            try:
                data = self._files.get(committable.outbox) if committable.copy is None else committable.copy
            except NotFound as error:
                raise CorruptFile(
                    where, f"missing; it holds {what} of the {self._where}, whose transaction was lost"
                ) from error
            producer.open()
            records = 0
            for batch in read_outbox(data, where):
                producer.send(batch)
                records += len(batch.values)
            producer.send(
                Token(committable.generation, committable.epoch, committable.token, self._job.job_name).record(
                    topic, self._uid, committable.subtask, origin.job
                )
            )
            producer.flush()
            producer.commit()
            _logger.warning(
                "%s: %s (%d records) was written again; its transaction had been lost", self._where, what, records
            )
        finally:
            producer.discard()

    def _explain(self, lost: KafkaCommittable) -> None:
        """Raise the error for a transaction lost in a running job."""
        for name in self._client.list(id_prefix(self._prefix, self._uid)):
            parsed = TransactionalId.parse(name, self._prefix, self._uid)
            if parsed and parsed.job in self._jobs and parsed.generation > self._job.generation and name not in self._known:
                raise self._overtaken(parsed.generation)
        raise HoldfastError(
            f"{self._where}: the transaction of epoch {lost.epoch}, subtask {lost.subtask} was lost before it could "
            f"be committed (transaction.timeout.ms={self._sink.transaction_timeout_ms} passed, or Kafka lost it). Its "
            "records are safe: they are written again when the job restarts from its checkpoint"
        )

    def _overtaken(self, generation: int) -> Fenced:
        return Fenced(
            f"{self._where}: a later driver (generation {generation}, this one is {self._job.generation}) owns the output"
        )

    def _clean_up(self) -> None:
        """Clean up after all finished commits."""
        while True:
            with self._lock:
                committed, self._committed = self._committed, []
                if not committed:
                    self._busy = False
                    return
                if not self._closed.is_set():
                    self._disturbed.clear()
            self._clean(committed)

    def _look_again(self) -> None:
        """Until the next commit, abort what overtaken attempts open after the clean-up.

        In an idle job, no later epoch would do so, and readers of committed records would wait until it times out.
        """
        wait = _FIRST_LOOK_S
        while not self._disturbed.wait(wait):
            wait = min(2 * wait, _LAST_LOOK_S)
            try:
                self._abort_dead()
            except HoldfastError as error:
                _logger.warning("%s: looking for transactions of overtaken attempts failed: %s", self._where, error)

    def _clean(self, committed: list[tuple[int, list[KafkaCommittable]]]) -> None:
        """Delete the outbox copies, and abort open transactions of dead attempts in these epochs."""
        try:
            if self._files is not None:
                self._files.delete([c.outbox for _, ours in committed for c in ours if c.outbox and c.copy is None])
            self._latest = [*self._latest, *((call, done[0].epoch) for call, done in committed)][-2:]
            self._abort_dead()
            epoch = committed[-1][1][0].epoch
            if epoch - self._swept >= _SWEEP_EPOCHS:
                self._swept = epoch
                self._empty_outbox(lambda g, e: g < self._job.generation or (g == self._job.generation and e <= epoch))
        except (HoldfastError, StorageError) as error:  # a later clean-up or recovery will do it
            _logger.warning("%s: cleaning up after a commit failed: %s", self._where, error)

    def _abort_dead(self) -> None:
        """Abort the unfinished transactions of the latest epochs' slots, and those of earlier drivers."""
        ids = {
            name: parsed
            for name, state in self._cleaner.list(id_prefix(self._prefix, self._uid)).items()
            if state in _UNFINISHED
            and (parsed := TransactionalId.parse(name, self._prefix, self._uid))
            and parsed.job in self._jobs
        }
        described = self._cleaner.describe(ids)
        # Epoch n+4 reuses the slot of epoch n. It begins at the earliest after n+2 has been committed everywhere: until the
        # second call after that of epoch n, every transaction seen in the slot is of epoch n or earlier.
        with self._lock:
            slots = {epoch % SLOTS for call, epoch in self._latest if self._calls - call <= 1}
        dead = []
        for name, parsed in ids.items():
            found = described[name]
            old = parsed.generation < self._job.generation
            ours = parsed.generation == self._job.generation and parsed.slot in slots
            if found is not None and found[0] in _UNFINISHED and (old or ours):
                dead.append(found[1])
        self._cleaner.fence_only(dead, self._sink.transaction_timeout_ms)

    def _empty_outbox(self, old: Callable[[int, int], bool]) -> None:
        if self._files is not None:
            epochs = {name: outbox_epoch(name) for name in self._files.names()}
            self._files.delete([name for name, epoch in epochs.items() if epoch is not None and old(*epoch)])
