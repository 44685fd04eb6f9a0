"""The program of ``test_killed_processors.py``: a StatefulProcessor of PySpark's, from Kafka to Kafka."""

import json
import os
from collections.abc import Iterator
from typing import Any

from kafka_ends import kafka_source, results_sink
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from holdfast.common import WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment


class Numbered(StatefulProcessor):
    """Numbers a merchant's payments in each kind of state, and its timers."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.numbers = handle.getListState("numbers", "n long", 86_400_000)
        self.odd = handle.getMapState("odd", "odd boolean", "n long")
        self.timers = handle.getMapState("timers", "what string", "n long")

    def _next(self, what: str) -> int:
        n = 1 + (self.timers.getValue((what,))[0] if self.timers.containsKey((what,)) else 0)
        self.timers.updateValue((what,), (n,))
        return n

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        set_before = self._next("set")
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        for _ in rows:
            n = 1 + (self.count.get()[0] if self.count.exists() else 0)
            self.count.update((n,))
            self.numbers.appendValue((n,))
            odd = n % 2 == 1
            self.odd.updateValue((odd,), (1 + (self.odd.getValue((odd,))[0] if self.odd.containsKey((odd,)) else 0),))
            of_map = sum(number for _, (number,) in self.odd.iterator())
            yield Row(merchant=key[0], nth=n, listed=sum(1 for _ in self.numbers.get()), mapped=of_map, timer=set_before)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(merchant=key[0], nth=0, listed=0, mapped=0, timer=self._next("fired"))

    def close(self) -> None:
        pass


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_checkpoint_config().set_checkpoint_storage_dir(os.environ["CHECKPOINTS"])
    source = env.from_source(kafka_source("PAYMENTS_TOPIC"), WatermarkStrategy.no_watermarks(), "payments")
    merchants = source.map(lambda payment: Row(merchant=json.loads(payment)["merchant_id"])).uid("merchants")
    numbered = merchants.key_by(lambda row: row.merchant).transform_with_state(
        Numbered(),
        "merchant string, nth long, listed long, mapped long, timer long",
        "ProcessingTime",
        call_mode=os.environ["CALL_MODE"],
    )
    results = numbered.uid("numbered").map(lambda row: row.as_dict()).uid("results")
    results.sink_to(results_sink(lambda result: result["merchant"]))
    env.execute("processors")


if __name__ == "__main__":
    main()
