"""A SparkSession of its own for a module of tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

import cloudpickle
import pytest
from pyspark import cloudpickle as cloudpickle_of_spark
from pyspark.sql import SparkSession

from started_programs import QUICK_JVM

__all__ = ["spark_session"]


@contextmanager
def spark_session(
    modules: list[ModuleType], settings: Mapping[str, str] | None = None, master: str = "local[2,3]"
) -> Iterator[SparkSession]:
    """A session, stopped in the end.

    Args:
        modules: Modules of tests, whose functions workers get by value, as they cannot import them.
        settings: Of Spark.
        master: Its master.
    """
    picklers = (cloudpickle, cloudpickle_of_spark)
    for module in modules:
        for pickler in picklers:
            pickler.register_pickle_by_value(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        # It has a name, as Spark's JVM may be one that a job has started, where there is no name by default.
        builder = SparkSession.builder.appName("tests").master(master).config("spark.ui.enabled", "false")
        builder.config("spark.driver.extraJavaOptions", QUICK_JVM)
        for name, value in (settings or {}).items():
            builder.config(name, value)
        made = builder.getOrCreate()
        yield made
        made.stop()
    for module in modules:
        for pickler in picklers:
            pickler.unregister_pickle_by_value(module)
