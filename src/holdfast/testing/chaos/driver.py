"""A driver of the job under test: ``python -m holdfast.testing.chaos.driver SETTINGS.json``; SIGTERM stops it in order.

Exits with 0 when it was stopped, 3 when another driver took over (`Fenced`), 1 for any other failure.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from holdfast.common import Configuration
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import Fenced
from holdfast.testing.chaos.program import build

__all__ = ["FENCED", "JOB_NAME", "main"]

FENCED = 3
JOB_NAME = "chaos"

_log = logging.getLogger("holdfast.chaos")


def main(arguments: list[str]) -> int:
    """Run the job until it ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    settings: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings["configuration"]))
    env.set_parallelism(2)
    build(env, settings["bootstrap.servers"])
    try:
        client = env.execute_async(JOB_NAME)
        signal.signal(signal.SIGTERM, lambda signum, frame: client.cancel())
        client.get_job_execution_result().result()
    except Fenced as error:
        _log.error("the job has another driver: Fenced: %s", error)
        return FENCED
    except Exception:
        _log.exception("the job failed")
        return 1
    _log.info("the job was stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
