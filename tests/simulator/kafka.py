"""Kafka's brokers, simulated; the exactly-once sink's real writer, committer and transaction client talk to them.

Replaced are the client libraries' connections (`confluent_kafka.Producer`, the transport of `TransactionClient`, the
reader of the tokens) and the threads. The brokers do what real ones may: a request that was given up arrives later,
answers get lost, transactions time out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.connectors import job_files
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.cluster import BrokerUnavailable
from holdfast.connectors.kafka.sink import committer, pool, producers, writer
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.output import KafkaOutput
from holdfast.connectors.kafka.sink.tokens import Token
from holdfast.connectors.kafka.sink.transactions import TransactionClient, TransactionState
from holdfast.errors import HoldfastError

from .world import Crash, Process, World

_ATTEMPTS = 8
_INVALID_PRODUCER_EPOCH, _INVALID_TXN_STATE, _TRANSACTIONAL_ID_NOT_FOUND = 47, 48, 105
Record = tuple[str, bytes | None, bytes | None]
"""Topic, key and value."""


class Serializer:
    """Writes a pair of key and count."""

    topic = "counts"

    def to_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None, context: Any) -> OutgoingBatch:
        return OutgoingBatch(
            self.topic, [msgspec.json.encode(value) for value in values], [b"%d" % key for key, _ in values]
        )


OUTPUT = KafkaOutput(
    {"bootstrap.servers": "simulated:9092"},
    Serializer(),  # type: ignore[arg-type]
    DeliveryGuarantee.EXACTLY_ONCE,
    "simulated",
)


@dataclass
class TransactionalId:
    """What the coordinator of a transactional id knows."""

    producer_id: int
    epoch: int = -1
    state: TransactionState = TransactionState.EMPTY
    records: list[Record] = field(default_factory=list)


class Brokers:
    """Transactions by the rules of Kafka's protocol, EndTxn up to version 4."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ids: dict[str, TransactionalId] = {}
        self.committed: list[Record] = []
        """In the order of the commits."""
        self._fenced: set[tuple[str, int, int]] = set()
        """Transactions that a committer has aborted."""
        self.raises_epochs = True
        """False: a transactional id that is taken over without an open transaction keeps its epoch."""

    @property
    def visible(self) -> list[tuple[int, int]]:
        """The committed output."""
        return [tuple(msgspec.json.decode(v or b"")) for topic, _, v in self.committed if topic == Serializer.topic]

    @property
    def dangling(self) -> list[str]:
        """The ids with an unfinished transaction."""
        return [name for name, known in self.ids.items() if known.state is TransactionState.ONGOING]

    def send(self, request: Any) -> Any:
        """The answer to a request; None if there is none. Then it may have arrived, or may arrive later."""
        world = self._world
        world.hazard()
        if world.chance("expired") and (dangling := self.dangling):
            self._abort(self.ids[world.random.choice(dangling)])  # transaction.timeout.ms has passed
        if world.chance("delayed"):
            world.in_flight.append(lambda: self._arrive(request))
            return None
        if type(request).__name__ == "EndTxnRequest" and world.chance("repeated"):
            world.in_flight.append(lambda: self._arrive(request))  # it was held back, and its retry overtakes it
        answer = self._arrive(request)
        lost = world.chance("lost")
        world.hazard()
        return None if lost else answer

    def _arrive(self, request: Any) -> Any:
        arrive: Callable[[Any], Any] = getattr(self, f"_{type(request).__name__}")
        return arrive(request)

    def _abort(self, known: TransactionalId) -> None:
        """The coordinator aborts with an epoch of its own, so that the producer is fenced."""
        known.epoch += 1
        known.state, known.records = TransactionState.COMPLETE_ABORT, []

    def _InitProducerIdRequest(self, request: Any) -> Any:
        known = self.ids.setdefault(request.transactional_id, TransactionalId(1000 + len(self.ids)))
        if request.producer_id != -1 and (request.producer_id, request.producer_epoch) != (known.producer_id, known.epoch):
            return SimpleNamespace(error_code=_INVALID_PRODUCER_EPOCH)
        if known.state is TransactionState.ONGOING:
            if not isinstance(request, _Init):
                self._fenced.add((request.transactional_id, known.producer_id, known.epoch))
            self._abort(known)
        if self.raises_epochs or known.epoch < 0:
            known.epoch += 1
            known.state = TransactionState.EMPTY
        return SimpleNamespace(error_code=0, producer_id=known.producer_id, producer_epoch=known.epoch)

    def _EndTxnRequest(self, request: Any) -> Any:
        known = self.ids.get(request.transactional_id)
        if known is None:
            return SimpleNamespace(error_code=_TRANSACTIONAL_ID_NOT_FOUND)
        identity = request.transactional_id, request.producer_id, request.producer_epoch
        if request.committed and not isinstance(request, _End):
            assert identity not in self._fenced, f"a clean-up has aborted {identity}, which a checkpoint refers to"
        if (request.producer_id, request.producer_epoch) != (known.producer_id, known.epoch):
            return SimpleNamespace(error_code=_INVALID_PRODUCER_EPOCH)
        ended = TransactionState.COMPLETE_COMMIT if request.committed else TransactionState.COMPLETE_ABORT
        if known.state is TransactionState.ONGOING:
            if request.committed:
                self.committed += known.records
            known.state, known.records = ended, []
        return SimpleNamespace(error_code=0 if known.state is ended else _INVALID_TXN_STATE)

    def _DescribeTransactionsRequest(self, request: Any) -> Any:
        (name,) = request.transactional_ids
        known = self.ids.get(name)
        if known is None:
            return SimpleNamespace(transaction_states=[SimpleNamespace(error_code=_TRANSACTIONAL_ID_NOT_FOUND)])
        state = SimpleNamespace(
            error_code=0,
            transaction_state=known.state.value,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
        )
        return SimpleNamespace(transaction_states=[state])

    def produce(self, name: str, producer_id: int, epoch: int, records: list[Record]) -> bool:
        """Take records into the transaction of the id; False if the producer is fenced."""
        known = self.ids[name]
        if (producer_id, epoch) != (known.producer_id, known.epoch):
            return False
        if known.state is not TransactionState.ONGOING:
            known.state, known.records = TransactionState.ONGOING, []
        known.records += records
        return True


