"""The network between the job and the broker, disturbed by a proxy."""

from __future__ import annotations

from typing import ClassVar

from holdfast.testing.chaos.faults import brokers, drivers, network
from holdfast.testing.chaos.scenarios.numbers import NumberedScenario

__all__ = ["Network"]


class Network(NumberedScenario):
    """The numbered job behind a proxy."""

    name = "network"
    about = "requests to the broker are held, repeated, lost, slow; cuts one way"
    proxied = True
    keys = 23
    every = 5
    faults: ClassVar = {
        "ends of transactions arrive epochs later": network.hold_transaction_ends,
        "requests arrive late": network.hold_requests,
        "requests arrive twice": network.repeat_requests,
        "requests lost": network.lose_requests,
        "answers lost": network.lose_answers,
        "requests of one kind slow": network.slow_requests,
        "listings of transactions not answered": network.silence_listings,
        "network cut one way or both": network.cut,
        "connections closed": network.disconnect,
        "broker killed": brokers.kill_broker,
        "broker killed again and again": brokers.kill_broker_again_and_again,
        "broker killed amid requests": network.kill_broker_amid_requests,
        "driver killed": drivers.kill_driver,
    }
    kills = (drivers.kill_driver,)
