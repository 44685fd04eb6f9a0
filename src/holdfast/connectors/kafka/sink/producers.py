"""Producers: plain ones, and transactional ones that prepare a transaction for another process to commit."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AclOperation

from holdfast.common.kafka_properties import connection_settings, transactional_properties
from holdfast.common.kafka_refusals import REFUSED
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.kafka.cluster import BrokerUnavailable, ClusterView, silence_of
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.refused_records import blames_a_record, refused, suspicion
from holdfast.connectors.kafka.sink.transactions import Prepared, TransactionClient
from holdfast.errors import ConfigurationError, HoldfastError

__all__ = ["RecordProducer", "TransactionalProducer"]

_logger = logging.getLogger(__name__)

_INIT_BUDGET_S = 60.0
_ACQUAINTANCE_S = 2.0
_ABORT_S = 10.0
_SLOW_S = 10.0
_GONE_S = 3.0
"""Seconds that records wait before the brokers are asked whether the topics exist. The client itself would wait for a topic
that was deleted as long as for a broker that is away."""
_BESIDE = {KafkaError._INVALID_DIFFERENT_RECORD, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""Of records that are not delivered because of another one."""
_NEWS_S = 0.2
"""Seconds to wait for the failure that makes a transaction refuse further records."""


def _earliest(timestamp: int) -> int:
    """The timestamp for the client library in place of one that Kafka cannot hold: none, 1970 and before.

    The library replaces 0 by the present time. A record from before 1970 must not become a present one, so it gets 1 ms.
    """
    return 0 if timestamp == MIN_TIMESTAMP else 1


class _Wait:
    """Looks after records that wait for the brokers, from its creation on."""

    def __init__(self, producer: RecordProducer) -> None:
        self._producer = producer
        self._began = self._asked = self._complained = time.monotonic()

    def look(self, left: int) -> None:
        """Raise if a record could not be delivered, or its topic was deleted; ``left`` is how many wait."""
        self._producer.check()
        if time.monotonic() - self._asked > _GONE_S:
            self._producer.check_topics()
            self._asked = time.monotonic()
        if (now := time.monotonic()) - self._complained > _SLOW_S:
            self._complained = now
            self._producer.slow(left, now - self._began)


