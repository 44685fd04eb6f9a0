"""TLS of the REST API, with certificates made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.cli.drivers import Driver, DriverGone
from holdfast.errors import ConfigurationError
from holdfast.metrics.job import JobMetrics
from holdfast.rest.server import RestServer
from holdfast.rest.tls import Tls
from holdfast.runtime.driver.job_registry import JobRecord


class Job:
    def __init__(self) -> None:
        self.metrics = JobMetrics("a" * 32, "shop")
        self.cancelled = False

    def cancel(self, *, force: bool = False) -> None:
        self.cancelled = True


def certificate(directory: Path, name: str, password: str = "") -> Path:
    """A PEM file with a private key and its self-signed certificate."""
    key, made = directory / f"{name}.key", directory / f"{name}.crt"
    protect = ["-passout", f"pass:{password}"] if password else ["-nodes"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(made), *protect),
        ],
        check=True,
        capture_output=True,
    )
    both = directory / f"{name}.pem"
    both.write_text(key.read_text() + made.read_text())
    return both


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls"), "driver")


def settings(keystore: Path, /, **more: str) -> dict[str, str]:
    own = {"rest.port": "0", "security.ssl.rest.enabled": "true", "security.ssl.rest.keystore": str(keystore)}
    return own | {f"security.ssl.rest.{key.replace('_', '-')}": value for key, value in more.items()}


def record(server: RestServer, shows_certificate: bool = False) -> JobRecord:
    assert server.tls is not None
    keystore = server.tls.keystore if shows_certificate else ""
    return JobRecord("a" * 32, "shop", 1, "h", server.url, server.token, 1, server.tls.certificate, keystore)


def the_command_line_trusts_the_drivers_own_certificate_and_no_other(pem: Path, tmp_path: Path) -> None:
    server = RestServer(settings(pem))
    job = Job()
    server.add(job)  # type: ignore[arg-type]
    try:
        assert server.url.startswith("https://localhost:")
        driver = Driver(server.url, server.token, record(server))
        assert driver.get("/jobs")["jobs"][0]["id"] == "a" * 32
        driver.change("PATCH", f"/jobs/{'a' * 32}?mode=cancel")
        other = Tls.of(settings(certificate(tmp_path, "driver")))
        assert other is not None
        wrong = JobRecord("a" * 32, "shop", 1, "h", server.url, server.token, 1, other.certificate)
        with pytest.raises(DriverGone, match="CERTIFICATE_VERIFY_FAILED"):
            Driver(server.url, server.token, wrong).get("/jobs")
        with pytest.raises(DriverGone, match="CERTIFICATE_VERIFY_FAILED"):
            Driver(server.url, server.token).get("/jobs")  # no authority that the system trusts has signed it
        with pytest.raises(DriverGone):
            Driver(server.url.replace("https", "http"), server.token).get("/jobs")
    finally:
        server.remove("a" * 32)


def a_server_that_asks_for_certificates_answers_only_clients_that_show_one(pem: Path, tmp_path: Path) -> None:
    server = RestServer(settings(pem, authentication_enabled="true", truststore=str(pem)))
    server.add(Job())  # type: ignore[arg-type]
    try:
        assert Driver(server.url, server.token, record(server, shows_certificate=True)).get("/jobs")["jobs"]
        with pytest.raises(DriverGone):
            Driver(server.url, server.token, record(server)).get("/jobs")
    finally:
        server.remove("a" * 32)


def a_key_with_a_password_is_opened_with_it_and_never_asks_at_the_terminal(tmp_path: Path) -> None:
    protected = certificate(tmp_path, "protected", "horse battery")
    assert Tls.of(settings(protected, key_password="horse battery")) is not None
    for wrong in ("", "staple"):
        with pytest.raises(ConfigurationError, match=r"cannot be used .*key-password") as refused:
            Tls.of(settings(protected, key_password=wrong))
        assert "staple" not in str(refused.value)
    assert "horse" not in repr(Tls.of(settings(protected, key_password="horse battery")))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"keystore": ""}, "security.ssl.rest.keystore is not set: name a PEM file"),
        ({"keystore": "/no/such.pem"}, "there is no such file"),
        ({"keystore": __file__}, "It must be a PEM file.*openssl pkcs12"),
        ({"authentication_enabled": "true"}, "security.ssl.rest.truststore is not set"),
        ({"authentication_enabled": "true", "truststore": __file__}, "is not a PEM file with certificates"),
        ({"enabled": "perhaps"}, "security.ssl.rest.enabled"),
    ],
)
def a_setting_that_cannot_work_is_refused_with_the_remedy(pem: Path, more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Tls.of(settings(pem, **more))
