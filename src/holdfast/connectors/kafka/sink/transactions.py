"""Ends, lists and fences Kafka transactions independently of their producers.

A producer's client can end only its own transaction, and only while it runs. The brokers accept more: any client that knows
transactional id, producer id and epoch can end the transaction (EndTxn), and any client that acquires the transactional
id (InitProducerId) aborts the open transaction and fences its producer.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from socket import socket
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from holdfast.common.kafka_properties import protocol_properties
from holdfast.common.kafka_refusals import REFUSED
from holdfast.connectors.kafka.cluster import BrokerUnavailable
from holdfast.errors import ConfigurationError

with warnings.catch_warnings():  # importing kafka-python's message schemas uses a call deprecated in Python 3.11
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.compat import KafkaNetClient
    from kafka.net.inet import KafkaNetSocket
    from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
    from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest
    from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

    from kafka import KafkaAdminClient, errors

__all__ = ["Outcome", "Prepared", "TransactionClient", "TransactionState"]

_logger = logging.getLogger(__name__)
for _name in ("kafka.net.manager", "kafka.net.connection", "kafka.net.transport", "kafka.cluster"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # it logs every failed attempt; the last one is reported here

R = TypeVar("R")

_COORDINATOR_MOVED = {15, 16, 14}  # COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS
_BUSY = {51, 7, 13}  # CONCURRENT_TRANSACTIONS, REQUEST_TIMED_OUT, NETWORK_EXCEPTION
_LOST = {47, 48, 49, 90, 105}
"""INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, TRANSACTIONAL_ID_NOT_FOUND"""
_ATTEMPT_S = 10.0
_SILENCE_S = 60.0
"""Minimum seconds between log messages about a silent broker."""
_OLD_ENDTXN = 4
"""Later versions let the broker raise the producer epoch, which librdkafka would not notice; a new producer raises it."""


class _OwnedSockets(KafkaNetSocket):  # type: ignore[misc]
    """Knows the sockets of each client, so that all are closed with it.

    kafka-python leaves sockets to the garbage collector: that of a failed connection attempt, of which an outage of minutes
    has several a second, and those of a client that is closed while it connects or has bytes to write.
    """

    SCHEMES = ("holdfast-direct",)
    """The scheme with which ``proxy_url`` selects this class; there is no proxy."""
    _of: ClassVar[WeakKeyDictionary[Any, WeakSet[socket]]] = WeakKeyDictionary()

    async def sock_connect(self, net: Any, sock: socket, sockaddr: Any, timeout_at: float | None = None) -> Any:
        self._of.setdefault(net, WeakSet()).add(sock)
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise

    @classmethod
    def close_all(cls, client: KafkaNetClient) -> None:
        """Close the sockets that a closed client has left open."""
        for sock in list(cls._of.pop(client._net, ())):
            sock.close()


class Outcome(Enum):
    """The outcome of a request to end a transaction."""

    DONE = "done"
    LOST = "lost"
    """The transaction is gone: it timed out, was fenced, or its id was forgotten."""


class TransactionState(Enum):
    """The state of a transaction, as reported by its coordinator."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


