"""Functions, timers and keys that fail: told with the record that they failed on."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.datastream import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from holdfast.errors import HoldfastError, UserCodeError

from .inprocess import LEDGERS, LedgerSink
from .small_programs import Last, Pass, program, timed, visible


class FailsToOpen(KeyedProcessFunction):
    def open(self, runtime_context):
        raise FileNotFoundError("model.bin")

    def process_element(self, value, ctx):
        return ()


def a_function_that_cannot_open_is_named(job):
    with pytest.raises(UserCodeError, match=r"model\.bin") as failure:
        job(program(FailsToOpen(), [("a", 1)])).run()
    text = str(failure.value)
    assert text.startswith("Traceback")
    assert "test_failing_functions.py" in text.splitlines()[1]
    assert "'keyed'" in text


class FailsOnTimer(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value[1])
        return ()

    def on_timer(self, timestamp, ctx):
        raise ValueError("no time")


def a_timer_that_fails_ends_the_job(job):
    with pytest.raises(UserCodeError, match="no time") as failure:
        job(program(FailsOnTimer(), [("a", 17)])).run()
    text = str(failure.value)
    assert text.startswith("Traceback")
    assert "key: 'a'" in text
    assert "timer 17" in text


class FailsAt(KeyedProcessFunction):
    def process_element(self, value, ctx):
        if value[2] == "bad":
            raise ValueError("what is that")
        yield value


@pytest.mark.parametrize("parallelism", [1, 3])
def a_record_on_which_a_function_fails_is_named(job, parallelism):
    values = [("a", n, "good") for n in range(5)] + [("b", 5, "bad"), ("a", 6, "good")]
    lab = job(program(FailsAt(), values, cut=3), parallelism=parallelism)
    with pytest.raises(UserCodeError) as failure:
        lab.run()
    text = str(failure.value)
    assert text.startswith("Traceback")
    assert "in process_element" in text.splitlines()[1]
    for part in ("ValueError: what is that", "'KeyedProcess' (uid 'keyed')", "key: 'b'", "record: split only, record 5"):
        assert part in text
    before = [value for value in LEDGERS["out"].values]
    assert before == values[: len(before)]
    # The program is mended: it goes on where the other one failed.
    lab.build = program(Pass(), values, cut=3)
    lab.run()
    assert LEDGERS["out"].values == values


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("key", [["a", "list"], {"a": "dict"}])
def a_value_that_cannot_be_a_key_is_named(job, parallelism, key):
    def build(env: StreamExecutionEnvironment) -> None:
        timed(env, [("a", 0)]).key_by(lambda r: key).process(Pass()).sink_to(LedgerSink("out"))

    with pytest.raises(HoldfastError, match="key") as failure:
        job(build, parallelism=parallelism).run()
    assert isinstance(failure.value, UserCodeError)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("key", [float("nan"), ["a", "list"], lambda: 0], ids=["NaN", "list", "function"])
def a_value_that_cannot_be_a_key_is_named_with_its_record_anywhere_in_a_batch(job, parallelism, key):
    def build(env: StreamExecutionEnvironment) -> None:
        data = [("a", 0), ("b", 0), ("bad", 0), ("c", 0)]
        timed(env, data).key_by(lambda r: key if r[0] == "bad" else r[0]).process(Pass()).sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError) as failure:
        job(build, parallelism=parallelism).run()
    assert "element: ('bad', 0)" in str(failure.value)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def a_key_of_any_text_has_its_state(job, parallelism, backend):
    texts = ["\ud800", "é", "\udc80x", "plain"]

    def build(env: StreamExecutionEnvironment) -> None:
        timed(env, [(text, 0) for text in texts * 3], cut=4).key_by(lambda r: r[0]).process(Last()).sink_to(
            LedgerSink("out")
        )

    config = {"state.backend.type": backend, "state.backend.cache.size": "1kb"}
    job(build, parallelism=parallelism, budget=4, config=config).run([("after complete", 2)])
    assert visible() == Counter({repr((text, n)): 1 for text in texts for n in (1, 2, 3)})
