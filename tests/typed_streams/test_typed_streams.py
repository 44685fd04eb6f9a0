"""Typed streams: mypy knows what flows, and generics change nothing when a program runs."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import holdfast
from holdfast.common import Types
from holdfast.datastream import (
    ConnectedStreams,
    DataStream,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    OutputTag,
    StreamExecutionEnvironment,
    TimeWindow,
    WindowedStream,
)

HERE = Path(__file__).parent
SOURCE = Path(holdfast.__file__).parents[1]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[str]]:
    """What mypy --strict says about the programs, by file and line."""
    cache = tmp_path_factory.mktemp("mypy")
    programs = [str(HERE / name) for name in ("right_programs.py", "wrong_programs.py")]
    settings = ["--strict", "--cache-dir", str(cache), "--hide-error-context", "--no-error-summary", "--config-file", ""]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, "--follow-imports", "silent", *programs],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
    )
    assert found.stderr == ""
    messages: dict[tuple[str, int], list[str]] = {}
    for line in found.stdout.splitlines():
        path, number, message = re.fullmatch(r"(.+?):(\d+): (.*)", line).groups()  # type: ignore[union-attr]
        messages.setdefault((Path(path).name, int(number)), []).append(message)
    return messages


def _lines(name: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate((HERE / name).read_text().splitlines(), start=1):
        code, _, comment = line.partition("  # ")
        yield number, code, comment


def the_elements_of_each_stream_are_known_to_mypy(reported: dict[tuple[str, int], list[str]]) -> None:
    wrong = []
    for number, code, comment in _lines("right_programs.py"):
        messages = reported.get(("right_programs.py", number), [])
        shown = re.sub(r"\b\w+(?:\.\w+)*\.(\w+)", r"\1", " ".join(messages))
        if shown != (f'note: Revealed type is "{comment}"' if "reveal_type(" in code else ""):
            wrong.append((number, code, shown))
    assert wrong == []


def a_wrong_function_is_red_before_it_runs(reported: dict[tuple[str, int], list[str]]) -> None:
    missing = []
    for number, code, comment in _lines("wrong_programs.py"):
        errors = [message for message in reported.get(("wrong_programs.py", number), []) if message.startswith("error:")]
        plain = re.sub(r"\b(?:holdfast\.\w|wrong_programs\.)[\w.]*?\.?(?=[A-Z])", "", " ".join(errors))
        if comment not in plain or bool(comment) != bool(errors):
            missing.append((number, code, errors))
    assert missing == []


def the_generic_classes_can_be_subscripted_when_a_program_runs() -> None:
    assert KeyedStream[str, int].__origin__ is KeyedStream
    assert str(DataStream[int]).endswith("DataStream[int]")
    assert ConnectedStreams[int, str].__args__ == (int, str)
    assert WindowedStream[str, int, TimeWindow].__args__ == (str, int, TimeWindow)
    assert OutputTag[int]("late") == OutputTag("late")

    def double(stream: DataStream[int]) -> DataStream[int]:
        return stream.map(lambda n: 2 * n)

    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    assert isinstance(double(env.from_collection([1])), DataStream)


def a_function_class_with_types_is_shipped_to_the_workers_as_before() -> None:
    class Double(MapFunction[int, int]):
        def map(self, value: int) -> int:
            return 2 * value

    class Keep(KeyedProcessFunction[str, int, int]):
        def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
            yield value

    assert pickle.loads(cloudpickle.dumps(Double())).map(4) == 8
    assert isinstance(pickle.loads(cloudpickle.dumps(Keep())), KeyedProcessFunction)
    assert pickle.loads(pickle.dumps(Types.LIST(Types.INT()))) == Types.LIST(Types.INT())