class RecordProducer:
    """Sends batches; a record that cannot be delivered fails the next call. Not thread-safe.

    Args:
        settings: The client's settings, `producer_properties` of the user's.
        where: The writer, for error messages.
        uid: The operator's uid, for errors for which a record is to blame.
    """

    _told_of = "delivery.report.only.error", True
    """Whether `_on_delivery` hears of failures only. To hear of each record costs more than to send it."""

    def __init__(self, settings: Mapping[str, Any], where: str, uid: str = "") -> None:
        self._where = where
        self._uid = uid
        self._failed: tuple[KafkaError, Any] | None = None
        """The record that is to blame for a failure, as far as one can tell; else the first one that was not delivered."""
        self._latest: tuple[int, str, bytes | None, bytes | None] = (0, "", None, None)
        """The record with the latest timestamp: timestamp, topic, key and value. A failure does not tell timestamps."""
        callbacks = dict([self._told_of], on_delivery=self._on_delivery, error_cb=self._on_error)
        self._topics: set[str] = set()
        self._undelivered: set[tuple[str, int]] = set()
        """Topics and partitions of records that were not delivered."""
        self._chosen = False
        """Whether the program has chosen the partitions of records."""
        self._settings = settings
        self._servers = settings.get("bootstrap.servers", "")
        self._producer = Producer({**settings, **callbacks}, logger=_logger)

    def _on_error(self, error: KafkaError) -> None:
        _logger.info("%s: %s", self._where, error.str())

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            return
        self._undelivered.add((message.topic(), message.partition()))
        known = self._failed
        if (
            known is None
            or (known[0].code() in _BESIDE and error.code() not in _BESIDE)
            or (known[0].code() == error.code() and suspicion(error, message) > suspicion(*known))
        ):
            self._failed = error, message

    def send(self, batch: OutgoingBatch) -> None:
        """Pass the records to the client, which sends them in the background."""
        produce = self._producer.produce
        n = len(batch.values)
        topics = [batch.topics] * n if isinstance(batch.topics, str) else batch.topics
        self._topics.update(topics)
        keys = batch.keys or [None] * n
        at = 0
        wait = None
        while at < n:
            try:
                if batch.headers is None and batch.timestamps is None and batch.partitions is None:
                    for topic, value, key in zip(topics[at:], batch.values[at:], keys[at:], strict=True):
                        produce(topic, value, key)
                        at += 1
                else:
                    times = batch.timestamps or [MIN_TIMESTAMP] * n
                    if (latest := max(times)) > self._latest[0]:
                        first = times.index(latest)
                        self._latest = latest, topics[first], keys[first], batch.values[first]
                    headers = batch.headers or [[]] * n
                    partitions = batch.partitions or [-1] * n
                    self._chosen = self._chosen or batch.partitions is not None
                    for topic, value, key, ts, head, partition in zip(
                        topics[at:], batch.values[at:], keys[at:], times[at:], headers[at:], partitions[at:], strict=True
                    ):
                        produce(topic, value, key, partition, timestamp=ts if ts > 0 else _earliest(ts), headers=head)
                        at += 1
            except BufferError:  # the client's queue is full: let it send
                self._serve(lambda: self._producer.poll(0.05))
                wait = wait or _Wait(self)
                wait.look(len(self._producer))
            except KafkaException as error:
                if self._blames_a_record(error.args[0]):
                    told = refused(error.args[0], self._where, self._uid, topics[at], None, keys[at], batch.values[at])
                    raise told from error
                self._serve(lambda: self._producer.poll(_NEWS_S))  # a record before this one may be the cause
                self.check()
                raise self._explain(error.args[0], f"topic {topics[at]}") from error
        self._serve(lambda: self._producer.poll(0))
        self.check()

    def _serve(self, call: Callable[[], int]) -> int:
        """Serve the client's callbacks, and raise its fatal errors."""
        try:
            return call()
        except (KeyboardInterrupt, SystemExit):
            raise
        except:  # noqa: E722 -- confluent-kafka raises its KafkaError here, which is not derived from BaseException
            raised = sys.exc_info()[1]
            error = raised.args[0] if isinstance(raised, KafkaException) else raised
            if isinstance(error, KafkaError):
                raise self._explain(error, "any topic") from None
            raise HoldfastError(
                f"{self._where}: records were not delivered: fatal error of the Kafka client ({raised})"
            ) from None

    def flush(self) -> None:
        """Wait until the brokers have all records.

        Raises:
            HoldfastError: the brokers did not accept a record within the delivery timeout.
        """
        wait = _Wait(self)
        while left := self._serve(lambda: self._producer.flush(1.0)):
            wait.look(left)
        self.check()

    def slow(self, left: int, seconds: float) -> None:
        """Say that records wait."""
        _logger.warning("%s: %d records have been waiting for the brokers for %.0f s", self._where, left, seconds)

    def _blames_a_record(self, error: KafkaError) -> bool:
        """Whether a record is to blame; raises if it is its topic, which was deleted, or created again."""
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            self.check_topics()
        return blames_a_record(error)

    def check_topics(self) -> None:
        """Raise if a topic was deleted, or created again with fewer partitions, or if its records are refused."""
        view = ClusterView(connection_settings(self._settings), read_committed=False)
        try:
            found = view.topics(self._topics)
            view.check_allowed(self._topics, AclOperation.WRITE)
        except BrokerUnavailable:
            return  # a record that is not delivered in time tells who does not answer
        if missing := sorted(name for name, topic in found.items() if topic is None):
            raise HoldfastError(
                f"{self._where}: records were not delivered: there is no topic {', '.join(missing)} at {self._servers} (any "
                "more). Create it, unless it is a changelog's: a running job restarts from its last checkpoint, and creates "
                "those again"
            )
        for name, partition in sorted(self._undelivered):
            topic = found.get(name)
            if topic is not None and partition >= topic.partitions and not self._chosen:
                raise HoldfastError(
                    f"{self._where}: records were not delivered: topic {name} at {self._servers} was created again with "
                    f"fewer partitions: it has {topic.partitions}, and no partition {partition} any more. A running job "
                    "restarts from its last checkpoint, and writes the records again"
                )
        for name in self._topics:
            self._get_acquainted(name)

    def _get_acquainted(self, topic: str) -> None:
        """Let the client learn the topic's partitions."""
        try:
            self._producer.list_topics(topic, timeout=_ACQUAINTANCE_S)
        except KafkaException as error:  # whoever waits for the brokers tells the reason
            _logger.debug("%s: no metadata of topic %s yet: %s", self._where, topic, error.args[0].str())

    def close(self) -> None:
        """Close the client with its threads and connections; unsent records are lost."""
        self._producer = None

    def check(self) -> None:
        """Raise if a record could not be delivered."""
        if self._failed is not None:
            error, message = self._failed
            topic, partition = message.topic(), message.partition()
            place = f"topic {topic}, partition {partition}"
            if error.code() in _BESIDE:  # the client does not tell the cause
                self.check_topics()
            if self._blames_a_record(error):
                key, value = message.key(), message.value()
                if error.code() == KafkaError.INVALID_TIMESTAMP and self._latest[0] > time.time_ns() // 1_000_000:
                    (_, topic, key, value), partition = self._latest, None
                raise refused(error, self._where, self._uid, topic, partition, key, value)
            if error.code() == KafkaError._MSG_TIMED_OUT:
                raise HoldfastError(
                    f"{self._where}, {place}: records were not delivered in time: "
                    f"{silence_of(self._settings, topic, partition)} and writes the records again"
                )
            raise self._explain(error, place)

    def _explain(self, error: KafkaError, place: str) -> HoldfastError:
        if error.code() in REFUSED:
            return ConfigurationError(f"{self._where}, {place}: Kafka refuses to take records: {error.str()}")
        return HoldfastError(f"{self._where}, {place}: records were not delivered: {error.str()} ({error.name()})")


