"""The order in which savepoints are written, and when the job must read no more for one."""

from __future__ import annotations

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.runtime.protocol.savepoint_requests import SavepointRequest, SavepointRequests


def a_stop_behind_a_savepoint_whose_epoch_failed_waits_for_another_epoch() -> None:
    """Else the job would read no more for the stop, while the savepoint before it waits for an epoch: it stood still."""
    requests = SavepointRequests()
    requests.add(SavepointRequest(1, "memory:/first"), Epoch(8))  # epoch 8 fails, and the job goes on from checkpoint 7
    requests.add(SavepointRequest(2, "memory:/second", stop=True), Epoch(7))
    assert not requests.stop_planning(CheckpointId(7))
    assert requests.next(CheckpointId(9), idle=True) == SavepointRequest(1, "memory:/first")
    requests.answered(1)
    assert requests.stop_planning(CheckpointId(9))
