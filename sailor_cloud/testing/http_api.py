"""A small HTTP server on loopback for the fakes' APIs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes
    kind: str = "application/json"


@contextmanager
def serving(answer: Callable[[Ask], Answer | None]) -> Iterator[str]:
    """Serve on a free port of loopback; yields the address as a URL without a path. None closes the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one segment, else the client's delayed ACK costs 40 ms per answer

        def log_message(self, format: str, *args: Any) -> None:
            """Keep tests' output clean."""

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = dict(self.headers.items())
            response = answer(Ask(method=self.command, path=self.path, headers=headers, body=body))
            if response is None:
                self.close_connection = True
                return
            self.send_response(response.status)
            self.send_header("Content-Type", response.kind)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with in_thread(server) as address:
        yield address


@contextmanager
def in_thread(server: HTTPServer) -> Iterator[str]:
    """Run a loopback server in a thread during the block; yields its address as a URL without a path."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
