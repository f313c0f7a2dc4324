"""A read-only web page that follows runs, on this machine only and only for holders of the token."""

from __future__ import annotations

import hmac
import json
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from sailor_cloud.errors import SailorError
from sailor_cloud.report.html.charts import script

LOOPBACK = "127.0.0.1"

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


_TOKEN_MISSING = b"""This page needs its token.
Open the whole address that 'sailor-cloud dashboard' printed: it ends in ?token= and the token.
"""


class Runs(Protocol):
    """The data of the page."""

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per run, newest first: at least `run_id`."""
        ...

    def snapshot(self, run: str) -> dict[str, Any]:
        """Return all data of one of these runs. Raises KeyError for another one."""
        ...


class Dashboard(ThreadingHTTPServer):
    """Serves the page and its data. Port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, runs: Runs, *, port: int = 0, token: str | None = None) -> None:
        self.runs = runs
        self.token = token or secrets.token_urlsafe(24)
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard
    server_version = "sailor-cloud"
    sys_version = ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        # Another site could make a browser request this address under the site's own name; the host reveals it.
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}:
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"unknown host\n")
        query = parse_qs(address.query)
        given = query.get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", _TOKEN_MISSING)
        try:
            self._show(address.path, query)
        except SailorError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", f"{error}\n".encode())
        return None

    def _show(self, path: str, query: dict[str, list[str]]) -> None:
        match path:
            case "/":
                self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page())
            case "/runs.json":
                self._answer(HTTPStatus.OK, "application/json", json.dumps(self.server.runs.rows()).encode())
            case "/snapshot.json":
                try:
                    snapshot = self.server.runs.snapshot(query.get("run", [""])[0])
                except KeyError:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"no such run\n")
                else:
                    self._answer(HTTPStatus.OK, "application/json", json.dumps(snapshot).encode())
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a request's address contains the token."""


def page() -> bytes:
    """Return the self-contained page."""
    written = (resources.files("sailor_cloud.report.run") / "dashboard.html").read_text(encoding="utf-8")
    return written.replace("<!-- charts -->", script()).encode()
