"""The faults. Each is injected into the running campaign and says what it did; the campaign waits for the recovery."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint.metadata import Completed, decode_entry

if TYPE_CHECKING:
    from holdfast.testing.chaos.campaign import Campaign

__all__ = ["deck"]

_FENCE_S = 90.0


def deck(campaign: Campaign) -> dict[str, Callable[[], str]]:
    """The faults that can be injected here, by name."""
    faults = {
        "driver killed": _kill_driver,
        "driver killed twice": _kill_driver_twice,
        "driver and local stores gone": _lose_machine,
        "driver paused, successor takes over": _pause_driver,
        "everything paused, successor takes over": _pause_everything,
        "Spark's JVM killed": _kill_jvm,
        "Python worker killed": _kill_worker,
        "Python daemon killed": _kill_daemon,
        "task slot killed": _kill_slot,
        "all task slots killed": _kill_slots,
        "task slot paused": _pause_slot,
        "task slot paused, driver killed": _pause_slot_kill_driver,
        "local stores deleted": _delete_stores,
        "broker killed": _kill_broker,
        "broker paused": _pause_broker,
        "broker and driver killed": _kill_broker_and_driver,
        "checkpoint file damaged": _damage,
    }
    if campaign.small_disk:
        faults["disk full"] = _fill_disk
    return {name: (lambda fault=fault: fault(campaign)) for name, fault in faults.items()}  # type: ignore[misc]


# ---- processes -----------------------------------------------------------------------------------------------------------


def _kill_driver(campaign: Campaign) -> str:
    number = campaign.driver.number
    campaign.kill_driver()
    campaign.start_driver()
    return f"driver {number} killed, driver {campaign.driver.number} started"


def _kill_driver_twice(campaign: Campaign) -> str:
    """Again while it recovers: recovery must be repeatable."""
    _kill_driver(campaign)
    times = campaign.random.randint(1, 3)
    for _ in range(times):
        campaign.pause(3.0, 12.0)
        _kill_driver(campaign)
    return f"driver killed {times + 1} times in a row, driver {campaign.driver.number} started"


def _lose_machine(campaign: Campaign) -> str:
    campaign.kill_driver()
    campaign.driver.end()
    shutil.rmtree(campaign.state_directory, ignore_errors=True)
    campaign.start_driver()
    return f"all processes killed, local stores deleted, driver {campaign.driver.number} started"


def _pause_driver(campaign: Campaign) -> str:
    return _take_over(campaign, ["driver"])


def _pause_everything(campaign: Campaign) -> str:
    return _take_over(campaign, ["driver", "jvm", "daemon", "worker", "slot"])


def _take_over(campaign: Campaign, kinds: list[str]) -> str:
    """The old driver stands still while its successor completes epochs; then it wakes up, and must stop by itself."""
    old = campaign.driver
    old.pause(*(pid for kind in kinds for pid in old.members(kind)))
    campaign.start_driver()
    campaign.recovered()
    campaign.pause(2.0, 6.0)
    old.resume()
    deadline = time.monotonic() + _FENCE_S
    while old.exit_code is None and time.monotonic() < deadline:
        campaign.pause(0.2, 0.2)
    if old.exit_code is None:
        campaign.violation(f"driver {old.number} goes on {_FENCE_S:.0f} s after driver {campaign.driver.number} took over")
        old.end()
    elif "Fenced" not in old.log():
        campaign.violation(f"driver {old.number} was taken over and does not say so: {old.last_error()}")
    campaign.retire(old)
    return f"driver {old.number} ({', '.join(kinds)}) paused past epochs of driver {campaign.driver.number}, then fenced"


def _one(campaign: Campaign, kind: str) -> list[int]:
    found = campaign.driver.members(kind)
    return [campaign.random.choice(found)] if found else []


def _kill_jvm(campaign: Campaign) -> str:
    """The driver cannot go on without it: it must end, with an error, and be started again."""
    driver = campaign.driver
    campaign.expected_stop = "Spark"
    driver.kill(*driver.members("jvm"))
    deadline = time.monotonic() + _FENCE_S
    while campaign.driver is driver and time.monotonic() < deadline:
        campaign.pause(0.2, 0.2)
    campaign.expected_stop = ""
    if campaign.driver is driver:
        campaign.violation(f"driver {driver.number} goes on for {_FENCE_S:.0f} s without its JVM: {driver.last_error()}")
        _kill_driver(campaign)
    return f"JVM of driver {driver.number} killed, which ended; driver {campaign.driver.number} started"


def _kill_worker(campaign: Campaign) -> str:
    pids = _one(campaign, "worker")
    campaign.driver.kill(*pids)
    return f"worker {pids} killed"


def _kill_daemon(campaign: Campaign) -> str:
    pids = campaign.driver.members("daemon")
    campaign.driver.kill(*pids)
    return f"worker daemon {pids} killed"


def _kill_slot(campaign: Campaign) -> str:
    pids = _one(campaign, "slot")
    campaign.driver.kill(*pids)
    return f"slot {pids} killed"


def _kill_slots(campaign: Campaign) -> str:
    pids = campaign.driver.members("slot")
    campaign.driver.kill(*pids)
    return f"slots {pids} killed"


def _pause_slot(campaign: Campaign) -> str:
    pids = _one(campaign, "slot")
    campaign.driver.pause(*pids)
    campaign.pause(2.0, 8.0)
    campaign.driver.resume()
    return f"slot {pids} paused"


def _pause_slot_kill_driver(campaign: Campaign) -> str:
    """The slot wakes up in the time of another driver."""
    old = campaign.driver
    pids = _one(campaign, "slot")
    old.pause(*pids)
    campaign.pause(0.0, 1.0)
    _kill_driver(campaign)
    campaign.recovered()
    campaign.pause(1.0, 4.0)
    old.resume()
    return f"slot {pids} of driver {old.number} paused, its driver killed, resumed under driver {campaign.driver.number}"


# ---- disks ---------------------------------------------------------------------------------------------------------------


def _delete_stores(campaign: Campaign) -> str:
    shutil.rmtree(campaign.state_directory, ignore_errors=True)
    pids = _one(campaign, "slot") if campaign.random.random() < 0.5 else []
    campaign.driver.kill(*pids)
    return f"local stores deleted{f', slot {pids} killed' if pids else ''}"


def _fill_disk(campaign: Campaign) -> str:
    """The disk of checkpoints and local stores is full for a while."""
    ballast = campaign.disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    killed = ""
    if campaign.random.random() < 0.4:
        campaign.driver.kill(*_one(campaign, "slot"))
        killed = ", a slot killed meanwhile"
    campaign.pause(2.0, 10.0)
    ballast.unlink()
    return f"disk was full for a while{killed}"


def _damage(campaign: Campaign) -> str:
    """A bit flips in a file that the next driver must read. It must be named; put back, the job goes on."""
    campaign.kill_driver()
    campaign.driver.end()
    shutil.rmtree(campaign.state_directory, ignore_errors=True)
    victim = _needed_file(campaign)
    intact = victim.read_bytes()
    at = campaign.random.randrange(len(intact))
    victim.write_bytes(intact[:at] + bytes([intact[at] ^ (1 << campaign.random.randrange(8))]) + intact[at + 1 :])
    campaign.expected_stop = victim.name
    driver = campaign.start_driver()
    deadline = time.monotonic() + _FENCE_S
    while victim.name not in driver.log() and time.monotonic() < deadline:
        campaign.pause(0.2, 0.2)
    if victim.name not in driver.log():
        campaign.violation(f"{victim} was damaged at byte {at}, and driver {driver.number} does not say so")
    victim.write_bytes(intact)
    if campaign.driver.exit_code is not None or campaign.driver is not driver:
        campaign.pause(0.3, 0.3)
    campaign.recovered()
    campaign.expected_stop = ""
    return f"{victim.name} damaged at byte {at}, named by driver {driver.number}, put back"


def _needed_file(campaign: Campaign) -> Path:
    """A file of the newest checkpoint."""
    for path in sorted((campaign.checkpoints / "log").iterdir(), reverse=True):
        entry = decode_entry(path.read_bytes(), str(path))
        if isinstance(entry, Completed):
            files = sorted({file.path for file in entry.checkpoint.files()})
            if files:
                return campaign.checkpoints.parent / campaign.random.choice(files)
            return path
    raise FileNotFoundError(os.fspath(campaign.checkpoints))


# ---- brokers -------------------------------------------------------------------------------------------------------------


def _kill_broker(campaign: Campaign) -> str:
    broker = campaign.random.choice(campaign.brokers)
    broker.kill()
    campaign.pause(0.0, 10.0)
    broker.start()
    return f"broker {broker.node_id} killed and started again"


def _pause_broker(campaign: Campaign) -> str:
    broker = campaign.random.choice(campaign.brokers)
    with broker.paused():
        campaign.pause(1.0, 12.0)
    return f"broker {broker.node_id} paused"


def _kill_broker_and_driver(campaign: Campaign) -> str:
    """The driver that recovers finds no broker for a while: it may say so and end."""
    campaign.expected_stop = "no answer from Kafka"
    broker = campaign.random.choice(campaign.brokers)
    broker.kill()
    _kill_driver(campaign)
    campaign.pause(0.0, 15.0)
    broker.start()
    return f"broker {broker.node_id} and the driver killed, both started again"
