"""A TCP proxy between Kafka clients and a broker that disturbs individual requests and answers, selected by kind.

::

    broker = KafkaBroker()
    proxy = KafkaProxy(broker)  # before the broker starts: the broker advertises it
    with broker, proxy:
        late = proxy.hold(ApiKey.END_TXN, sever=True)
        ...  # a client of proxy.bootstrap_servers commits, loses its connection, and tries again
        late.release()  # only now does the first request reach the broker

Clients of ``broker.bootstrap_servers`` bypass the proxy, even after they have fetched metadata.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import TracebackType
from typing import Any

from holdfast.testing.kafka import KafkaBroker
from holdfast.testing.ports import ReservedPort

__all__ = ["ApiKey", "Disturbance", "KafkaProxy", "Message", "Side"]

_HEADER = struct.Struct(">hhih")
"""API key, API version, correlation id, length of the client id."""
_WAIT_S = 60.0


class ApiKey(IntEnum):
    """The kinds of requests that tests disturb, with their numbers in Kafka's protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_CONFIGS = 32
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_TOPIC_PARTITIONS = 75


class Side(Enum):
    """The direction of a message."""

    REQUEST = "to the broker"
    ANSWER = "to the client"


@dataclass(frozen=True, eq=False)
class Message:
    """A request, or the answer to one."""

    side: Side
    api: int
    """An `ApiKey`, or a plain number for other kinds."""
    version: int
    correlation_id: int
    client_id: str
    request: bytes
    """The request, header included: ``b"my-prefix" in message.request`` tells transactions apart."""

    @classmethod
    def of(cls, frame: bytes) -> Message:
        """Parse the request in a frame."""
        api, version, correlation_id, length = _HEADER.unpack_from(frame)
        client_id = frame[_HEADER.size : _HEADER.size + max(length, 0)].decode()
        return cls(Side.REQUEST, api, version, correlation_id, client_id, frame)

    def answer(self) -> Message:
        """The answer to this request; it keeps the request's description."""
        return Message(Side.ANSWER, self.api, self.version, self.correlation_id, self.client_id, self.request)


class _Action(Enum):
    HOLD = "hold"
    DELAY = "delay"
    LOSE = "lose"
    REPEAT = "repeat"


class Disturbance:
    """A disturbance of selected messages, until `stop` or for ``times`` messages. Created by `KafkaProxy`."""

    def __init__(
        self,
        proxy: KafkaProxy,
        action: _Action,
        api: int | None,
        side: Side,
        matching: Callable[[Message], bool],
        times: int | None,
        skip: int,
        *,
        seconds: float = 0.0,
        sever: bool = False,
    ) -> None:
        self.action, self.seconds, self.sever = action, seconds, sever
        self._proxy = proxy
        self._api, self._side, self._matching = api, side, matching
        self._left, self._skip = times, skip
        self._changed = threading.Condition()
        self.caught: list[Message] = []
        """The disturbed messages."""
        self.answered = 0
        """How many of the disturbed requests, or of their copies, the broker has answered; these have taken effect."""
        self.released = asyncio.Event()

    def takes(self, message: Message) -> bool:
        """Whether this message is to be disturbed; if so, counts it."""
        with self._changed:
            if self._left == 0 or message.side is not self._side or self._api not in (None, message.api):
                return False
            if not self._matching(message):
                return False
            if self._skip:
                self._skip -= 1
                return False
            if self._left is not None:
                self._left -= 1
            self.caught.append(message)
            self._changed.notify_all()
            return True

    def wait(self, n: int = 1, timeout: float = _WAIT_S) -> None:
        """Wait until ``n`` messages were disturbed.

        Raises:
            TimeoutError: fewer messages arrived in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.caught) >= n, timeout):
                raise TimeoutError(f"{len(self.caught)} messages to {self.action.value} within {timeout:g} s, not {n}")

    def wait_answered(self, n: int = 1, timeout: float = _WAIT_S) -> None:
        """Wait until the broker has answered ``n`` of the requests (for `repeat`, of the copies).

        Raises:
            TimeoutError: the broker answered fewer in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.answered >= n, timeout):
                raise TimeoutError(f"the broker answered {self.answered} requests within {timeout:g} s, not {n}")

    def note_answer(self) -> None:
        """Count an answer of the broker to one of the requests."""
        with self._changed:
            self.answered += 1
            self._changed.notify_all()

    def release(self) -> None:
        """Deliver held messages, or the copies of repeated ones; later ones pass at once."""
        self._proxy._call(self.released.set)

    def stop(self) -> None:
        """Disturb no further messages, and release the held ones."""
        with self._changed:
            self._left = 0
        self.release()


