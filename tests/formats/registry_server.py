"""A schema registry's REST API on a real HTTP server: registers schemas in memory, fails and refuses as told."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RegistryServer:
    """The registry; `stop` makes its address dead."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.requests: list[str] = []
        self.asked = threading.Condition()
        """Notified of every request."""
        self.failures = 0
        """The number of requests that fail with 503."""
        self.password = ""
        self.refuses = False
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self, None)

            def do_POST(self) -> None:
                registry.answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *message: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def answer(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        with self.asked:
            self.requests.append(f"{request.command} {request.path}")
            status, content = self._answer(request, body)
            self.asked.notify_all()
        data = json.dumps(content).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _answer(self, request: BaseHTTPRequestHandler, body: Any) -> tuple[int, Any]:
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50301, "message": "starting"}
        wanted = f"Basic {base64.b64encode(self.password.encode()).decode()}" if self.password else None
        if request.headers.get("Authorization") != wanted:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if request.command == "GET":
            number = int(request.path.rpartition("/")[2])
            if not 1 <= number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, {"schema": self.schemas[number - 1]}
        if self.refuses:
            return 409, {"error_code": 409, "message": "incompatible"}
        if body["schema"] not in self.schemas:
            self.schemas.append(body["schema"])
        return 200, {"id": self.schemas.index(body["schema"]) + 1}

    def __enter__(self) -> RegistryServer:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
