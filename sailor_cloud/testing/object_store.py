"""Buckets on this machine: the calls of S3 and of Cloud Storage's XML API for objects and their listing.

Both have the same form: path-style requests, listings of version 2, ranges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from sailor_cloud.model.offer import Provider
from sailor_cloud.testing.http_api import in_thread

# Clients need a region for S3 with any endpoint.
_REGION = "us-east-1"


@dataclass(slots=True)
class ObjectStore:
    """Objects by bucket and key. `exists` says which buckets there are; `down`: connections close without an answer."""

    exists: Callable[[str], bool] = lambda bucket: True
    # Answers calls about buckets: status and body for method, bucket and query, None for calls about objects.
    about_buckets: Callable[[str, str, dict[str, list[str]]], tuple[int, bytes] | None] = lambda *asked: None
    objects: dict[tuple[str, str], bytes] = field(default_factory=dict)
    down: bool = False
    url: str = ""

    def of(self, bucket: str) -> dict[str, bytes]:
        """Return the objects of one bucket by key."""
        return {key: content for (name, key), content in dict(self.objects).items() if name == bucket}


@contextmanager
def serve_objects(store: ObjectStore) -> Iterator[str]:
    """Serve on a free port of loopback; yields the address as a URL without a path."""
    handler = type("Handler", (_Handler,), {"store": store})
    with in_thread(_Server(("127.0.0.1", 0), handler)) as store.url:
        yield store.url


def google_environment(endpoint: str, folder: Path) -> dict[str, str]:
    """Return the environment that sends gs:// to an endpoint, with an account that needs no token."""
    account = folder / "account.json"
    keys = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account.write_text(json.dumps({"gcs_base_url": endpoint, "disable_oauth": True, **keys}))
    return {"GOOGLE_SERVICE_ACCOUNT": str(account), "STORAGE_EMULATOR_HOST": endpoint}


def aws_environment(endpoint: str) -> dict[str, str]:
    """Return the environment that sends s3:// to an endpoint."""
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    return {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_REGION": _REGION, **keys}


def store_environment(provider: Provider, endpoint: str, folder: Path) -> dict[str, str]:
    return google_environment(endpoint, folder) if provider is Provider("gcp") else aws_environment(endpoint)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Connections that a killed rank leaves open must not block the end of a test.
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: killed ranks close their connections."""


class _Handler(BaseHTTPRequestHandler):
    store: ObjectStore
    protocol_version = "HTTP/1.1"

    def parse_request(self) -> bool:
        if self.store.down:
            self.close_connection = True
            return False
        return super().parse_request()

    @property
    def _key(self) -> tuple[str, str]:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        return bucket, key

    @property
    def _query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def do_PUT(self) -> None:
        length = int(self.headers["Content-Length"])
        content = self.rfile.read(length)
        if len(content) != length:
            return
        if not self.store.exists(self._key[0]):
            self._refuse()
            return
        self.store.objects[self._key] = content
        self._answer(200)

    def do_POST(self) -> None:
        """Delete several objects of S3 at once, the only POST request."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        gone = re.findall(r"<Key>(.*?)</Key>", asked)
        for key in gone:
            self.store.objects.pop((self._key[0], unescape(key)), None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in gone)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def do_DELETE(self) -> None:
        response = None if self._key[1] else self.store.about_buckets("DELETE", self._key[0], self._query)
        if response is not None:
            self._answer(*response)
            return
        self._answer(204 if self.store.objects.pop(self._key, None) is not None else 404)

    def do_HEAD(self) -> None:
        self._answer(200, self.store.objects[self._key]) if self._key in self.store.objects else self._answer(404)

    def do_GET(self) -> None:
        query = self._query
        bucket = self._key[0]
        response = None if self._key[1] else self.store.about_buckets("GET", bucket, query)
        if response is not None:
            self._answer(*response)
        elif not self.store.exists(bucket):
            self._refuse()
        elif "list-type" in query:
            self._answer(200, self._listing(bucket, query.get("prefix", [""])[0]).encode())
        elif not self._key[1]:
            self._refuse()
        elif self._key not in self.store.objects:
            self._answer(404)
        elif span := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            content = self.store.objects[self._key]
            first, last = int(span[1]), min(int(span[2]), len(content) - 1)
            self._answer(206, content[first : last + 1], **{"Content-Range": f"bytes {first}-{last}/{len(content)}"})
        else:
            self._answer(200, self.store.objects[self._key])

    def _listing(self, bucket: str, prefix: str) -> str:
        entries, folders = "", set()
        for key, content in sorted(self.store.of(bucket).items()):
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

    def _refuse(self) -> None:
        self._answer(404, b"<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>")

    def _answer(self, code: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        fixed = {"ETag": '"1"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT", "Content-Length": str(len(content))}
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""
