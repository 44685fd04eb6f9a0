"""TLS of the REST API and the dashboard, by Flink's keys ``security.ssl.rest.*``, with certificates as PEM files."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.common.config_values import parse_boolean
from holdfast.errors import ConfigurationError

__all__ = ["Tls", "client_context"]

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True)
class Tls:
    """The certificates of a server."""

    keystore: str
    """The PEM file with the server's private key and its chain of certificates."""
    password: str = field(repr=False)
    """The password of the private key; empty: it has none."""
    truststore: str
    """The PEM file with the certificates that clients' certificates must come from; empty: clients need none."""

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Tls | None:
        """Read the settings; None: no TLS.

        Raises:
            ConfigurationError: a setting or a file cannot be used.
        """
        if not _boolean(config, "security.ssl.rest.enabled"):
            return None
        keystore = _file(config, "security.ssl.rest.keystore", "the server's private key and certificates")
        clients = _boolean(config, "security.ssl.rest.authentication-enabled")
        trusted = _file(config, "security.ssl.rest.truststore", "the certificates to trust") if clients else ""
        tls = cls(keystore, config.get("security.ssl.rest.key-password", ""), trusted)
        tls._check()
        return tls

    def _check(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An empty password keeps OpenSSL from asking for one at the terminal.
            context.load_cert_chain(self.keystore, password=self.password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigurationError(
                f"security.ssl.rest.keystore: {self.keystore} cannot be used ({error}). It must be a PEM file with a "
                "private key, which may need security.ssl.rest.key-password, and its certificate; from PKCS#12: "
                "`openssl pkcs12 -in keystore.p12 -out keystore.pem -nodes`"
            ) from None
        if self.truststore:
            try:
                context.load_verify_locations(self.truststore)
            except (ssl.SSLError, OSError) as error:
                raise ConfigurationError(
                    f"security.ssl.rest.truststore: {self.truststore} is not a PEM file with certificates ({error})"
                ) from None

    @property
    def certificate(self) -> str:
        """The server's certificate, as PEM."""
        text = Path(self.keystore).read_text()
        return f"{_BEGIN}{text.partition(_BEGIN)[2].partition(_END)[0]}{_END}\n"

    def for_uvicorn(self) -> dict[str, Any]:
        """Uvicorn's settings."""
        given: dict[str, Any] = {"ssl_certfile": self.keystore, "ssl_keyfile_password": self.password}
        if self.truststore:
            given |= {"ssl_ca_certs": self.truststore, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return given


def client_context(certificate: str, keystore: str = "") -> ssl.SSLContext:
    """What a client of a server trusts.

    Args:
        certificate: The server's own certificate, as PEM, and no other; empty: what the system trusts.
        keystore: The PEM file with the client's private key and certificate, if the server asks for one.
    """
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # it is this very certificate, whatever names are in it
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=certificate)
    else:
        context = ssl.create_default_context()
    if keystore:
        context.load_cert_chain(keystore)
    return context


def _boolean(config: Mapping[str, str], key: str) -> bool:
    try:
        return parse_boolean(config.get(key, "false"))
    except ValueError as error:
        raise ConfigurationError(f"{key}: {error}") from error


def _file(config: Mapping[str, str], key: str, what: str) -> str:
    path = config.get(key, "")
    if not path:
        raise ConfigurationError(f"{key} is not set: name a PEM file with {what}")
    if not Path(path).is_file():
        raise ConfigurationError(f"{key} is {path!r}: there is no such file")
    return path
