"""The log as JSON."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from datetime import datetime, timezone

import orjson
import pytest

from holdfast.common.system import json_log
from holdfast.common.system.json_log import JsonFormatter, add_log_fields, log_as_json, set_process_log_fields


@pytest.fixture
def output() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    json_log._of_thread.set({})  # other tests run jobs in this thread
    yield logging.Logger("tests.json-log"), io.StringIO()  # unknown to pytest, which adds handlers of its own
    set_process_log_fields()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in stream.getvalue().splitlines()]


def a_message_is_one_line_with_its_time_level_logger_and_extra_fields(output):
    logger, stream = output
    log_as_json(logger, stream)
    before = datetime.now(timezone.utc)
    logger.info("two\nlines of %s", "job", extra={"topic": "payments", "odd": {1}})
    logger.debug("hidden: the level is INFO unless the program has set one")
    (line,) = lines(stream)
    assert abs((datetime.fromisoformat(line.pop("time")) - before).total_seconds()) < 60
    assert line == {
        "level": "INFO",
        "logger": "tests.json-log",
        "message": "two\nlines of job",
        "topic": "payments",
        "odd": "{1}",
    }


def an_exception_has_its_traceback(output):
    logger, stream = output
    log_as_json(logger, stream)
    try:
        raise ValueError("no amount")
    except ValueError:
        logger.exception("failed")
    (line,) = lines(stream)
    assert str(line["exception"]).startswith("Traceback (most recent call last):\n")
    assert str(line["exception"]).endswith("ValueError: no amount")


def the_fields_belong_to_a_thread_or_to_the_process(output):
    logger, stream = output
    log_as_json(logger, stream)
    set_process_log_fields(operator="window", subtask=1)

    def one(job: str) -> None:
        add_log_fields(job=job)
        add_log_fields(epoch=7)
        logger.warning("here")

    for job in ("a", "b"):
        thread = threading.Thread(target=one, args=(job,))
        thread.start()
        thread.join()
    set_process_log_fields(operator="sink")
    logger.warning("here")
    found = [{name: line.get(name) for name in ("job", "epoch", "operator", "subtask")} for line in lines(stream)]
    assert found == [
        {"job": "a", "epoch": 7, "operator": "window", "subtask": 1},
        {"job": "b", "epoch": 7, "operator": "window", "subtask": 1},
        {"job": None, "epoch": None, "operator": "sink", "subtask": None},
    ]


def test_handlers_of_the_program_keep_their_place_and_level(output):
    logger, stream = output
    own = io.StringIO()
    handler = logging.StreamHandler(own)
    handler.setLevel(logging.ERROR)
    logger.addHandler(handler)
    below = logging.Logger("tests.json-log.below")
    below.parent = logger
    log_as_json(below, stream)
    below.warning("not for this handler")
    below.error("for this handler")
    assert [line["message"] for line in lines(own)] == ["for this handler"]
    assert not stream.getvalue()
    assert isinstance(handler.formatter, JsonFormatter)
