"""Takes a stream out of event time: its records have no timestamps, and it neither advances event time nor holds it back."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.runtime.plan.operator import Operator, OperatorFactory
from holdfast.runtime.records.records import RecordBatch

__all__ = ["Timeless"]


class _Timeless(Operator):
    """Passes the elements on."""

    def process(self, batch: RecordBatch) -> None:
        self.context.emit(RecordBatch(batch.values))

    def end_epoch(self) -> None:
        self.context.forward_idle(True, False)


@dataclass(frozen=True)
class Timeless(OperatorFactory):
    """Takes a stream out of event time: operators downstream follow the event time of their other inputs."""

    makes_watermarks = True
    by_columns = True

    def create(self) -> Operator:
        """Create the operator."""
        return _Timeless()
