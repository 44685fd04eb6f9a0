"""Pytest plugin: Azure Blob Storage on Azurite, Microsoft's emulator, and a relay in front of it that injects faults."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.kafka_distribution import cache_directory
from holdfast.testing.ports import ReservedPort
from s3_fixtures import Relay, served

VERSION = "3.37.0"
MAIN = "node_modules/azurite/dist/src/blob/main.js"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of Azurite's account, which its documentation publishes."""


def azurite_program() -> str:
    """Azurite's blob service: the one that ``AZURITE`` names, or one that npm installs once. Skips without."""
    named = os.environ.get("AZURITE")
    if named:
        return named
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("Azurite needs node and npm, and AZURITE does not name its dist/src/blob/main.js")
    target = cache_directory() / f"azurite-{VERSION}"
    if not (target / MAIN).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            quick = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000"]
            install = ["npm", "install", *quick, "--prefix", f"{scratch}/new", f"azurite@{VERSION}"]
            try:
                done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
            except subprocess.TimeoutExpired:
                pytest.skip("npm took more than 5 minutes to install Azurite; AZURITE may name its dist/src/blob/main.js")
            if done.returncode:
                said = (done.stderr.strip().splitlines() or ["no message"])[0]
                pytest.skip(f"npm cannot install Azurite ({said}); AZURITE may name its dist/src/blob/main.js")
            with contextlib.suppress(OSError):  # another process was faster
                Path(scratch, "new").rename(target)
    return str(target / MAIN)


@pytest.fixture(scope="session")
def azurite() -> Iterator[dict[str, str]]:
    """The settings of a running Azurite."""
    program, port = azurite_program(), ReservedPort()
    command = ["node", program, "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port.number)]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        endpoint = f"http://127.0.0.1:{port.number}/{ACCOUNT}"
        yield {f"fs.azure.account.key.{ACCOUNT}": KEY, "fs.azure.endpoint": endpoint}
    finally:
        server.kill()
        server.wait()
        port.close()


@pytest.fixture
def azure(azurite: dict[str, str]) -> Iterator[tuple[type[Relay], dict[str, str]]]:
    """Azurite behind a relay, with the container ``checkpoints``."""
    create_container(azurite, "checkpoints")
    with served(Relay, azurite["fs.azure.endpoint"].removesuffix(f"/{ACCOUNT}")) as (own, url):
        yield own, {**azurite, "fs.azure.endpoint": f"{url}/{ACCOUNT}"}


def create_container(config: dict[str, str], name: str) -> None:
    """Create a container by a signed request, unless it is there; waits for the server."""
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/{name}"
    digest = hmac.new(base64.b64decode(KEY), f"{text}\nrestype:container".encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": "2021-08-06",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    request = urllib.request.Request(
        f"{config['fs.azure.endpoint']}/{name}?restype=container", headers=headers, method="PUT"
    )
    deadline = time.monotonic() + 600
    while True:
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert answer.status == 201
                return
        except urllib.error.HTTPError as error:
            if error.code == 409:  # it exists
                return
            raise
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
