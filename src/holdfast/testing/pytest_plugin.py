"""pytest plugin with fixtures for programs; installed with ``holdfast[testing]``.

Holdfast itself is imported by the fixtures that a test uses, not when pytest starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.testing import InProcessEnvironment, MiniCluster, OneInputTestHarness, TwoInputTestHarness, VirtualClock
    from holdfast.testing.kafka import KafkaBroker

__all__: list[str] = []


@pytest.fixture
def holdfast_clock() -> VirtualClock:
    """A virtual clock at 0, for harnesses and environments of this test."""
    from holdfast.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def holdfast_env() -> InProcessEnvironment:
    """An environment whose jobs run in this process, without a JVM. Its parallelism is 1."""
    from holdfast.testing import InProcessEnvironment

    return InProcessEnvironment()


@pytest.fixture
def holdfast_harness() -> Iterator[Callable[..., OneInputTestHarness | TwoInputTestHarness]]:
    """Makes operator harnesses, and closes them: ``holdfast_harness(build, **options)``.

    ``build`` takes one or two streams.
    """
    from holdfast.testing import OneInputTestHarness, TwoInputTestHarness

    with ExitStack() as harnesses:

        def make(build: Callable[..., Any], **options: Any) -> OneInputTestHarness | TwoInputTestHarness:
            if len(inspect.signature(build).parameters) == 2:
                return harnesses.enter_context(TwoInputTestHarness(build, **options))
            return harnesses.enter_context(OneInputTestHarness(build, **options))

        yield make


@pytest.fixture(scope="session")
def holdfast_cluster() -> Iterator[MiniCluster]:
    """A local Spark with two slots, shared by the session."""
    from holdfast.testing import MiniCluster

    with MiniCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def holdfast_kafka() -> Iterator[KafkaBroker]:
    """A real Kafka broker, shared by the session; needs ``holdfast[kafka]``."""
    from holdfast.testing.kafka import KafkaBroker

    with KafkaBroker() as broker:
        yield broker
