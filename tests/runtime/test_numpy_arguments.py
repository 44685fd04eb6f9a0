"""Arguments of calls to the JVM are compared with NumPy's types only in programs that use NumPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = """
import sys
from holdfast.runtime.spark.numpy_arguments import convert_only_if_numpy_is_loaded
convert_only_if_numpy_is_loaded()
convert_only_if_numpy_is_loaded()
from py4j.protocol import INPUT_CONVERTER
def found(argument):
    return [type(each).__name__ for each in INPUT_CONVERTER if each.can_convert(argument)]
print(found(object()), "numpy" in sys.modules, "pyspark.testing" in sys.modules)
import numpy
print(*("_IfLoaded" in found(each) for each in (numpy.arange(3), numpy.int64(1), object())))
"""


def test_numpy_and_the_test_utilities_are_not_imported_to_look_at_an_argument() -> None:
    pytest.importorskip("numpy")
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[] False False", "True True False"], done.stderr
