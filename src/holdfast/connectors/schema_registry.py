"""SchemaRegistry: the client of a Confluent schema registry, over its REST API."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from holdfast.common.system.optional_library import optional_library
from holdfast.errors import ConfigurationError, ServiceUnavailable

__all__ = ["SchemaRegistry"]

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_PASSING = (408, 425, 429)
"""Answers that another attempt may better: too slow, too early, too many."""
_PAUSES_S = (0.1, 0.5, 2.0)
"""The pauses before requests are repeated."""


class SchemaRegistry:
    """Fetches and registers schemas. What it has learnt it keeps: an id and its schema never change.

    Args:
        url: The registry's address, e.g. ``http://registry:8081``; several are separated by commas.
        options: ``basic.auth.user.info`` (``user:password``), ``bearer.auth.token``, ``ssl.ca.location``, as in Confluent's
            clients.

    Raises:
        ConfigurationError: the URL or an option cannot be used, or httpx is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self._urls = [each.strip().rstrip("/") for each in url.split(",") if each.strip()]
        self._options = dict(options or {})
        unknown = self._options.keys() - {"basic.auth.user.info", "bearer.auth.token", "ssl.ca.location"}
        if unknown:
            raise ConfigurationError(f"schema registry: {sorted(unknown)[0]!r} is not an option of it")
        if not self._urls or not all(each.startswith(("http://", "https://")) for each in self._urls):
            raise ConfigurationError(f"schema registry: {url!r} is not an address such as http://registry:8081")
        self._schemas: dict[int, str] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._client: Any = None
        _httpx()

    def __reduce__(self) -> tuple[Any, ...]:
        return SchemaRegistry, (",".join(self._urls), self._options)

    def schema(self, schema_id: int) -> str:
        """The text of a schema.

        Raises:
            LookupError: the registry has no such schema.
            ServiceUnavailable: it does not answer.
        """
        known = self._schemas.get(schema_id)
        if known is None:
            status, answer = self._request("GET", f"/schemas/ids/{schema_id}")
            if status == 404:
                raise LookupError(f"the schema registry {self._urls[0]} has no schema with the id {schema_id}")
            known = self._schemas[schema_id] = str(self._checked(status, answer, f"schema {schema_id}")["schema"])
        return known

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        """Register a schema, unless it is there already; returns its id.

        Args:
            subject: The subject, e.g. ``payments-value``.
            schema: The schema's text.
            kind: ``AVRO`` or ``PROTOBUF``.

        Raises:
            ConfigurationError: the registry refuses the schema, e.g. as incompatible with its predecessor.
            ServiceUnavailable: it does not answer.
        """
        known = self._ids.get((subject, schema))
        if known is None:
            body = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
            status, answer = self._request("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
            known = self._ids[(subject, schema)] = int(self._checked(status, answer, f"subject {subject!r}")["id"])
        return known

    def _checked(self, status: int, answer: Any, what: str) -> Any:
        if status == 200:
            return answer
        message = answer.get("message", "") if isinstance(answer, dict) else answer
        remedy = {
            401: "check the user and password",
            403: "check the permissions",
            409: "the schema does not fit its predecessor",
        }
        raise ConfigurationError(
            f"schema registry {self._urls[0]}, {what}: refused ({status}): {message}"
            + (f"; {remedy[status]}" if status in remedy else "")
        )

    def _request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        httpx = _httpx()
        if self._client is None:
            self._client = self._connect()
        failure = ""
        for pause in (*_PAUSES_S, None):
            for url in self._urls:
                try:
                    answer = self._client.request(method, url + path, json=body)
                except httpx.HTTPError as error:
                    failure = f"{type(error).__name__}: {error}"
                    continue
                if answer.status_code < 500 and answer.status_code not in _PASSING:
                    try:
                        return answer.status_code, answer.json()
                    except ValueError:
                        if answer.status_code in (401, 403):  # perhaps of a proxy before the registry
                            return answer.status_code, answer.text[:80]
                        failure = f"{url} answers {answer.text[:80]!r}, which is no schema registry's answer"
                        continue
                failure = f"{answer.status_code} {answer.text[:80]}"
            if pause is not None:
                log.info("the schema registry %s does not answer (%s); asking again", self._urls[0], failure)
                time.sleep(pause)
        raise ServiceUnavailable(
            f"the schema registry {', '.join(self._urls)} does not answer {method} {path}: {failure}. Start it, or correct "
            "its URL; the job goes on from its last checkpoint"
        )

    def _connect(self) -> Any:
        httpx = _httpx()
        options = self._options
        user, _, password = options.get("basic.auth.user.info", "").partition(":")
        token = options.get("bearer.auth.token")
        return httpx.Client(
            timeout=_TIMEOUT_S,
            auth=(user, password) if user else None,
            headers={
                "Accept": "application/vnd.schemaregistry.v1+json",
                **({"Authorization": f"Bearer {token}"} if token else {}),
            },
            verify=options.get("ssl.ca.location", True),
        )


def _httpx() -> Any:
    return optional_library("httpx", "a schema registry needs httpx", "'holdfast[avro]'")
