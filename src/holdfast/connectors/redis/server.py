"""A Redis server: connections, and which of its errors last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from holdfast.common.secrets import masked
from holdfast.common.system.optional_library import optional_library
from holdfast.errors import ConfigurationError, ServiceUnavailable

__all__ = ["RIGHTS", "RedisServer", "forbids", "lasts"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_OLDEST = 5
_TRIES = 5
_PASSING = frozenset(
    {"LOADING", "READONLY", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS", "BUSY", "MASTERDOWN", "CLUSTERDOWN"}
)
"""Answers that another attempt may better: a server that starts, fails over, or has no room."""
RIGHTS = "grant the user EVAL and the commands of the sink, on the sink's keys and on holdfast:*"
"""The remedy for a missing right."""
_REMEDIES = {
    "OOM": "raise maxmemory, or let keys expire",
    "READONLY": "it is a replica, or fails over: give the address of the primary",
    "LOADING": "it reads its data after a start",
    "MISCONF": "it cannot write its data to the disk: look at its log",
    "NOAUTH": "give the password",
    "WRONGPASS": "check the user and the password",
    "MOVED": "it belongs to a Redis Cluster, to which the sink does not write",
}


def redis() -> Any:
    """The client library.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("redis", "Redis needs redis-py", "'holdfast[redis]'")


def lasts(answer: str) -> bool:
    """Whether an error that the server answers lasts until somebody changes something.

    >>> lasts("OOM command not allowed when used memory > 'maxmemory'."), lasts("WRONGTYPE Operation against a key")
    (False, True)
    """
    return answer.split(" ", 1)[0] not in _PASSING


def forbids(answer: str) -> bool:
    """Whether an error that the server answers is a missing right of the user.

    >>> forbids("NOPERM this user has no permissions to run the 'sadd' command")
    True
    """
    return answer.startswith("NOPERM") or "user executing the script can't" in answer or "ACL failure in script" in answer


def _answer(error: BaseException) -> str:
    """What the server answered, with its code, which the library cuts off."""
    code = getattr(error, "status_code", None) or _CODES.get(type(error).__name__, "")
    said = str(error)
    return said if not code or said.startswith(code) else f"{code} {said}"


_CODES = {
    "OutOfMemoryError": "OOM",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "NoPermissionError": "NOPERM",
    "MovedError": "MOVED",
}
"""By the library's class, for its releases that do not keep the code."""


class RedisServer:
    """A server, and who uses it.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``, as redis-py takes it.
        password: The password; None: that in the URL.
        user: Who uses it, for error messages: operator and uid.
        timeout_s: How long to wait for a connection, and for an answer.
    """

    def __init__(self, url: str, password: str | None, user: str, timeout_s: float) -> None:
        self.url = masked(url)
        """The URL without a password."""
        self.user = user
        self._url = url
        self._password = password
        self._timeout_s = timeout_s
        self._client: Any = None

    def call(self, what: str, work: Callable[[Any], _T]) -> _T:
        """Do what may be done twice with a client; again after errors that may pass.

        Raises:
            ConfigurationError: the server refuses it for good.
            ServiceUnavailable: it does not answer, or refuses it for now.
        """
        library = redis()
        for attempt in range(_TRIES):
            try:
                if self._client is None:
                    self._client = self._connect()
                return work(self._client)
            except (library.RedisError, OSError) as error:
                self.close()
                if attempt == _TRIES - 1 or isinstance(error, library.TimeoutError) or self._is_lasting(error):
                    self.failed(what, error)
                _log.info("%s to %s: %s; trying again [%s]", what, self.url, error, self.user)
                time.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")

    def failed(self, what: str, error: BaseException) -> NoReturn:
        """Raise the error of a request, by whether it lasts."""
        said = masked(_answer(error).strip(), {"password": self._password or ""})
        lasting = self._is_lasting(error)
        remedy = RIGHTS if forbids(said) else _REMEDIES.get(said.split(" ", 1)[0])
        if isinstance(error, redis().TimeoutError):
            said, remedy = f"no answer within {self._timeout_s:g} s", "is the address Redis's, and does the server run?"
        if remedy is None:
            remedy = "check the URL, the user and the password" if lasting else "does the server run?"
        raise (ConfigurationError if lasting else ServiceUnavailable)(
            f"{what} to {self.url}: {said}; {remedy} [{self.user}]"
        ) from error

    def check(self) -> None:
        """Check that the server is one to write to.

        Raises:
            ConfigurationError: it is not.
            ServiceUnavailable: it does not answer.
        """
        found: dict[str, Any] = self.call("cannot connect", lambda client: client.info())
        version = str(found.get("redis_version", ""))
        if version.partition(".")[0].isdigit() and int(version.partition(".")[0]) < _OLDEST:
            self._refuse(f"is Redis {version}; the sink needs version {_OLDEST} or later")
        if found.get("cluster_enabled"):
            self._refuse("belongs to a Redis Cluster, to which the sink does not write: use a server without cluster mode")
        if found.get("role") == "slave":
            self._refuse("is a replica: give the address of the primary")
        policy = str(found.get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            _log.warning(
                "%s removes keys when its memory is full (maxmemory-policy %s), also rows that wait for their checkpoint; "
                "volatile-* or noeviction keep them [%s]", self.url, policy, self.user
            )  # fmt: skip
        self.call("cannot run scripts", lambda client: client.eval("return 1", 0))

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigurationError(f"{self.url} {why} [{self.user}]")

    def _connect(self) -> Any:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        times = {"socket_timeout": self._timeout_s, "socket_connect_timeout": self._timeout_s}
        login = {} if self._password is None else {"password": self._password}
        try:
            made = redis().Redis.from_url(self._url, **times, **login, retry=Retry(NoBackoff(), 0), protocol=2)
            made.connection_pool.connection_class(**made.connection_pool.connection_kwargs)  # refuses unknown parameters
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"the url {self.url!r} of a RedisSink does not do: {error} [{self.user}]") from error
        return made

    @staticmethod
    def _is_lasting(error: BaseException) -> bool:
        library = redis()
        if isinstance(error, library.AuthenticationError) or "certificate verify failed" in str(error):
            return True
        if isinstance(error, (library.ConnectionError, library.TimeoutError, OSError)):
            return getattr(error, "status_code", None) == "NOAUTH"
        return lasts(_answer(error))
