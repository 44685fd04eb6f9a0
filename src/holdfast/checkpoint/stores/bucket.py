"""Objects in a bucket or container of an object store, by obstore."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

from holdfast.checkpoint.stores.checked_writer import CheckedWriter
from holdfast.checkpoint.stores.object_store import AlreadyExists, Data, NotFound, ObjectInfo, Throttled, Unavailable
from holdfast.errors import ConfigurationError, StorageError

__all__ = ["PART", "Bucket"]

_STATUS = re.compile(r"status code: (\d{3})|[Ss]tatus(?: code)?:? (\d{3})")
_METADATA_SERVICE = "http://169.254.169.254/"
"""Where machines in a cloud get credentials, if none are configured."""
PART = 8 << 20
"""Size of a part of a large object, in bytes: no request takes longer than the transfer of one part."""
_WRITES_AT_ONCE = 2
"""Parts of one file to upload at a time; each is in memory."""
_PATIENCE_S = 60
"""Maximum time of a part's retries, in seconds."""
_NOT_ALLOWED = re.compile(r"(?:<Code>|\(code: )(?:AccessDenied|ExpiredToken|InvalidToken)\b")
"""What S3 says of credentials with other statuses than 401 and 403: in a bulk deletion, and when a session is over."""
_TRIED_AGAIN = (408, 409, 429)
"""HTTP statuses below 500 of a call that may succeed later; 409: another call for the object is under way."""
_SAID = {"kind: Timeout": "it did not answer in time", "kind: Connect": "no connection was made"}
"""Kinds of errors in obstore's dump, in words."""
_TOO_MANY = (429, 503)
"""HTTP statuses for too many requests."""
_LONGEST = "24h"
"""Limit of a whole request. What matters is the limit of a read without progress."""


