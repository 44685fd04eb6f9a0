"""What programs need whose Spark fetches packages of Maven."""

from __future__ import annotations

import os
import sys

from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import scripts_environment
from holdfast.testing.kafka_distribution import trusted_authorities

__all__ = ["environment"]


def environment() -> dict[str, str]:
    """The variables of such a program."""
    options = [*trusted_authorities(), os.environ.get("SPARK_SUBMIT_OPTS", "")]
    return {
        **os.environ,
        **scripts_environment(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": " ".join(options).strip(),
    }