@dataclass(frozen=True)
class Prepared:
    """The ids needed to end a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionClient:
    """A client of the transaction coordinators; connects on first use. Thread-safe.

    Args:
        properties: The user's client properties.
        budget: Seconds to retry while brokers or coordinators do not answer.
        cancelled: Checked while waiting; True ends the wait.
    """

    def __init__(
        self, properties: Mapping[str, Any], budget: float = 300.0, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._config = protocol_properties(properties)
        self._servers = ",".join(self._config["bootstrap_servers"])
        self._budget = budget
        self._cancelled = cancelled
        self._admin: KafkaAdminClient | None = None
        self._coordinators: dict[str, int] = {}
        self._told_silent = -_SILENCE_S

    def end(self, transactions: Sequence[Prepared], *, commit: bool) -> dict[Prepared, Outcome]:
        """Commit or abort transactions, all in parallel.

        Repeated and late requests are safe: no other transaction has the same identity.

        Raises:
            BrokerUnavailable: not done within the budget; it may take effect nevertheless.
            ConfigurationError: the brokers refuse the request.
        """

        def request(one: Prepared) -> EndTxnRequest:
            return EndTxnRequest(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                committed=commit,
                max_version=_OLD_ENDTXN,
            )

        def judge(response: Any) -> Outcome | None:
            return Outcome.DONE if response.error_code == 0 else Outcome.LOST if response.error_code in _LOST else None

        return self._each({t: t.transactional_id for t in transactions}, request, judge, "end transactions")

    def fence(self, transactional_ids: Iterable[str], timeout_ms: int) -> None:
        """Abort the open transactions of these ids, and fence their producers.

        Args:
            transactional_ids: The ids.
            timeout_ms: The ids' new transaction timeout in ms; at most the brokers' maximum.

        Raises:
            BrokerUnavailable: not done within the budget.
            ConfigurationError: the brokers refuse the request (authorization, or ``timeout_ms`` above their maximum).
        """
        self._init_producers({i: Prepared(i, -1, -1) for i in transactional_ids}, timeout_ms)

    def fence_only(self, transactions: Iterable[Prepared], timeout_ms: int) -> None:
        """Like `fence`, but skip ids acquired by another producer since: they belong to another transaction.

        Raises:
            BrokerUnavailable: not done within the budget.
            ConfigurationError: the brokers refuse the request.
        """
        self._init_producers({t.transactional_id: t for t in transactions}, timeout_ms)

    def _init_producers(self, wanted: Mapping[str, Prepared], timeout_ms: int) -> None:
        def request(transactional_id: str) -> InitProducerIdRequest:
            return InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=wanted[transactional_id].producer_id,
                producer_epoch=wanted[transactional_id].producer_epoch,
                max_version=4,
            )

        def judge(response: Any) -> bool | None:
            return True if response.error_code == 0 or response.error_code in _LOST else None

        self._each({i: i for i in wanted}, request, judge, "fence producers")

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, tuple[TransactionState, Prepared] | None]:
        """Return the state of each id; None for ids unknown to their coordinator.

        Raises:
            BrokerUnavailable: the brokers do not answer within the budget.
        """

        def request(transactional_id: str) -> DescribeTransactionsRequest:
            return DescribeTransactionsRequest(transactional_ids=[transactional_id])

        def judge(response: Any) -> list[Any] | None:
            (found,) = response.transaction_states
            return [] if found.error_code in _LOST else None if found.error_code else [found]

        answers = self._each({i: i for i in transactional_ids}, request, judge, "describe transactions")
        return {
            i: (TransactionState(a[0].transaction_state), Prepared(i, a[0].producer_id, a[0].producer_epoch)) if a else None
            for i, a in answers.items()
        }

    def list(self, prefix: str, patience: float = 0.0) -> dict[str, TransactionState]:
        """Return the states of the transactional ids that begin with ``prefix``, as far as the brokers answer.

        Args:
            prefix: The prefix of the ids.
            patience: Seconds to retry while a broker does not answer. After that, the result lacks the ids that it
                coordinates, and a warning is logged.

        Raises:
            BrokerUnavailable: no broker answers within the budget.
        """
        found: dict[str, TransactionState] = {}

        async def ask(admin: KafkaAdminClient) -> dict[str, errors.KafkaError]:
            await admin._manager.cluster.refresh_metadata()
            sent = {
                f"{broker.host}:{broker.port}": admin._manager.send(
                    ListTransactionsRequest(state_filters=[], producer_id_filters=[]), node_id=broker.node_id
                )
                for broker in admin._manager.cluster.brokers()
            }
            silent: dict[str, errors.KafkaError] = {}
            for broker, pending in sent.items():
                try:
                    response = await pending
                    if response.error_code:
                        raise errors.for_code(response.error_code)(str(response))
                except errors.KafkaError as error:
                    silent[broker] = error
                    continue
                for one in response.transaction_states:
                    if one.transactional_id.startswith(prefix):
                        found[one.transactional_id] = TransactionState(one.transaction_state)
            if len(silent) == len(sent):
                raise next(iter(silent.values()), errors.KafkaConnectionError("no broker is known"))
            return silent

        deadline = time.monotonic() + patience
        while True:
            found.clear()
            silent = self._persist("list transactions", lambda: self._run(ask))
            now = time.monotonic()
            if not silent or now >= deadline or self._cancelled():
                break
            time.sleep(0.1)
        if silent and now - self._told_silent > _SILENCE_S:
            self._told_silent = now
            _logger.warning(
                "Kafka at %s: no answer from %s. Transactions of dead attempts that it coordinates stay open, and readers "
                "wait behind them, until it answers or transaction.timeout.ms has passed",
                self._servers,
                ", ".join(f"{broker} ({error})" for broker, error in silent.items()),
            )
        return found

    def close(self) -> None:
        """Close the connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
            _OwnedSockets.close_all(admin._client)

    def _each(
        self, wanted: Mapping[Any, str], request: Callable[[Any], Any], judge: Callable[[Any], R | None], what: str
    ) -> dict[Any, R]:
        """Send one request per item to the ids' coordinators, all in parallel; repeat those without a final answer."""
        results: dict[Any, R] = {}

        def attempt() -> dict[Any, R]:
            open_ = {key: i for key, i in wanted.items() if key not in results}
            answers = self._run(lambda admin: self._send_all(admin, open_, request))
            problem = ""
            for key, answer in answers.items():
                result = None if isinstance(answer, Exception) else judge(answer)
                if result is not None:
                    results[key] = result
                    continue
                self._coordinators.pop(open_[key], None)
                problem = f"{open_[key]}: {answer if isinstance(answer, Exception) else self._refusal(answer)}"
            if problem:
                raise errors.KafkaConnectionError(problem)
            return results

        return self._persist(what, attempt) if wanted else results

    async def _send_all(
        self, admin: KafkaAdminClient, wanted: Mapping[Any, str], request: Callable[[Any], Any]
    ) -> dict[Any, Any]:
        await self._find_coordinators(admin, [i for i in wanted.values() if i not in self._coordinators])
        sent: dict[Any, Awaitable[Any] | Exception] = {}
        for key, transactional_id in wanted.items():
            try:
                node = self._coordinators[transactional_id]
                sent[key] = admin._manager.send(request(key), node_id=node, request_timeout_ms=int(_ATTEMPT_S * 1000))
            except (errors.KafkaError, KeyError) as error:
                sent[key] = error
        answers: dict[Any, Any] = {}
        for key, pending in sent.items():
            try:
                answers[key] = pending if isinstance(pending, Exception) else await pending
            except errors.KafkaError as error:
                answers[key] = error
        return answers

    async def _find_coordinators(self, admin: KafkaAdminClient, ids: Sequence[str]) -> None:
        if not ids:
            return
        response = await admin._manager.send(
            FindCoordinatorRequest(key_type=CoordinatorType.TRANSACTION.value, coordinator_keys=list(ids), min_version=4)
        )
        for found in response.coordinators:
            if found.error_code == 0:
                self._coordinators[found.key] = found.node_id
            elif found.error_code in REFUSED:
                self._refusal(found)
        if any(
            admin._manager.cluster.broker_metadata(self._coordinators[i]) is None for i in ids if i in self._coordinators
        ):
            await admin._manager.cluster.refresh_metadata()

    @staticmethod
    def _refusal(response: Any) -> str:
        """The broker's error name; raises if a retry is useless."""
        code = getattr(response, "error_code", None)
        if code is None:
            (state,) = response.transaction_states
            code = state.error_code
        name: str = errors.for_code(code).__name__
        if code in REFUSED:
            raise ConfigurationError(f"Kafka refuses the transaction: {name} ({errors.for_code(code).description})")
        if code not in _COORDINATOR_MOVED | _BUSY:
            _logger.debug("unexpected answer about a transaction: %s", response)
        return name

    def _run(self, ask: Callable[[KafkaAdminClient], Awaitable[R]]) -> R:
        if self._admin is None:
            self._admin = self._connect()
        admin = self._admin

        async def on_the_loop() -> R:
            return await ask(admin)

        result: R = admin._manager.run(on_the_loop)
        return result

    def _connect(self) -> KafkaAdminClient:
        made: list[KafkaNetClient] = []

        def client(**config: Any) -> KafkaNetClient:
            made.append(KafkaNetClient(**config))
            return made[-1]

        try:
            return KafkaAdminClient(
                **self._config,
                client_id="holdfast-transactions",
                proxy_url=f"{_OwnedSockets.SCHEMES[0]}://",
                bootstrap_timeout_ms=int(_ATTEMPT_S * 1000),
                request_timeout_ms=int(_ATTEMPT_S * 1000),
                reconnect_backoff_max_ms=500,
                kafka_client=client,
            )
        except BaseException:
            for one in made:
                one.close()  # close its thread and sockets: each attempt creates a new client
                _OwnedSockets.close_all(one)
            raise

    def _persist(self, what: str, attempt: Callable[[], R]) -> R:
        """Repeat an attempt until it succeeds or the budget is used up."""
        deadline = time.monotonic() + self._budget
        pause = 0.002
        began = complained = time.monotonic()
        while True:
            try:
                return attempt()
            except errors.SaslAuthenticationFailedError as error:
                raise ConfigurationError(f"Kafka at {self._servers} refuses the login: {error}") from error
            except errors.KafkaError as error:
                now = time.monotonic()
                if now > deadline or self._cancelled():
                    raise BrokerUnavailable(
                        f"could not {what} at Kafka {self._servers} within {now - began:.0f} s: {error}. Check that the "
                        "brokers run and have elected leaders; a running job restarts from its last checkpoint"
                    ) from error
                if now - complained > 10:
                    complained = now
                    _logger.warning(
                        "Kafka at %s: cannot %s for %.0f s, retrying: %s", self._servers, what, now - began, error
                    )
                time.sleep(pause)
                pause = min(pause * 2, 0.25)
