from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sailor_cloud.launch.notify import TOKEN_VARIABLE, URL_VARIABLE, NoNotifier, Notice, notifier_from


@contextmanager
def listener(*, refuse: int = 0) -> Iterator[tuple[str, list[tuple[str | None, dict[str, object]]]]]:
    """A webhook that refuses so many requests before it takes one."""
    got: list[tuple[str | None, dict[str, object]]] = []
    left = refuse

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal left
            body = self.rfile.read(int(self.headers["Content-Length"]))
            refused, left = left > 0, left - 1
            if not refused:
                got.append((self.headers.get("Authorization"), json.loads(body)))
            self.send_response(503 if refused else 200)
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


@pytest.mark.parametrize("refuse", [0, 2])
def test_a_notice_reaches_the_webhook_with_the_token_also_at_a_later_attempt(refuse: int) -> None:
    with listener(refuse=refuse) as (url, got):
        notifier = notifier_from({URL_VARIABLE: url, TOKEN_VARIABLE: "t0ken"})
        notifier.tell(Notice.PREEMPTED, run="r1", text="node n1 lost", nodes=["n1"])
        notifier.close()
    assert got == [("Bearer t0ken", {"event": "preempted", "run": "r1", "text": "node n1 lost", "nodes": ["n1"]})]


def test_a_webhook_that_never_answers_breaks_nothing_and_its_address_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notifier = notifier_from({URL_VARIABLE: "http://127.0.0.1:9/s3cret"})
    notifier.tell(Notice.FAILED, run="r1", text="failed")
    notifier.close()
    assert "webhook, notice failed" in caplog.text
    assert "s3cret" not in caplog.text


def test_without_an_address_nobody_is_told() -> None:
    assert isinstance(notifier_from({}), NoNotifier)
    assert isinstance(notifier_from({URL_VARIABLE: "file:///etc/passwd"}), NoNotifier)
