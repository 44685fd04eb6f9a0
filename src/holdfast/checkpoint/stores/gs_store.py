"""Objects in a bucket of Google Cloud Storage, by obstore.

Configuration keys, named as in Flink; without them, credentials come from the usual places
(``GOOGLE_APPLICATION_CREDENTIALS``, ``gcloud auth application-default login``, the service account of the machine):

- ``gs.auth.service.account.json.keyfile``: the file with a service account's key
- ``gs.storage.root.url``: a server other than Google's, such as an emulator, which is used without credentials
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from holdfast.checkpoint.stores.bucket import Bucket
from holdfast.errors import ConfigurationError

__all__ = ["GSStore"]

_KEY_FILE = "gs.auth.service.account.json.keyfile"
_ROOT = "gs.storage.root.url"


class GSStore(Bucket):
    """A bucket, or a prefix in it."""

    def __init__(self, bucket: str, prefix: str, config: Mapping[str, str], timeout_s: float = 60.0) -> None:
        from obstore.store import GCSStore as Store

        if not bucket:
            raise ConfigurationError("the storage's URI names no bucket; give gs://bucket/prefix")
        settings, allow_http = gs_settings(config)
        super().__init__(
            partial(Store, bucket, prefix=prefix or None),
            f"gs://{bucket}/{prefix}",
            settings,
            ("NoSuchBucket", "The specified bucket does not exist"),
            "to create, read, list and delete objects (role Storage Object Admin)",
            f"set {_KEY_FILE} or GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login",
            timeout_s,
            allow_http,
        )


def gs_settings(config: Mapping[str, str]) -> tuple[dict[str, Any], bool]:
    """The settings for obstore, and whether to allow plain HTTP.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    root, key_file = config.get(_ROOT), config.get(_KEY_FILE)
    if root:
        parts = urlsplit(root)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigurationError(f"{_ROOT} is {root!r}; give a URL such as http://localhost:4443")
        if not key_file:
            account = {"gcs_base_url": root.rstrip("/"), "disable_oauth": True, "client_email": "", "private_key": ""}
            return {"service_account_key": json.dumps({**account, "private_key_id": ""})}, parts.scheme == "http"
        return {"service_account": key_file, "base_url": root.rstrip("/")}, parts.scheme == "http"
    return ({"service_account": key_file} if key_file else {}), False
