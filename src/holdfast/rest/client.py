"""RestClient: requests to the REST API of a driver, from another process."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError, ServiceUnavailable
from holdfast.rest.tls import client_context

__all__ = ["Refused", "RestClient"]


class Refused(HoldfastError):
    """The driver refuses a request. ``status`` is the answer's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class RestClient:
    """The REST API of a driver.

    Args:
        url: Its address.
        token: What requests show that change a job or ask for data of records.
        certificate: The driver's certificate, as PEM; empty: one of an authority that the system trusts.
        keystore: The PEM file with the client's private key and certificate, if the driver asks for one.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str = "", certificate: str = "", keystore: str = "", timeout: float = 60.0) -> None:
        self.url = url
        self.token = token
        self._timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=client_context(certificate, keystore)))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str) -> Any:
        """The answer to a request.

        Raises:
            Refused: the driver refuses it.
            ServiceUnavailable: no driver answers.
        """
        return self._ask("GET", path, None)

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request that changes a job.

        Raises:
            Refused: the driver refuses it.
            ServiceUnavailable: no driver answers.
        """
        return self._ask(method, path, json.dumps(body or {}).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        request = urllib.request.Request(self.url + path, body, method=method)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise Refused(self._refusal(error.code, error.read()), error.code) from None
        except ValueError as error:
            raise Refused(f"{self.url} is not the REST API of a driver: {error}", 0) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise ServiceUnavailable(
                f"No driver answers at {self.url} ({reason}). `holdfast list` shows the jobs."
            ) from None

    def _refusal(self, status: int, said: bytes) -> str:
        if status == 401:
            given = "refuses the token" if self.token else "asks for its token"
            return (
                f"The driver at {self.url} {given}. On the driver's host, as the driver's user, `holdfast token` prints the "
                "right one; pass it as HOLDFAST_TOKEN."
            )
        try:
            return "; ".join(json.loads(said)["errors"])
        except (ValueError, KeyError, TypeError):
            return f"{self.url} answered with status {status}: is it the REST API of a driver?"
