"""moto as a server on loopback: one call at a time, and a call that is sent again is answered as before."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sailor_cloud.testing.http_api import in_thread


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Serve on a free port of loopback; yields the address as a URL without a path."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    app = AnsweredOnce(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    server.daemon_threads = True  # type: ignore[attr-defined]
    with in_thread(server) as address:
        yield address


class AnsweredOnce:
    """A WSGI application that makes no change twice that an AWS SDK asks for once, and one change at a time.

    Where an answer comes so quickly that it overtakes the end of its own request, as on a busy machine, the SDK for Go
    breaks the connection, takes the answer for lost, and asks again under the same invocation id. The change is made by
    then, and moto would refuse it: the rule to revoke is gone, the group exists. Failures of the server are not kept;
    they are what an SDK tries again for. moto's tables may not be read by one thread while another one changes them.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._answers: dict[str, Any] = {}
        self._one_call = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._one_call:
            answer = self._answer(environ)
        sent: Iterable[bytes] = answer(environ, start_response)
        return sent

    def _answer(self, environ: dict[str, Any]) -> Any:
        from werkzeug.wrappers import Response

        call = environ.get("HTTP_AMZ_SDK_INVOCATION_ID")
        if call in self._answers:
            # Closed with bytes unread, a connection is broken before the answer has arrived.
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return self._answers[call]
        answer = Response.from_app(self._app, environ, buffered=True)
        if call is not None and environ["REQUEST_METHOD"] not in ("GET", "HEAD") and answer.status_code < 500:
            self._answers[call] = answer
        return answer
