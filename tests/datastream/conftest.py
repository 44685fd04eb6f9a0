"""A program that begins."""

from __future__ import annotations

import pytest

from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.data_stream import DataStream, KeyedStream


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment().set_parallelism(2)


@pytest.fixture
def stream(env) -> DataStream:
    return env.from_collection([1, 2, 3])


@pytest.fixture
def keyed(stream) -> KeyedStream:
    return stream.key_by(lambda x: x)
