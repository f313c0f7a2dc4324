"""Buckets of a test, on this machine: moto's S3 server, and a stand-in for what Google Cloud Storage answers."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "run-bucket"


@contextlib.contextmanager
def s3_bucket() -> Iterator[dict[str, str]]:
    """Serve an empty bucket; give the environment in which s3:// reaches it."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        environ = s3_environment(f"http://{host}:{port}")
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        client = boto3.client("s3", endpoint_url=environ["AWS_ENDPOINT_URL"], region_name="us-east-1", **keys)
        client.create_bucket(Bucket=BUCKET)
        yield environ
    finally:
        server.stop()


def s3_environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


@dataclass(slots=True)
class GoogleBucket:
    """An empty bucket that is served; `down`: requests are cut off without an answer."""

    environ: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    down: bool = False


@contextlib.contextmanager
def google_bucket(folder: Path) -> Iterator[GoogleBucket]:
    """Serve an empty bucket; its `environ` is the environment in which gs:// reaches it."""
    bucket = GoogleBucket()
    handler = type("Handler", (_Google,), {"bucket": bucket, "objects": bucket.objects})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        bucket.environ = google_environment(f"http://127.0.0.1:{server.server_port}", folder)
        yield bucket
        server.shutdown()
        thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # Connections that a killed rank leaves behind must not hold the end of a test up.
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: ranks that are killed cut their requests off."""


def google_environment(endpoint: str, folder: Path) -> dict[str, str]:
    account = folder / "account.json"
    keys = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account.write_text(json.dumps({"gcs_base_url": endpoint, "disable_oauth": True, **keys}))
    return {"GOOGLE_SERVICE_ACCOUNT": str(account), "STORAGE_EMULATOR_HOST": endpoint}


class _Google(http.server.BaseHTTPRequestHandler):
    """The part of the XML API of Google Cloud Storage that objects and their listing need; see its reference."""

    bucket: GoogleBucket
    objects: dict[str, bytes]
    protocol_version = "HTTP/1.1"

    def parse_request(self) -> bool:
        if self.bucket.down:
            self.close_connection = True
            return False
        return super().parse_request()

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def do_PUT(self) -> None:
        length = int(self.headers["Content-Length"])
        content = self.rfile.read(length)
        if len(content) == length:
            self.objects[self._key] = content
            self._answer(200)

    def do_DELETE(self) -> None:
        self._answer(204 if self.objects.pop(self._key, None) is not None else 404)

    def do_HEAD(self) -> None:
        self._answer(200, self.objects[self._key]) if self._key in self.objects else self._answer(404)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._answer(200, self._listing(query.get("prefix", [""])[0]).encode())
        elif self._key not in self.objects:
            self._answer(404)
        elif span := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            content = self.objects[self._key]
            first, last = int(span[1]), min(int(span[2]), len(content) - 1)
            self._answer(206, content[first : last + 1], **{"Content-Range": f"bytes {first}-{last}/{len(content)}"})
        else:
            self._answer(200, self.objects[self._key])

    def _listing(self, prefix: str) -> str:
        entries, folders = "", set()
        for key, content in sorted(dict(self.objects).items()):
            rest = key.removeprefix(prefix)
            if not key.startswith(prefix):
                continue
            if "/" in rest:
                folders.add(prefix + rest.split("/")[0] + "/")
                continue
            date = "<LastModified>2026-11-21T00:00:00.000Z</LastModified>"
            entries += f"<Contents><Key>{escape(key)}</Key>{date}<Size>{len(content)}</Size></Contents>"
        shared = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}{shared}</ListBucketResult>"

    def _answer(self, code: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        fixed = {"ETag": '"1"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT", "Content-Length": str(len(content))}
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""
