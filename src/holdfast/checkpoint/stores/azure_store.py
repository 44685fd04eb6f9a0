"""Objects in a container of Azure Blob Storage or Data Lake Storage, by obstore.

``abfss://container@account.dfs.core.windows.net/prefix`` (also ``abfs``, ``wasb``, ``wasbs``). Configuration keys, named as
in Flink; without them, credentials come from the usual places (the ``AZURE_*`` environment variables, the identity of
the machine or workload):

- ``fs.azure.account.key.<account>.dfs.core.windows.net`` (or without the host after the account): the account's key
- ``fs.azure.account.oauth2.client.id``, ``.client.secret``, ``.client.endpoint``: a service principal; the endpoint contains
  the tenant
- ``fs.azure.endpoint``: a server other than Azure's, such as an emulator: ``http://localhost:10000/devstoreaccount1``
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from holdfast.checkpoint.stores.bucket import Bucket
from holdfast.errors import ConfigurationError

__all__ = ["AzureStore"]

_KEY = "fs.azure.account.key."
_ID = "fs.azure.account.oauth2.client.id"
_SECRET = "fs.azure.account.oauth2.client.secret"
_TOKENS = "fs.azure.account.oauth2.client.endpoint"
_ENDPOINT = "fs.azure.endpoint"


class AzureStore(Bucket):
    """A container, or a prefix in it.

    Args:
        authority: ``container@account.dfs.core.windows.net``.
        prefix: The prefix.
        config: The settings.
        timeout_s: The longest time without progress.
    """

    def __init__(self, authority: str, prefix: str, config: Mapping[str, str], timeout_s: float = 60.0) -> None:
        from obstore.store import AzureStore as Store

        container, settings, allow_http = azure_settings(authority, config)
        super().__init__(
            partial(Store, container, prefix=prefix or None),
            f"abfss://{authority}/{prefix}",
            settings,
            ("ContainerNotFound", "The specified container does not exist"),
            "to read, write, list and delete blobs (role Storage Blob Data Contributor)",
            f"set {_KEY}<account>, or AZURE_STORAGE_ACCOUNT_KEY",
            timeout_s,
            allow_http,
        )


def azure_settings(authority: str, config: Mapping[str, str]) -> tuple[str, dict[str, Any], bool]:
    """The container, the settings for obstore, and whether to allow plain HTTP.

    Raises:
        ConfigurationError: the authority or a setting is invalid.
    """
    container, at, host = authority.partition("@")
    account = host.partition(".")[0]
    if not (container and at and account):
        raise ConfigurationError(
            f"abfss://{authority} names no container and account; give abfss://container@account.dfs.core.windows.net/prefix"
        )
    settings: dict[str, Any] = {"account_name": account}
    key = config.get(f"{_KEY}{host}") or config.get(f"{_KEY}{account}")
    oauth = {name: config.get(name) for name in (_ID, _SECRET, _TOKENS)}
    if key:
        settings["account_key"] = key
    elif any(oauth.values()):
        missing = [name for name, value in oauth.items() if not value]
        if missing:
            raise ConfigurationError(f"{missing[0]} is missing beside the others of {', '.join(oauth)}")
        tenant = urlsplit(oauth[_TOKENS] or "").path.strip("/").partition("/")[0]
        if not tenant:
            raise ConfigurationError(
                f"{_TOKENS} is {oauth[_TOKENS]!r}; give https://login.microsoftonline.com/<tenant>/oauth2/token"
            )
        settings.update(client_id=oauth[_ID], client_secret=oauth[_SECRET], tenant_id=tenant)
    endpoint = config.get(_ENDPOINT)
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigurationError(f"{_ENDPOINT} is {endpoint!r}; give a URL such as http://localhost:10000/{account}")
        settings["endpoint"] = endpoint.rstrip("/")
    return container, settings, bool(endpoint) and str(endpoint).startswith("http://")
