"""Restart strategies on Spark, judged by the output: task slots kill themselves with ``kill -9``, again and again.

A run of the suite tries one strategy by chance, ``make test EFFORT=4 ARGS=tests/spark/test_restart_strategies.py`` all.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from effort import examples
from holdfast.common import Configuration, Encoder, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.datastream.connectors.file_system import FileSink
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import HoldfastError

pytestmark = [pytest.mark.spark, pytest.mark.fault]

KEYS, LAST, DEADLY = 5, 400, 100
ATTEMPTS = 4
"""How often Spark tries a task (local mode's default here); then the run of the epoch has failed, once."""
EACH = sorted(f"{key} {n}" for key in range(KEYS) for n in range(1, LAST // KEYS + 1))
"""The whole output."""


@pytest.fixture(autouse=True)
def functions_of_this_module_travel_by_value():
    """The workers' path does not hold the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Deadly(KeyedProcessFunction):
    """Counts numbers by key; one of them kills the process, as long as there are lives left."""

    def __init__(self, lives: Path) -> None:
        self.lives = lives

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value == DEADLY:
            for life in self.lives.iterdir():
                life.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        self.count.update((self.count.value() or 0) + 1)
        yield f"{ctx.get_current_key()} {self.count.value()}"


def run(directory: Path, strategy: dict[str, str]) -> None:
    config = Configuration()
    defaults = {"rest.port": "0", "holdfast.epoch.max-records": "50", "parallelism.default": "2"}
    for key, value in {**defaults, **{f"restart-strategy.{key}": value for key, value in strategy.items()}}.items():
        config.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.get_checkpoint_config().set_checkpoint_storage_dir((directory / "checkpoints").as_uri())
    numbers = env.from_source(NumberSequenceSource(1, LAST), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    counts = numbers.key_by(lambda n: n % KEYS).process(Deadly(directory / "lives")).uid("counts")
    sink = FileSink.for_row_format(str(directory / "out"), Encoder.simple_string_encoder()).build()
    counts.sink_to(sink).uid("out")
    env.execute("deadly")


def written(directory: Path) -> list[str]:
    parts = [path for path in (directory / "out").rglob("part-*") if not path.name.startswith(".")]
    return sorted(line for path in parts for line in path.read_text().splitlines())


NONE = {"type": "none"}
FIXED = {"type": "fixed-delay", "fixed-delay.attempts": "1", "fixed-delay.delay": "1 ms"}
RATE = {
    "type": "failure-rate",
    "failure-rate.max-failures-per-interval": "1",
    "failure-rate.failure-rate-interval": "10 min",
    "failure-rate.delay": "1 ms",
}
EXPONENTIAL = {"type": "exponential-delay", "exponential-delay.initial-backoff": "1 ms"}
STRATEGIES: list[tuple[dict[str, str], int, str]] = [
    (NONE, 0, "the restart strategy is 'none'"),
    (FIXED, 1, "1 restarts have been made"),
    (RATE, 1, "2 failures within"),
    (EXPONENTIAL, 2, ""),
]
"""With how many failures each survives, and why it gives up at the next one."""


def a_job_survives_as_many_failures_as_its_strategy_allows_and_the_next_one_goes_on(tmp_path: Path) -> None:
    for number, (strategy, survived, reason) in enumerate(random.sample(STRATEGIES, min(examples(1), len(STRATEGIES)))):
        print(strategy)
        (lives := tmp_path / str(number) / "lives").mkdir(parents=True)
        failures = survived + (strategy is not EXPONENTIAL)  # which restarts for ever
        for life in range(ATTEMPTS * failures):
            (lives / str(life)).touch()
        if failures > survived:
            with pytest.raises(HoldfastError, match=reason):
                run(lives.parent, strategy)
            assert not list(lives.iterdir())
            before = written(lives.parent)
            assert 0 < len(before) < LAST, "what was complete before the deadly epoch"
        run(lives.parent, strategy)
        assert not list(lives.iterdir())
        assert written(lives.parent) == EACH