class _Connection:
    """A client's connection, with its counterpart to the broker."""

    def __init__(self, proxy: KafkaProxy, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._unanswered: dict[int, Message] = {}
        self._client_gone = False

    async def serve(self) -> None:
        """Pass frames both ways until one side has closed and all its frames have been delivered."""
        try:
            self._from_broker, self._to_broker = await asyncio.open_connection(self._proxy.broker.host, self._proxy.upstream)
        except OSError:
            self._to_client.transport.abort()
            return
        try:
            await asyncio.gather(self._pass_requests(), self._pass_answers())
        finally:
            self.abort()
            self._to_broker.transport.abort()

    def abort(self) -> None:
        """Cut the client off. Frames already received may still reach the broker."""
        self._client_gone = True
        self._to_client.transport.abort()

    async def _pass_requests(self) -> None:
        try:
            while (frame := await _read(self._from_client)) is not None:
                message = Message.of(frame)
                self._proxy.seen[message.api] += 1
                if not await self._disturb(message, frame):
                    return
                self._unanswered[message.correlation_id] = message
                _write(self._to_broker, frame)
                await self._to_broker.drain()
        except ConnectionError:
            pass
        finally:
            self._client_gone = True
            if not self._unanswered:
                self._to_broker.transport.abort()

    async def _pass_answers(self) -> None:
        try:
            while (frame := await _read(self._from_broker)) is not None:
                request = self._unanswered.pop(int.from_bytes(frame[:4], "big", signed=True), None)
                if request is not None:
                    for disturbance in self._proxy._disturbances:
                        if disturbance.action is not _Action.REPEAT and request in disturbance.caught:
                            disturbance.note_answer()
                    if not await self._disturb(request.answer(), frame):
                        return
                if self._client_gone:
                    if not self._unanswered:
                        return
                    continue
                _write(self._to_client, frame)
                await self._to_client.drain()
        except ConnectionError:
            pass
        finally:
            self.abort()
            self._to_broker.transport.abort()

    async def _disturb(self, message: Message, frame: bytes) -> bool:
        """Apply the disturbances to a message; returns False if the message, and with it the connection, is lost."""
        for disturbance in self._proxy._disturbances_of(message):
            if disturbance.action is _Action.LOSE:
                self.abort()
                self._to_broker.transport.abort()
                return False
            if disturbance.action is _Action.REPEAT:
                self._proxy._spawn(self._proxy._send_copy(disturbance, frame))
            elif disturbance.action is _Action.DELAY:
                await asyncio.sleep(disturbance.seconds)
            else:
                if disturbance.sever:
                    self.abort()
                await disturbance.released.wait()
        await self._proxy._open[message.side].wait()
        return True


class KafkaProxy:
    """Listens on its own port, which the broker advertises to the proxy's clients.

    Args:
        broker: A broker that has not been started yet; it gets an additional listener for this proxy.
        listener: The listener's name. The proxies of a cluster's brokers share one name, so that a client of one of them
            reaches every broker through its proxy; proxies with different names serve different clients.
    """

    def __init__(self, broker: KafkaBroker, listener: str = "PROXIED") -> None:
        self.broker = broker
        self._reserved = ReservedPort(broker.host)
        self.port = self._reserved.number
        self.upstream = broker.add_listener(listener, self.port)
        self.seen: Counter[int] = Counter()
        """Requests by kind (`ApiKey`), including disturbed ones."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"kafka-proxy-{self.port}", daemon=True)
        self._disturbances: list[Disturbance] = []
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = {side: asyncio.Event() for side in Side}
        for gate in self._open.values():
            gate.set()

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return f"{self.broker.host}:{self.port}"

    def hold(
        self,
        api: int | None,
        side: Side = Side.REQUEST,
        *,
        matching: Callable[[Message], bool] = lambda _: True,
        times: int | None = 1,
        skip: int = 0,
        sever: bool = False,
    ) -> Disturbance:
        """Hold messages, and those after them on the same connection, until they are released.

        Args:
            api: The kind of request; None: any.
            side: Hold requests, or the answers to them.
            matching: Restricts the selection.
            times: The number of messages to hold; None: all.
            skip: The number of messages to let pass first.
            sever: Whether to close the client's connection meanwhile, so that the client retries at once on another one. A
                held request still arrives when released, like a request delayed on the network.
        """
        return self._add(Disturbance(self, _Action.HOLD, api, side, matching, times, skip, sever=sever))

    def delay(
        self,
        api: int | None,
        seconds: float,
        side: Side = Side.REQUEST,
        *,
        matching: Callable[[Message], bool] = lambda _: True,
        times: int | None = None,
    ) -> Disturbance:
        """Deliver messages, and those after them on the same connection, ``seconds`` later."""
        return self._add(Disturbance(self, _Action.DELAY, api, side, matching, times, 0, seconds=seconds))

    def lose(
        self,
        api: int | None,
        side: Side = Side.REQUEST,
        *,
        matching: Callable[[Message], bool] = lambda _: True,
        times: int | None = 1,
        skip: int = 0,
    ) -> Disturbance:
        """Close the connection instead of delivering a message. A request whose answer is lost has taken effect."""
        return self._add(Disturbance(self, _Action.LOSE, api, side, matching, times, skip))

    def repeat(
        self, api: int | None, *, matching: Callable[[Message], bool] = lambda _: True, times: int | None = 1, skip: int = 0
    ) -> Disturbance:
        """Deliver requests, and a copy of each on release, over a connection of its own; the copy's answer is discarded."""
        return self._add(Disturbance(self, _Action.REPEAT, api, Side.REQUEST, matching, times, skip))

    def cut(self, side: Side) -> None:
        """Block one direction; connections stay open. Block both for a network partition."""
        self._call(self._open[side].clear)

    def restore(self) -> None:
        """Undo `cut`: blocked messages arrive."""
        for gate in self._open.values():
            self._call(gate.set)

    def disconnect(self) -> None:
        """Close the connections of all clients, as a restarted network device does."""
        for connection in list(self._connections):
            self._call(connection.abort)

    def calm(self) -> None:
        """End all disturbances and cuts; held messages arrive."""
        for disturbance in self._disturbances:
            disturbance.stop()
        self._disturbances = []
        self.restore()

    def start(self) -> KafkaProxy:
        """Start to listen."""
        self._thread.start()
        listening = asyncio.start_server(self._accept, self.broker.host, self.port)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(_WAIT_S)
        return self

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._reserved.close()
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(_WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> KafkaProxy:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _add(self, disturbance: Disturbance) -> Disturbance:
        self._disturbances = [*self._disturbances, disturbance]
        return disturbance

    def _disturbances_of(self, message: Message) -> list[Disturbance]:
        return [disturbance for disturbance in self._disturbances if disturbance.takes(message)]

    def _call(self, what: Callable[[], Any]) -> None:
        self._loop.call_soon_threadsafe(what)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._serve(_Connection(self, (reader, writer))))

    async def _serve(self, connection: _Connection) -> None:
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)

    async def _send_copy(self, disturbance: Disturbance, frame: bytes) -> None:
        await disturbance.released.wait()
        reader, writer = await asyncio.open_connection(self.broker.host, self.upstream)
        try:
            _write(writer, frame)
            if await _read(reader) is not None:
                disturbance.note_answer()
        finally:
            writer.transport.abort()

    async def _shut_down(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(stream: asyncio.StreamReader) -> bytes | None:
    """The next frame; None at the end of the stream."""
    try:
        return await stream.readexactly(int.from_bytes(await stream.readexactly(4), "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _write(stream: asyncio.StreamWriter, frame: bytes) -> None:
    stream.write(len(frame).to_bytes(4, "big") + frame)
