"""Answers of an object store besides success: which are final, which are tried again, and what the error says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.s3_store import S3Store
from holdfast.checkpoint.stores.storage import AlreadyExists, RetryPolicy, Storage, Unavailable, refused
from holdfast.errors import ConfigurationError, StorageError

BRIEF = RetryPolicy(budget=0.2, first_delay=0.001, longest_delay=0.01)
CALLS: dict[str, Callable[[Storage], object]] = {
    "put": lambda storage: storage.put("a", b"x"),
    "put new": lambda storage: storage.put_new("a", b"x"),
    "get": lambda storage: storage.get("a"),
    "size": lambda storage: storage.size("a"),
    "list": lambda storage: storage.list(""),
    "delete": lambda storage: storage.delete(["a"]),
}
RIGHTS = "the credentials must allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"


class Answering(BaseHTTPRequestHandler):
    """Answers each request alike."""

    status, body = 200, b""

    def _handle(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[tuple[type[Answering], Storage]]:
    class Own(Answering):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield Own, storage_at(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()
    thread.join()


def storage_at(endpoint: str, timeout_s: float = 60.0) -> Storage:
    keys = {"s3.endpoint": endpoint, "s3.access-key": "user", "s3.secret-key": "hidden"}
    return Storage(S3Store("bucket", "jobs", keys, timeout_s), BRIEF)


def said(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told</Message></Error>".encode()


def failure(storage: Storage, call: str) -> StorageError:
    with pytest.raises(StorageError) as raised:
        CALLS[call](storage)
    return raised.value


def answers(*each: tuple[int, str]) -> list[tuple[int, str, str]]:
    """Each answer to each call; that to HEAD has no text, so its status must tell all."""
    return [(status, code, call) for status, code in each for call in CALLS if (status, call) != (400, "size")]


@pytest.mark.parametrize(
    ("status", "code", "call"),
    answers((403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (401, "Unauthorized"), (400, "ExpiredToken")),
)
def an_answer_about_the_credentials_is_final_and_says_what_they_must_allow(
    status: int, code: str, call: str, answering: tuple[type[Answering], Storage]
) -> None:
    handler, storage = answering
    handler.status, handler.body = status, said(code)
    error = failure(storage, call)
    assert refused(error)
    assert RIGHTS in str(error)


def a_bulk_deletion_that_is_not_allowed_says_so_although_its_status_is_success(
    answering: tuple[type[Answering], Storage],
) -> None:
    handler, storage = answering
    handler.body = (
        b"<DeleteResult><Error><Key>jobs/a</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    )
    error = failure(storage, "delete")
    assert refused(error)
    assert RIGHTS in str(error)


@pytest.mark.parametrize(
    ("status", "code", "call"),
    answers((400, "RequestTimeout"), (408, "Timeout"), (500, "InternalError"), (503, "SlowDown")),
)
def an_answer_that_passes_is_tried_again(
    status: int, code: str, call: str, answering: tuple[type[Answering], Storage]
) -> None:
    handler, storage = answering
    handler.status, handler.body = status, said(code)
    error = failure(storage, call)
    assert not refused(error)
    assert "tries)" in str(error)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "put new"])
def a_conflict_with_a_call_under_way_is_tried_again_and_is_no_object_that_exists(
    call: str, answering: tuple[type[Answering], Storage]
) -> None:
    handler, storage = answering
    handler.status, handler.body = 409, said("OperationAborted")
    error = failure(storage, call)
    assert not isinstance(error, AlreadyExists)
    assert isinstance(error.__cause__, Unavailable)


def a_store_that_does_not_know_the_condition_of_a_put_is_refused_at_once(answering: tuple[type[Answering], Storage]) -> None:
    handler, storage = answering
    handler.status, handler.body = 501, said("NotImplemented")
    with pytest.raises(ConfigurationError, match=r"cannot be used: cannot put .*NotImplemented"):
        storage.check(JobPaths.of("job"))


def a_store_that_is_busy_when_a_job_starts_is_no_wrong_configuration(answering: tuple[type[Answering], Storage]) -> None:
    handler, storage = answering
    handler.status, handler.body = 503, said("SlowDown")
    with pytest.raises(StorageError, match=r"checkpoint storage s3://bucket/jobs .* does not answer: .*SlowDown"):
        storage.check(JobPaths.of("job"))


def a_bucket_of_another_region_is_told_with_the_setting(answering: tuple[type[Answering], Storage]) -> None:
    handler, storage = answering
    handler.status, handler.body = 301, said("PermanentRedirect")
    with pytest.raises(
        ConfigurationError, match=r"cannot be used: cannot put .*set the region to the bucket's \(s3.region\)"
    ):
        storage.check(JobPaths.of("job"))


def a_secret_in_a_uri_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match=r"do not belong in the URI of s3://bucket; set s3.access-key") as raised:
        Storage.open("s3://user:hidden@bucket/jobs")
    assert "hidden" not in str(raised.value)


def an_endpoint_that_accepts_and_never_answers_and_one_that_is_not_there_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "did not answer in time" in str(failure(storage_at(endpoint, 0.3), "put"))
    assert "no connection was made" in str(failure(storage_at(endpoint), "put"))
