"""A webhook of a test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

# What every request carried: its authorization and its body.
Received = list[tuple[str | None, dict[str, Any]]]


@contextmanager
def listener(*, refuse: int = 0, redirect: str | None = None) -> Iterator[tuple[str, Received]]:
    """A webhook that refuses so many requests before it takes one, or redirects all, and what it has taken."""
    got: Received = []
    left = refuse

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal left
            body = self.rfile.read(int(self.headers["Content-Length"]))
            refused, left = left > 0, left - 1
            if redirect is not None:
                self.send_response(302)
                self.send_header("Location", redirect)
                self.end_headers()
                return
            if not refused:
                got.append((self.headers.get("Authorization"), json.loads(body)))
            self.send_response(503 if refused else 200)
            self.end_headers()

        def do_GET(self) -> None:
            got.append((self.headers.get("Authorization"), {}))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", got
        finally:
            server.shutdown()
            thread.join()