class _State(Enum):
    FREE = "free"
    OPEN = "open"
    PREPARED = "prepared"
    ENDED = "ended"


class TransactionalProducer(RecordProducer):
    """Acquires a transactional id for one transaction, which aborts the id's open transaction and fences its producer.

    ::

        FREE --open--> OPEN --prepare--> PREPARED    (ended elsewhere, by its committer)
                        `-----commit---> ENDED

    Each instance has its own producer epoch, so its `identity` names this transaction only, forever: no late request can end
    another transaction by mistake.

    Args:
        properties: The user's client properties.
        where: The writer, for error messages.
        transactional_id: The id.
        timeout_ms: The transaction's timeout.
        client: Asks for the producer's identity.
        topics: The topics that the transaction will probably write to, one at least.
        uid: The operator's uid, for errors for which a record is to blame.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        where: str,
        transactional_id: str,
        timeout_ms: int,
        client: TransactionClient,
        topics: Sequence[str],
        uid: str = "",
    ) -> None:
        super().__init__(transactional_properties(properties, transactional_id, timeout_ms), where, uid)
        self.transactional_id = transactional_id
        self._state = _State.FREE
        # With the first answer, librdkafka drops its connection to the bootstrap server. If it looks for the transaction's
        # coordinator before it has another one, it looks again half a second later. A topic that it does not know when the
        # first record comes costs another 0.1 s at times. The second question is asked on a connection that stays.
        for topic in (topics[0], topics[-1]):
            self._get_acquainted(topic)
        self._retry(lambda seconds: self._producer.init_transactions(seconds), "init_transactions")
        described = client.describe([transactional_id])[transactional_id]
        if described is None:
            raise HoldfastError(f"{where}: Kafka does not know the transactional id {transactional_id} it has just assigned")
        self.identity: Prepared = described[1]

    def open(self) -> None:
        """Open the transaction; the brokers learn of it with the first record."""
        if self._state is not _State.FREE:
            raise HoldfastError(f"{self._where}: the transaction of {self.transactional_id} is {self._state.value}")
        self._producer.begin_transaction()
        self._state = _State.OPEN

    def prepare(self) -> Prepared:
        """Flush all records to the brokers. From now on, only the committer ends the transaction."""
        self.flush()
        self._state = _State.PREPARED
        return self.identity

    def commit(self) -> None:
        """Commit the transaction here; for the committer's own producer when it rewrites an epoch."""
        self._retry(lambda seconds: self._producer.commit_transaction(seconds), "commit_transaction")
        self._state = _State.ENDED

    def discard(self) -> None:
        """Abort an open transaction and close the client; a prepared transaction stays prepared."""
        if self._state is _State.OPEN:
            try:
                self._producer.abort_transaction(_ABORT_S)
            except KafkaException as error:  # the brokers abort it when the id is fenced or the transaction times out
                _logger.info("%s: abort of %s: %s", self._where, self.transactional_id, error.args[0].str())
        self.close()

    def _retry(self, call: Callable[[float], None], what: str) -> None:
        """Call until it succeeds, at most for the budget; the call is given the seconds that are left."""
        began = time.monotonic()
        deadline = began + _INIT_BUDGET_S
        while True:
            try:
                return call(max(deadline - time.monotonic(), 0.1))
            except KafkaException as error:
                reason = error.args[0]
                if reason.code() in REFUSED:
                    raise ConfigurationError(
                        f"{self._where}: Kafka refuses the transactional id {self.transactional_id}: {reason.str()}"
                    ) from error
                if not reason.retriable() or time.monotonic() > deadline:
                    raise HoldfastError(
                        f"{self._where}: {what} of {self.transactional_id} failed after {time.monotonic() - began:.0f} s: "
                        f"{reason.str()} ({reason.name()}). Check that the brokers at {self._servers} run; a running job "
                        "restarts from its last checkpoint"
                    ) from error
                time.sleep(0.05)