@dataclass(frozen=True)
class _Init:
    """InitProducerId, as a producer sends it."""

    transactional_id: str
    producer_id: int = -1
    producer_epoch: int = -1


_Init.__name__ = "InitProducerIdRequest"


@dataclass(frozen=True)
class _End:
    """EndTxn, as a producer sends it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


_End.__name__ = "EndTxnRequest"


def _error(code: int, *, retriable: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "simulated", False, retriable))


class Producer:
    """Stands in for `confluent_kafka.Producer`."""

    def __init__(self, world: World, brokers: Brokers, config: Mapping[str, Any]) -> None:
        self._world = world
        self._brokers = brokers
        self._name: str = config["transactional.id"]
        self._on_delivery = config["on_delivery"]
        self._identity = (-1, -1)
        self._waiting: list[Record] = []
        self._begun = False

    def list_topics(self, topic: str, timeout: float) -> None:
        """Metadata is read only: asking for it changes nothing that the simulation knows."""

    def init_transactions(self, timeout: float) -> None:
        answer = self._brokers.send(_Init(self._name))
        if answer is None:
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        self._identity = (answer.producer_id, answer.producer_epoch)

    def begin_transaction(self) -> None:
        self._waiting, self._begun = [], True

    def produce(self, topic: str, value: bytes | None, key: bytes | None) -> None:
        assert self._begun, "no transaction has begun"
        self._waiting.append((topic, key, value))

    def poll(self, timeout: float) -> int:
        return self.flush(timeout) if self._world.random.random() < 0.3 else 0

    def flush(self, timeout: float) -> int:
        self._world.hazard()
        records, self._waiting = self._waiting, []
        if records and not self._brokers.produce(self._name, *self._identity, records):
            self._on_delivery(
                _error(KafkaError._FENCED).args[0],
                SimpleNamespace(topic=lambda: "counts", partition=lambda: 0),
            )
        return 0

    def commit_transaction(self, timeout: float) -> None:
        self._end(committed=True)

    def abort_transaction(self, timeout: float) -> None:
        self._waiting = []
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        self._begun = False
        answer = self._brokers.send(_End(self._name, *self._identity, committed))
        if answer is None:
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        if answer.error_code:
            raise _error(KafkaError._FENCED)


class Deferred:
    """A call that another thread of the process makes, sooner or later."""

    def __init__(self, world: World, call: Callable[[], Any]) -> None:
        self._call = call
        self._state = "waiting"
        self._outcome: Any = None
        self._failure: BaseException | None = None
        world.processes.append(self._run_later())

    def _run_later(self) -> Process:
        yield
        if self._state == "waiting":
            self._run()

    def _run(self) -> None:
        self._state = "running"
        try:
            self._outcome = self._call()
        except Exception as error:
            self._failure = error
        except Crash:
            self._state = "crashed"
            raise
        self._state = "done"

    def cancel(self) -> None:
        if self._state == "waiting":
            self._state, self._failure = "done", CancelledError()

    def wait(self) -> None:
        if self._state == "crashed":
            raise Crash  # the whole process has
        if self._state == "running":
            raise Crash  # it is below on the stack and goes on only when this process is over: so it is killed here
        if self._state == "waiting":
            self._run()

    def done(self) -> bool:
        return self._state in ("done", "crashed")

    def cancelled(self) -> bool:
        return isinstance(self._failure, CancelledError)

    def exception(self) -> BaseException | None:
        self.wait()
        return self._failure

    def result(self) -> Any:
        self.wait()
        if self._failure is not None:
            raise self._failure
        return self._outcome


class Executor:
    """Stands in for `ThreadPoolExecutor`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls: list[Deferred] = []

    def submit(self, call: Callable[..., Any], *args: Any) -> Deferred:
        self._calls = [deferred for deferred in self._calls if not deferred.done()]
        self._calls.append(Deferred(self._world, lambda: call(*args)))
        return self._calls[-1]

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        for deferred in self._calls:
            if cancel_futures:
                deferred.cancel()
            if wait:
                deferred.wait()


