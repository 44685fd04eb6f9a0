"""Objects in an S3 bucket, by obstore.

Configuration keys, named as in Flink; missing ones come from the usual places (the ``AWS_*`` environment variables, the
profile in ``~/.aws``, the role of the container or machine):

- ``s3.access-key``, ``s3.secret-key``: credentials
- ``s3.endpoint``: a server other than AWS, e.g. ``http://minio:9000``
- ``s3.region`` (also ``s3.endpoint.region``): the bucket's region
- ``s3.path.style.access``: ``true`` for path-style requests; the default if ``s3.endpoint`` is set
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.checkpoint.object_store import AlreadyExists, Data, NotFound, Unavailable
from holdfast.errors import ConfigurationError, StorageError

__all__ = ["S3Store"]

_STATUS = re.compile(r"status code: (\d{3})")
_ROLE_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class S3Store:
    """A bucket, or a prefix in it."""

    def __init__(self, bucket: str, prefix: str, config: Mapping[str, str], timeout_s: float = 60.0) -> None:
        import obstore
        from obstore.store import S3Store as Bucket

        if not bucket:
            raise ConfigurationError("the checkpoint storage's URI names no bucket; give s3://bucket/prefix")
        self._obstore = obstore
        self._bucket_name = bucket
        self._prefix = prefix
        settings, allow_http = _settings(bucket, config)
        try:
            self._bucket = Bucket(
                bucket,
                prefix=prefix or None,
                client_options={
                    "timeout": f"{int(timeout_s * 1000)}ms",
                    "connect_timeout": "5s",
                    "allow_http": allow_http,
                },
                # No retries here: only Storage knows the remaining budget and the meaning of a lost answer.
                retry_config={"max_retries": 0},
                **settings,
            )
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigurationError(f"{self.uri}: {_first_line(error)}") from error

    @property
    def uri(self) -> str:
        """The bucket and prefix as an S3 URI."""
        return f"s3://{self._bucket_name}/{self._prefix}".rstrip("/")

    def put(self, path: str, data: Data) -> None:
        """Put an object; an existing one is replaced."""
        with self._errors("put", path):
            # A single request even for large objects: an interrupted multipart upload would stay in the bucket, unlisted.
            self._obstore.put(self._bucket, path, data, use_multipart=False)

    def put_new(self, path: str, data: Data) -> None:
        """Put an object if the path is free (``If-None-Match: *``)."""
        with self._errors("put", path):
            self._obstore.put(self._bucket, path, data, mode="create", use_multipart=False)

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
                if _status(error) == 416:  # the object ends before the range
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
            self._obstore.delete(self._bucket, every)

    @contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        errors = self._obstore.exceptions
        where = f"{self.uri}/{path}"
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                # Must not count as a missing object: the job would take its storage for empty and start with empty state.
                raise StorageError(f"{self.uri}: the bucket {self._bucket_name} does not exist; create it") from error
            raise NotFound(f"{where}: no such object") from error
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise AlreadyExists(f"{where}: exists already") from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise StorageError(
                f"cannot {what} {where}: {_first_line(error)}; the credentials must allow s3:GetObject, s3:PutObject, "
                "s3:DeleteObject and s3:ListBucket (set s3.access-key and s3.secret-key, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY)"
            ) from error
        except errors.NotSupportedError as error:
            raise StorageError(f"cannot {what} {where}: {_first_line(error)}") from error
        except (errors.BaseError, OSError) as error:
            text = str(error)
            if "NoSuchBucket" in text:
                raise StorageError(f"{self.uri}: the bucket {self._bucket_name} does not exist; create it") from error
            code = _status(error)
            reason = f"cannot {what} {where}: {_first_line(error)}"
            if 300 <= code < 500 and code not in (408, 429):
                raise StorageError(reason) from error
            raise Unavailable(reason) from error


def _settings(bucket: str, config: Mapping[str, str]) -> tuple[dict[str, Any], bool]:
    """The bucket's settings for obstore, and whether to allow plain HTTP."""
    settings: dict[str, Any] = {}
    access, secret = config.get("s3.access-key"), config.get("s3.secret-key")
    if bool(access) != bool(secret):
        raise ConfigurationError("s3.access-key and s3.secret-key belong together; one of them is missing")
    if access and secret:
        settings.update(access_key_id=access, secret_access_key=secret)
    elif not any(os.environ.get(name) for name in _ROLE_VARIABLES):
        settings.update(_profile())
    region = config.get("s3.region") or config.get("s3.endpoint.region")
    if region:
        settings["region"] = region
    elif "region" not in settings and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        settings["region"] = "us-east-1"

    endpoint = config.get("s3.endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    style = config.get("s3.path.style.access", "").strip().lower()
    if style not in ("", "true", "false"):
        raise ConfigurationError(f"s3.path.style.access is {style!r}; it must be true or false")
    path_style = style == "true" or (style == "" and (bool(endpoint) or "." in bucket))
    settings["virtual_hosted_style_request"] = not path_style
    if not endpoint:
        return settings, False
    if "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(f"s3.endpoint is {endpoint!r}; give a URL such as https://minio.example.com:9000")
    host = parts.netloc if path_style else f"{bucket}.{parts.netloc}"
    settings["endpoint"] = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    return settings, parts.scheme == "http"


def _profile() -> dict[str, str]:
    """Read credentials and region of the profile ``AWS_PROFILE`` (or ``default``) from ``~/.aws``."""
    home = Path.home() / ".aws"
    profile = os.environ.get("AWS_PROFILE", "default")
    found: dict[str, str] = {}
    for variable, file, sections in (
        ("AWS_CONFIG_FILE", "config", (profile, f"profile {profile}")),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", (profile,)),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(os.environ.get(variable, str(home / file)))
        for section in sections:
            if parser.has_section(section):
                found.update(parser.items(section))
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
    }
    return {name: found[key] for key, name in names.items() if found.get(key)}


def _status(error: BaseException) -> int:
    """The HTTP status in an error; 0: none."""
    found = _STATUS.search(str(error))
    return int(found.group(1)) if found else 0


def _first_line(error: BaseException) -> str:
    """The error's message without obstore's debug dump."""
    return " ".join(str(error).split("Debug source")[0].split())
