"""A JVM that is started early belongs to its program: it does not outlive it, however early the program ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from pyspark import SparkContext

from holdfast.runtime.host.process_end import await_end
from holdfast.runtime.spark import spark_context

ENDS_AT_ONCE = """
import os, signal, sys
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import start_jvm
print(start_jvm(find_java(), {}).pid, flush=True)
if sys.argv[1] == "mistake":
    raise ValueError("a mistake in the program")
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.spark
@pytest.mark.parametrize("how", ["end", "mistake", "killed"])
def test_a_jvm_ends_with_a_program_that_ends_before_it_is_used(how: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", ENDS_AT_ONCE, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert program.stdout is not None
    with program, program.stdout:
        pid = int(program.stdout.readline())
    ended = await_end(pid, 60)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended, "the JVM lives on without its program"


def test_no_second_jvm_starts_beside_that_of_a_session_that_the_program_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", object())
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(spark_context, "_begun", None)
    monkeypatch.setattr(spark_context, "_begin", begun.append)
    spark_context.begin_spark("job", {})
    assert begun == []
    monkeypatch.setattr(SparkContext, "_gateway", None)
    spark_context.begin_spark("job", {})
    assert len(begun) == 1


def test_a_collector_that_the_user_chooses_replaces_that_of_a_local_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    key, ours = "spark.driver.extraJavaOptions", "-XX:+UseParallelGC"
    assert ours in spark_context._settings("job", {})[key]
    assert ours not in spark_context._settings("job", {"spark.driver.defaultJavaOptions": "-Xss1m -XX:+UseSerialGC"})[key]
    assert ours in spark_context._settings("job", {"spark.driver.defaultJavaOptions": "-XX:+UseStringDeduplication"})[key]
    assert spark_context._settings("job", {key: "-XX:+UseZGC"})[key] == "-XX:+UseZGC"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    assert ours not in spark_context._settings("job", {})[key]
