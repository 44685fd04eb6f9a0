"""Secrets are not shown: neither as settings, nor within other settings and texts of errors."""

from __future__ import annotations

import pytest

from holdfast.common.secrets import masked, masked_settings


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
