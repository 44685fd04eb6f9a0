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
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.checkpoint.stores.bucket import Bucket
from holdfast.errors import ConfigurationError
from holdfast.metrics.requests import EXPRESS_SUFFIX, s3_endpoint

__all__ = ["S3Store"]

_ROLE_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class S3Store(Bucket):
    """A bucket, or a prefix in it."""

    def __init__(self, bucket: str, prefix: str, config: Mapping[str, str], timeout_s: float = 60.0) -> None:
        from obstore.store import S3Store as Store

        if not bucket:
            raise ConfigurationError("the checkpoint storage's URI names no bucket; give s3://bucket/prefix")
        if "@" in bucket:  # messages and logs show URIs
            named = bucket.rpartition("@")[2]
            raise ConfigurationError(
                f"credentials do not belong in the URI of s3://{named}; set s3.access-key and s3.secret-key"
            )
        settings, allow_http = _settings(bucket, config)
        super().__init__(
            partial(Store, bucket, prefix=prefix or None),
            f"s3://{bucket}/{prefix}",
            settings,
            ("NoSuchBucket",),
            "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
            "set s3.access-key and s3.secret-key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws",
            timeout_s,
            allow_http,
        )


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

    endpoint = s3_endpoint(config)
    style = config.get("s3.path.style.access", "").strip().lower()
    if style not in ("", "true", "false"):
        raise ConfigurationError(f"s3.path.style.access is {style!r}; it must be true or false")
    path_style = style == "true" or (style == "" and (bool(endpoint) or "." in bucket))
    settings["virtual_hosted_style_request"] = not path_style
    if not endpoint:
        if bucket.endswith(EXPRESS_SUFFIX):
            settings["s3_express"] = True  # the bucket has a host of its own, and sessions
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