class Event(threading.Event):
    """An event on which nobody waits for long: another thread's turn comes by chance."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, or would have been before the caller looks again."""
        return self.is_set() or self._world.random.random() < 0.5


def install(patch: pytest.MonkeyPatch, world: World) -> Brokers:
    """Put simulated brokers, threads and storage under the sink's writers and committers."""
    brokers = Brokers(world)
    world.visible = lambda: brokers.visible

    def each(
        client: TransactionClient,
        wanted: Mapping[Any, str],
        request: Callable[[Any], Any],
        judge: Callable[[Any], Any],
        what: str,
    ) -> dict[Any, Any]:
        results = {}
        for key in wanted:
            for _ in range(_ATTEMPTS):
                answer = brokers.send(request(key))
                result = None if answer is None else judge(answer)
                if result is not None:
                    results[key] = result
                    break
                world.time += 1
            else:
                raise BrokerUnavailable(f"could not {what}: {key}")
        return results

    def listed(client: TransactionClient, prefix: str, patience: float = 0.0) -> dict[str, TransactionState]:
        world.hazard()
        return {name: known.state for name, known in brokers.ids.items() if name.startswith(prefix)}

    def read_tokens(properties: Mapping[str, Any], topic: str, *, wait: bool = True) -> dict[bytes, Token]:
        world.hazard()
        if wait and any(topic == record[0] for name in brokers.dangling for record in brokers.ids[name].records):
            raise HoldfastError("a transaction stays open in the topic of tokens")
        tokens = {}
        for name, key, value in brokers.committed:
            if name == topic:
                tokens[key or b""] = msgspec.json.decode(value or b"", type=Token)
        world.hazard()
        return tokens

    def sleep(seconds: float) -> None:
        world.time += seconds

    patch.setattr(TransactionClient, "_each", each)
    patch.setattr(TransactionClient, "list", listed)
    patch.setattr(producers, "Producer", lambda config, logger: Producer(world, brokers, config))
    patch.setattr(producers, "time", SimpleNamespace(monotonic=lambda: world.time, sleep=sleep))
    patch.setattr(committer, "threading", SimpleNamespace(Event=lambda: Event(world), Lock=threading.Lock))
    patch.setattr(committer, "read_tokens", read_tokens)
    patch.setattr(committer, "never_written", lambda properties, topic: False)
    patch.setattr(committer, "ensure_token_topic", lambda properties, topic, output: None)
    patch.setattr(job_files, "Storage", SimpleNamespace(open=lambda uri, config: world.storage()))
    for module in (committer, writer, pool):
        patch.setattr(module, "ThreadPoolExecutor", lambda max_workers, thread_name_prefix: Executor(world))
    return brokers
