"""Shows the driver's lengthy work in the job's metrics."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from holdfast.metrics.job import RUNNING_EPOCH, JobMetrics
from holdfast.runtime.protocol import instructions
from holdfast.runtime.protocol.instructions import Instruction

__all__ = ["doing"]

_MAY_LAST: dict[type[Instruction], str] = {
    instructions.Plan: "planning the input",
    instructions.Verify: "verifying the checkpoint to rescale from",
    instructions.Confirm: "looking whether another driver has taken the job over",
    instructions.Complete: "storing the checkpoint's metadata",
    instructions.Acknowledge: "telling the sources of the checkpoint",
    instructions.TakeOver: "taking the job over",
    instructions.Recover: "committing the output of the restored checkpoint",
    instructions.Open: "opening the sources",
}


def doing(metrics: JobMetrics, instruction: Instruction) -> AbstractContextManager[None]:
    """Show an instruction in the metrics while the driver carries it out, if that may take long."""
    if isinstance(instruction, instructions.Run):
        return metrics.doing(f"{RUNNING_EPOCH}{instruction.assignment.epoch}")
    what = _MAY_LAST.get(type(instruction))
    return nullcontext() if what is None else metrics.doing(what)
