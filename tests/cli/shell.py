"""A user's shell for the tests of the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.forked_commands import SOURCES, run_command
from started_programs import output_of, surroundings

PROGRAMS = ("run", "standby")
"""Commands that run a user's program."""
START = """
import sys
from holdfast.common import *
from holdfast.datastream import *
from holdfast.datastream.connectors.datagen import PaymentsSource
env = StreamExecutionEnvironment.get_execution_environment()
"""
PAYMENTS = """
class Total(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.DOUBLE()))

    def process_element(self, payment, ctx):
        self.total.update((self.total.value() or 0.0) + payment["amount"])
        if self.total.value() > 100_000:
            yield f"{ctx.get_current_key()} {self.total.value()}"

env.configure(Configuration.from_dict({"s3.secret-key": "hush-hush", "security.ssl.rest.key-password": "hush-hush"}))
payments = env.from_source(PaymentsSource(rate_per_second=200), WatermarkStrategy.no_watermarks(), "payments")
totals = payments.uid("payments").key_by(lambda payment: payment["merchant_id"]).process(Total()).uid("totals")
totals.filter(lambda line: False).print()
print("arguments", *sys.argv[1:], flush=True)
env.execute("payments")
"""


@dataclass
class Shell:
    """A user's shell, in a home of its own."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": str(SOURCES), "XDG_STATE_HOME": str(self.directory / "state"), "COLUMNS": "200"}
        return {**os.environ, **own, **surroundings(self.directory)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=self.environment,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        if arguments[0] in PROGRAMS:
            process = self.start(*arguments)
            out, err = output_of(process, self.directory)
            code = process.returncode
        else:
            code, out, err = run_command(arguments, self.directory, self.environment)
        assert "Traceback" not in out + err, err
        return subprocess.CompletedProcess(arguments, code, out, err)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def program(self, name: str, text: str) -> str:
        (self.directory / name).write_text(START + textwrap.dedent(text))
        return name