class Bucket:
    """A bucket, or a prefix in it: a `FileStore`.

    Large objects are put in parts, each with its own retries; the store joins them after the last part. Parts of an
    interrupted put stay in the bucket, unlisted, until the store removes them (a life-cycle rule for incomplete uploads).

    Args:
        make: Obstore's class of the store.
        uri: The bucket and prefix, for messages.
        settings: Arguments of ``make``.
        missing: Texts of the answers for a bucket that does not exist.
        rights: What the credentials must allow, for messages.
        remedy: How to set them, such as "set s3.access-key and s3.secret-key", for messages.
        timeout_s: The longest time without progress.
        allow_http: Whether plain HTTP is allowed.

    Raises:
        ConfigurationError: a setting is invalid.
    """

    def __init__(
        self,
        make: Any,
        uri: str,
        settings: dict[str, Any],
        missing: tuple[str, ...],
        rights: str,
        remedy: str,
        timeout_s: float = 60.0,
        allow_http: bool = False,
    ) -> None:
        import obstore

        self._obstore = obstore
        self._uri = uri.rstrip("/")
        self._missing = missing
        self._rights = rights
        self._remedy = remedy
        client_options = {
            "timeout": _LONGEST,
            "read_timeout": f"{int(timeout_s * 1000)}ms",
            "connect_timeout": "5s",
            "allow_http": allow_http,
        }
        self._open: Callable[..., Any] = partial(make, client_options=client_options, **settings)
        try:
            # Only parts are retried here: only Storage knows the remaining budget and the meaning of a lost answer.
            self._bucket = self._open(retry_config={"max_retries": 0})
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigurationError(f"{self.uri}: {_first_line(error)}") from error

    @property
    def uri(self) -> str:
        """The bucket and prefix as a URI."""
        return self._uri

    def put(self, path: str, data: Data) -> None:
        """Put an object; an existing one is replaced."""
        if len(data) <= PART:
            with self._errors("put", path):
                self._obstore.put(self._bucket, path, _octets(data), use_multipart=False)
            return
        try:
            with self._errors("put", path):
                self._obstore.put(self._patient, path, _octets(data), use_multipart=True, chunk_size=PART)
        except NotFound as error:  # its last request succeeded, but was repeated because the answer was lost
            raise Unavailable(f"cannot put {self.uri}/{path}: the answer to its last part was lost") from error

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free, by a condition of the request."""
        with self._errors("put", path, if_free=True):
            self._obstore.put(self._bucket, path, _octets(data), mode="create", use_multipart=False)

    def get(self, path: str) -> bytes:
        """Read an object."""
        with self._errors("get", path):
            return bytes(self._obstore.get(self._bucket, path).bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        with self._errors("get", path):
            try:
                return bytes(self._obstore.get_range(self._bucket, path, start=start, length=length))
            except self._obstore.exceptions.BaseError as error:
                if _status(error) == 416 or "Wanted range starting at" in str(error):  # the object ends before the range
                    return b""
                raise

    def size(self, path: str) -> int:
        """The size of an object in bytes."""
        with self._errors("look up", path):
            return int(self._obstore.head(self._bucket, path)["size"])

    def list(self, prefix: str) -> list[str]:
        """The paths under ``prefix``."""
        with self._errors("list", prefix):
            return [entry["path"] for chunk in self._obstore.list(self._bucket, prefix) for entry in chunk]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""
        every = list(paths)
        with self._errors("delete", every[0] if every else ""):
            try:
                self._obstore.delete(self._bucket, every)
            except FileNotFoundError as error:  # not raised by S3; other objects may be left
                self._check_bucket(error)
                for path in every:
                    with suppress(FileNotFoundError):
                        self._obstore.delete(self._bucket, path)

    appear_whole = True
    """Objects appear complete."""

    def look_up(self, path: str) -> ObjectInfo:
        """Describe an object."""
        with self._errors("look up", path):
            return _info(self._obstore.head(self._bucket, path))._replace(path=path)  # obstore 0.11 adds the prefix

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        """Describe the objects under a directory."""
        with self._errors("list", directory):
            return [_info(entry) for chunk in self._obstore.list(self._bucket, directory) for entry in chunk]

    def create(self, path: str) -> CheckedWriter:
        """Start an object, which is written in parts."""
        with self._errors("write", path):
            file = self._obstore.open_writer(self._patient, path, buffer_size=PART, max_concurrency=_WRITES_AT_ONCE)
        return CheckedWriter(file, lambda: self._errors("write", path))

    @cached_property
    def _patient(self) -> Any:
        """The bucket with retries of single parts, because a part is not kept after it was handed on."""
        backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2}
        retries = {"max_retries": 20, "retry_timeout": timedelta(seconds=_PATIENCE_S), "backoff": backoff}
        return self._open(retry_config=retries)

    def move(self, source: str, target: str) -> None:
        """Copy an object within the bucket, then delete it."""
        size = self.size(source)
        try:
            copied = self.size(target)
        except NotFound:
            copied = -1
        if copied != size:
            with self._errors("copy", source):
                try:
                    self._obstore.copy(self._bucket, source, target)
                except self._obstore.exceptions.AlreadyExistsError as error:  # Azure, while an earlier copy is running
                    raise Unavailable(f"{self.uri}/{target}: is being copied") from error
            if self.size(target) != size:  # Azure may answer before the copy is complete
                raise Unavailable(f"{self.uri}/{target}: is not complete yet")
        self.delete([source])

    @contextmanager
    def _errors(self, what: str, path: str, *, if_free: bool = False) -> Iterator[None]:
        errors = self._obstore.exceptions
        where = f"{self.uri}/{path}"
        try:
            yield
        except FileNotFoundError as error:
            # Must not count as a missing object: the job would take its storage for empty, and start with empty state.
            self._check_bucket(error)
            raise NotFound(f"{where}: no such object") from error
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            if if_free:
                raise AlreadyExists(f"{where}: exists already") from error
            raise Unavailable(f"cannot {what} {where}: {_first_line(error)}") from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise self._not_allowed(what, where, error) from error
        except errors.NotSupportedError as error:
            raise StorageError(f"cannot {what} {where}: {_first_line(error)}") from error
        except (errors.InvalidPathError, ValueError) as error:  # raised for a path in a listing; raised for a given path
            raise StorageError(
                f"cannot {what} {where}: {_first_line(error)}; a part of an object's name must not be empty (//), . or .., "
                "nor have control characters: give the object another name"
            ) from error
        except (errors.BaseError, OSError) as error:
            self._check_bucket(error)
            raise self._failure(what, where, error) from error

    def _failure(self, what: str, where: str, error: BaseException) -> StorageError:
        """The error for a call that was refused, or was not answered."""
        code, text = _status(error), str(error)
        reason = f"cannot {what} {where}: {_first_line(error)}"
        if (code in (401, 403) or _NOT_ALLOWED.search(text)) and _METADATA_SERVICE not in reason:
            return self._not_allowed(what, where, error)
        if _METADATA_SERVICE in reason:  # the last place where credentials are looked up
            reason = (
                f"cannot {what} {where}: no credentials were found: {self._remedy}. They must allow {self._rights}. The "
                f"metadata service of machines in a cloud, the last place to look for some, said: {_first_line(error)}"
            )
        if "incorrectly configured region" in text:
            return StorageError(f"{reason}; set the region to the bucket's (s3.region)")
        if (300 <= code < 500 and code not in _TRIED_AGAIN and "<Code>RequestTimeout</Code>" not in text) or code == 501:
            return StorageError(reason)
        reason += "".join(f" ({said})" for kind, said in _SAID.items() if kind in text)
        return (Throttled if code in _TOO_MANY else Unavailable)(reason)

    def _not_allowed(self, what: str, where: str, error: BaseException) -> StorageError:
        """The error for credentials that do not suffice."""
        return StorageError(
            f"cannot {what} {where}: {_first_line(error)}; the credentials must allow {self._rights} (for others, "
            f"{self._remedy})"
        )

    def _check_bucket(self, error: BaseException) -> None:
        """Raise another error if the bucket itself is missing."""
        if any(each in str(error) for each in self._missing):
            name = self.uri.partition("://")[2].partition("/")[0]
            raise StorageError(f"{self.uri}: the bucket {name} does not exist; create it") from error


def _octets(data: Data) -> memoryview:
    """The same memory as unsigned bytes, the only format that obstore takes; Arrow's buffers are signed."""
    return memoryview(data).cast("B")


def _info(entry: Any) -> ObjectInfo:
    changed_ms = int(entry["last_modified"].timestamp() * 1000)
    tag = (entry.get("e_tag") or "").strip('"')  # listings of Azure leave out the quotes
    return ObjectInfo(entry["path"], entry["size"], changed_ms, tag or changed_ms)


def _status(error: BaseException) -> int:
    """The HTTP status in an error; 0 without one."""
    found = _STATUS.search(str(error))
    return int(found.group(1) or found.group(2)) if found else 0


def _first_line(error: BaseException) -> str:
    """The error's message without obstore's debug dump."""
    return " ".join(str(error).split("Debug source")[0].split())
