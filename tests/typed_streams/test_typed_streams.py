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
PROGRAMS = sorted(path for folder in ("accepted", "refused") for path in (HERE / folder).glob("[a-z]*.py"))
CACHE = HERE.parents[1] / ".mypy_cache" / "programs"


@pytest.fixture(scope="module")
def reported() -> dict[tuple[str, int], list[str]]:
    """What one run of mypy --strict says about all programs, by file and line. Its cache is kept from run to run."""
    settings = ["--strict", "--hide-error-context", "--no-error-summary", "--config-file", "", "--follow-imports", "silent"]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, "--cache-dir", str(CACHE), *map(str, PROGRAMS)],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
    )
    assert found.stderr == ""
    messages: dict[tuple[str, int], list[str]] = {}
    for line in found.stdout.splitlines():
        path, number, message = re.fullmatch(r"(.+?):(\d+): (.*)", line).groups()  # type: ignore[union-attr]
        messages.setdefault((_name(Path(path)), int(number)), []).append(_without_modules(message))
    return messages


def _name(program: Path) -> str:
    return f"{program.parent.name}/{program.name}"


def _without_modules(message: str) -> str:
    return re.sub(r"\b[a-z_]\w*(?:\.\w+)*\.(?=[A-Za-z])", "", message)


def _lines(folder: str) -> Iterator[tuple[tuple[str, int], str, str]]:
    for program in sorted((HERE / folder).glob("[a-z]*.py")):
        for number, line in enumerate(program.read_text().splitlines(), start=1):
            code, _, comment = line.partition("  # ")
            yield (_name(program), number), code, comment


def the_accepted_programs_pass_mypy_and_each_stream_has_its_type(reported: dict[tuple[str, int], list[str]]) -> None:
    wrong = []
    for place, code, comment in _lines("accepted"):
        shown = " ".join(reported.get(place, []))
        if shown != (f'note: Revealed type is "{comment}"' if "reveal_type(" in code else ""):
            wrong.append((place, code, shown))
    assert not wrong, "\n".join(map(str, wrong))


def the_refused_programs_fail_at_exactly_the_lines_that_say_why(reported: dict[tuple[str, int], list[str]]) -> None:
    wrong = []
    for place, code, comment in _lines("refused"):
        errors = " ".join(message for message in reported.get(place, []) if message.startswith("error:"))
        if comment not in errors or bool(comment) != bool(errors):
            wrong.append((place, code, errors))
    assert not wrong, "\n".join(map(str, wrong))


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
