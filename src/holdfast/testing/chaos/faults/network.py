"""Faults of the network between job and brokers: held, repeated, lost and slow requests; cuts one way or both."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.testing.chaos.stage import Stage
from holdfast.testing.proxy import ApiKey, Message, Side

__all__ = [
    "cut",
    "disconnect",
    "hold_requests",
    "hold_transaction_ends",
    "kill_broker_amid_requests",
    "lose_answers",
    "lose_requests",
    "repeat_requests",
    "silence_listings",
    "slow_requests",
]

_KINDS = (
    ApiKey.PRODUCE,
    ApiKey.END_TXN,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.METADATA,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.FETCH,
    ApiKey.OFFSET_COMMIT,
)
_SLOW_KINDS = (*_KINDS, ApiKey.LIST_TRANSACTIONS)
_SPARE = 16
"""The number of transactions ended in four epochs by two sinks with two subtasks each."""
_CORRELATION = 8
"""Bytes at the head of a request that differ in its repetition."""
_SILENCE_S = 30.0


def hold_transaction_ends(stage: Stage) -> str:
    """Requests to end transactions are delayed: their repetitions arrive first, the originals epochs later.

    One request is held per transaction, over enough epochs to cover all transactional ids. The held requests arrive one by
    one while records are slow, so that later epochs' transactions are half written.
    """
    requests: list[bytes] = []

    def nth_transaction(n: int) -> Callable[[Message], bool]:
        def is_it(message: Message) -> bool:
            content = message.request[_CORRELATION:]
            if content not in requests:
                requests.append(content)
            return requests.index(content) == n

        return is_it

    held = [
        proxy.hold(ApiKey.END_TXN, matching=nth_transaction(n), sever=True) for proxy in stage.proxies for n in range(_SPARE)
    ]
    stage.until(lambda: len(requests) > _SPARE, 8.0)
    stage.recovered()
    slow = [proxy.delay(ApiKey.PRODUCE, 0.2) for proxy in stage.proxies]
    for one in stage.random.sample(held, len(held)):
        stage.pause(0.0, 0.3)
        one.stop()
    for disturbance in slow:
        disturbance.stop()
    return f"{sum(len(one.caught) for one in held)} transactions were ended once more, epochs later"


def hold_requests(stage: Stage) -> str:
    """Requests of another kind are delayed: their repetitions arrive first, the originals seconds later."""
    kind = stage.random.choice(_KINDS)
    number = stage.random.randint(1, 4)
    held = [proxy.hold(kind, times=number, sever=True) for proxy in stage.proxies]
    stage.pause(0.5, 4.0)
    stage.recovered()
    for one in held:
        one.stop()
    return f"{sum(len(one.caught) for one in held)} {kind.name} requests arrived after their repetitions"


def repeat_requests(stage: Stage) -> str:
    """Requests arrive a second time, seconds later."""
    kind = stage.random.choice(_KINDS)
    repeated = [proxy.repeat(kind, times=stage.random.randint(1, 8)) for proxy in stage.proxies]
    stage.pause(1.0, 4.0)
    for one in repeated:
        one.stop()
    return f"{sum(len(one.caught) for one in repeated)} {kind.name} requests arrived once more"


def lose_requests(stage: Stage) -> str:
    """The connection breaks instead of delivering requests."""
    return _lose(stage, Side.REQUEST)


def lose_answers(stage: Stage) -> str:
    """Requests take effect, but the connection breaks instead of delivering the answers."""
    return _lose(stage, Side.ANSWER)


def _lose(stage: Stage, side: Side) -> str:
    kind = stage.random.choice(_KINDS)
    lost = [proxy.lose(kind, side, times=stage.random.randint(1, 3)) for proxy in stage.proxies]
    stage.pause(1.0, 4.0)
    for one in lost:
        one.stop()
    what = "requests" if side is Side.REQUEST else "answers to requests"
    return f"{sum(len(one.caught) for one in lost)} {kind.name} {what} were lost"


def slow_requests(stage: Stage) -> str:
    """Requests of one kind are slow, but not slow enough to justify a restart."""
    kind = stage.random.choice(_SLOW_KINDS)
    seconds = stage.random.uniform(0.2, 2.0)
    with stage.calm(f"{kind.name} requests take {seconds:.1f} s longer"):
        slow = [proxy.delay(kind, seconds) for proxy in stage.proxies]
        stage.pause(4.0, 8.0)
        for one in slow:
            one.stop()
        stage.pause(1.0, 1.0)
    return f"{kind.name} requests took {seconds:.1f} s longer for a while"


def silence_listings(stage: Stage) -> str:
    """The driver gets no answer to its listings of transactions, if necessary for a minute; output must continue."""
    held = [proxy.hold(ApiKey.LIST_TRANSACTIONS, times=None) for proxy in stage.proxies]
    stage.pause(1.0, 2.0)
    since = stage.watcher.newest
    stage.until(lambda: stage.watcher.newest > since + 2000, _SILENCE_S)
    if stage.watcher.newest <= since + 2000:
        stage.violation(f"no new output for {_SILENCE_S:.0f} s while Kafka does not answer listings of transactions")
    for one in held:
        one.stop()
    return "listings of transactions were not answered"


def cut(stage: Stage) -> str:
    """Block one or both directions."""
    sides = stage.random.choice(((Side.REQUEST,), (Side.ANSWER,), (Side.REQUEST, Side.ANSWER)))
    for proxy in stage.proxies:
        for side in sides:
            proxy.cut(side)
    stage.pause(0.5, 14.0)
    for proxy in stage.proxies:
        proxy.restore()
    return f"nothing passed {' or '.join(side.value for side in sides)} for a while"


def kill_broker_amid_requests(stage: Stage) -> str:
    """The broker is killed during a request, and returns after a while; the driver's process survives."""
    kind = stage.random.choice((ApiKey.OFFSET_COMMIT, ApiKey.FIND_COORDINATOR, ApiKey.PRODUCE, ApiKey.END_TXN))
    broker = stage.random.choice(stage.kafka.brokers)
    held = [proxy.hold(kind) for proxy in stage.proxies if proxy.broker is broker]
    stage.until(lambda: any(one.caught for one in held), 3.0)
    stage.kill_broker(broker)
    for one in held:
        one.stop()
    stage.pause(6.0, 14.0)
    broker.start()
    return f"broker {broker.node_id} killed amid {kind.name} requests, and started again"


def disconnect(stage: Stage) -> str:
    """Close all connections, several times."""
    times = stage.random.randint(1, 5)
    for _ in range(times):
        for proxy in stage.proxies:
            proxy.disconnect()
        stage.pause(0.05, 1.0)
    return f"all connections were closed {times} times"
