"""Secrets are not shown: neither as settings, nor within other settings and texts of errors."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from holdfast.common.secrets import concealed, masked, masked_settings
from holdfast.errors import CorruptFile, StorageError, UserCodeError
from holdfast.runtime.driver.launch import Launch


@pytest.mark.parametrize(
    "name",
    ["s3.secret-key", "db.passwd", "kafka.sasl.jaas.config", "aws_credentials", "basic.auth.user.info", "SESSION_TOKEN"],
)
def a_setting_whose_name_tells_of_a_secret_is_not_shown(name: str) -> None:
    assert masked_settings({name: "hush"}) == {name: "******"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jdbc:postgresql://me:hush@db/shop", "jdbc:postgresql://me:******@db/shop"),
        ("jdbc:mysql://db/shop?user=me&password=hush&ssl=on", "jdbc:mysql://db/shop?user=me&password=******&ssl=on"),
        ('connection failed: {"passwd": "hush"}', 'connection failed: {"passwd": "******"}'),
        ("https://:hush@registry:8081/subjects", "https://:******@registry:8081/subjects"),
        ("at http://localhost:8081/jobs/1@2", "at http://localhost:8081/jobs/1@2"),
    ],
)
def a_secret_within_a_text_is_not_shown(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked_settings({"connection": text}) == {"connection": shown}


def a_known_secret_is_not_shown_wherever_it_stands() -> None:
    settings = {"s3.secret-key": "hush-hush", "uri": "s3://key:x/hush-hush", "a.token": "ab"}
    assert masked_settings(settings)["uri"] == "s3://key:x/******"
    assert masked("refused: hush-hush, of a table", settings) == "refused: ******, of a table"


def a_known_secret_is_in_no_part_of_a_traceback() -> None:
    settings = {"s3.secret-key": "hush-hush"}
    try:
        try:
            raise PermissionError(13, "refused hush-hush", "/s3/hush-hush")
        except OSError as error:
            error.add_note("tried hush-hush") if sys.version_info >= (3, 11) else None
            try:
                raise CorruptFile("s3://key:hush-hush@bucket/x", "gone") from error
            except CorruptFile as damage:
                raise UserCodeError("a function raised hush-hush", key="'hush-hush'") from damage
    except UserCodeError as error:
        failure = concealed(error, settings)
        shown = "".join(traceback.format_exception(failure))
        assert "hush-hush" not in "".join(line for line in shown.splitlines() if not line.startswith("    "))
        assert shown.count("******") == 5 + (sys.version_info >= (3, 11)) - 1
        assert failure.key == "'******'"


def an_error_of_librdkafkas_client_is_no_exception_and_stays_as_it_is() -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    error = confluent_kafka.KafkaError(53, "refused: hush-hush")
    set_error = ctypes.pythonapi.PyErr_SetObject
    set_error.argtypes, set_error.restype = [ctypes.py_object, ctypes.py_object], None

    def fails() -> None:
        try:
            set_error(confluent_kafka.KafkaError, error)  # as the client does, whose errors are no BaseException
        except:  # noqa: E722
            raise StorageError("hush-hush") from None

    with pytest.raises(StorageError) as caught:
        fails()
    assert caught.value.__context__ is error
    assert str(concealed(caught.value, {"s3.secret-key": "hush-hush"})) == "******"


def a_programs_last_words_are_without_the_secrets_of_its_settings(tmp_path: Path) -> None:
    for said in ("ValueError", "HoldfastError"):
        program = f"""
from holdfast.errors import HoldfastError
from holdfast.runtime.driver.launch import launched
launched()
raise {said}("refused: hush-" + "hush, of jdbc:postgresql://me:secret-word@db/shop")
"""
        launch = Launch("id", {"s3.secret-key": "hush-hush"}, str(tmp_path / "log"), False).store(tmp_path)
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env=dict(Launch.environment(launch)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 1
        assert f"{said}: refused: ******, of jdbc:postgresql://me:******@db/shop\n" in ended.stderr
        assert "Traceback" in ended.stderr
