"""Secrets among settings: which ones they are, and texts without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["MASK", "concealed", "masked", "masked_settings", "names_secret"]

E = TypeVar("E", bound=BaseException)

MASK = "******"
_WORDS = (
    "password", "passwd", "secret", "token", "access-key", "api-key", "apikey", "account.key", "private-key", "credential",
    "auth-params", "auth.user.info", "jaas",
)  # fmt: skip
_SHORTEST = 6
"""Characters of a value that is looked for in other texts: a shorter one would be found by chance."""
_IN_URL = re.compile(r"(://[^\s/@:]*:)[^\s/@]+(?=@)")
_IN_TEXT = re.compile(r"""((?:password|passwd|pwd|secret[-_]?key)["']?\s*[=:]\s*["']?)[^\s&;,"'}\])]+""", re.IGNORECASE)


def names_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret.

    >>> names_secret("s3.secret-key"), names_secret("db.passwd"), names_secret("parallelism.default")
    (True, True, False)
    """
    name = name.lower().replace("_", "-")
    return any(word in name for word in _WORDS)


def masked(text: str, settings: Mapping[str, str] | None = None) -> str:
    """A text without the values of secret settings, passwords in URLs, and what stands behind ``password=``.

    >>> masked("no answer of jdbc:postgresql://me:hush@db/shop?password=hush")
    'no answer of jdbc:postgresql://me:******@db/shop?password=******'
    >>> masked("HTTP 403 for key AKIA-hush", {"s3.secret-key": "AKIA-hush"})
    'HTTP 403 for key ******'
    """
    for value in {value for name, value in (settings or {}).items() if names_secret(name) and len(value) >= _SHORTEST}:
        text = text.replace(value, MASK)
    return _IN_TEXT.sub(rf"\1{MASK}", _IN_URL.sub(rf"\1{MASK}", text))


def concealed(error: E, settings: Mapping[str, str]) -> E:
    """The same error; its texts and those of what has caused it are `masked`, as a traceback shows them.

    >>> str(concealed(ValueError("HTTP 403 for key AKIA-hush"), {"s3.secret-key": "AKIA-hush"}))
    'HTTP 403 for key ******'
    """

    def shown(value: Any) -> Any:
        return masked(value, settings) if isinstance(value, str) else value

    chain: list[object] = [error]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if not isinstance(each, BaseException) or id(each) in seen:  # librdkafka's client raises what is none
            continue
        seen.add(id(each))
        chain += (each.__cause__, each.__context__)
        each.args = tuple(map(shown, each.args))
        for name, value in vars(each).items():
            setattr(each, name, list(map(shown, value)) if name == "__notes__" else shown(value))
        if isinstance(each, OSError):  # it tells what it has been made with, not its arguments
            each.strerror, each.filename = shown(each.strerror), shown(each.filename)
    return error


def masked_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings, sorted, without secrets in their values."""
    return {name: MASK if names_secret(name) else masked(value, settings) for name, value in sorted(settings.items())}
