"""hf:// addresses against a stand-in of the Hub on this machine, by the real huggingface_hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.model.job_file import parse_job as read_job_text
from sailor_cloud.workload.models.hub import pinned_as, place_of

SHA = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
FILES = {"models/org/tiny": {"config.json": json.dumps(CONFIG).encode()}, "datasets/org/text": {"a.txt": b"some text"}}
JOB = {
    "name": "tiny",
    "model": {"config": "hf://org/tiny"},
    "data": {"source": "hf://datasets/org/text@main"},
    "training": {"global_batch_size": 4, "sequence_length": 64, "steps": 10},
    "resources": [{"provider": "gcp", "zones": ["us-central1-a"], "accelerators": {"A100-40": 1}}],
}
PROGRAM = """
import json, sys
import sailor_cloud as sc
from sailor_cloud.errors import SailorError
from sailor_cloud.workload.models import hub
try:
    job = sc.plan(json.loads(sys.argv[1])).job
    print(job.model.config, job.data.source, hub.local_copy(job.data.source).joinpath("a.txt").read_text())
except SailorError as error:
    print(error)
"""


@pytest.fixture
def hub() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self, *, body: bool) -> None:
            path = self.path.split("?")[0]
            for repo, files in FILES.items():
                public = repo.removeprefix("models/")
                if path.startswith(f"/api/{repo}/tree/"):
                    rows = [{"type": "file", "path": n, "size": len(t), "oid": "0"} for n, t in files.items()]
                    return self.send(json.dumps(rows).encode(), body, "application/json")
                if path.startswith(f"/api/{repo}"):
                    about = {"id": "org/x", "sha": SHA, "siblings": [{"rfilename": name} for name in files]}
                    return self.send(json.dumps(about).encode(), body, "application/json")
                for name, text in files.items():
                    if path == f"/{public}/resolve/{SHA}/{name}":
                        return self.send(text, body, "text/plain")
            self.send_response(404)
            self.end_headers()

        def send(self, text: bytes, body: bool, kind: str) -> None:
            self.send_response(200)
            for name, value in (("X-Repo-Commit", SHA), ("ETag", '"1"'), ("Content-Type", kind)):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text if body else b"")

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def planned(home: Path, **more: str) -> tuple[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "SAILOR"))}
    environment = {**kept, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **more}
    command = [sys.executable, "-c", PROGRAM, json.dumps(JOB)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return answer.stdout, answer.stderr


def test_a_plan_pins_the_revision_and_continues_without_a_network_from_the_cache(hub: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    pinned = f"hf://org/tiny@{SHA} hf://datasets/org/text@{SHA} some text\n"

    out, err = planned(tmp_path, HF_ENDPOINT=hub)
    assert (out, "local cache" in err) == (pinned, False), err

    # Said to be offline, and really so: nothing listens at port 9.
    for without in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        out, err = planned(tmp_path, **without)
        assert out == pinned, err
        assert f"the Hub does not answer; using the local cache of hf://org/tiny@{SHA}" in err

    out, err = planned(tmp_path / "empty", HF_HUB_OFFLINE="1")
    assert "model.config: is 'hf://org/tiny': the Hub does not answer" in out
    assert "the local cache lacks it (connect once, or name a local file)" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "repo", "data", "revision", "path"),
    [
        ("hf://gpt2", "gpt2", False, "main", ""),
        ("hf://org/name@v1.0", "org/name", False, "v1.0", ""),
        ("hf://datasets/org/name@abc/train/a.txt", "org/name", True, "abc", "train/a.txt"),
    ],
)
def test_an_address_names_a_repository_a_revision_and_a_path(
    text: str, repo: str, data: bool, revision: str, path: str
) -> None:
    place = place_of(text)
    assert (place.repo, place.data, place.revision, place.path) == (repo, data, revision, path)


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(RequestError, match="is no address of the Hub; write hf://ORG/NAME"):
        place_of("hf://org/name with blanks")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("hf://org/tiny", f"hf://org/tiny@{SHA}"),
        ("hf://org/tiny@main", f"hf://org/tiny@{SHA}"),
        ("hf://org/other", "hf://org/other"),
        (f"hf://org/tiny@{'f' * 40}", f"hf://org/tiny@{'f' * 40}"),
        ("local.json", "local.json"),
    ],
)
def test_a_plan_s_commits_are_those_of_its_job_file(written: str, kept: str) -> None:
    job = read_job_text(json.dumps(JOB))
    assert job.model is not None
    plan_job = job.model_copy(update={"model": job.model.model_copy(update={"config": f"hf://org/tiny@{SHA}"})})
    mine = job.model_copy(update={"model": job.model.model_copy(update={"config": written})})
    found = pinned_as(mine, plan_job)
    assert found.model is not None
    assert found.model.config == kept


def test_a_plan_can_not_choose_another_branch() -> None:
    job = read_job_text(json.dumps(JOB))
    assert job.model is not None
    configs = [job.model.model_copy(update={"config": f"hf://org/tiny{at}"}) for at in ("", "@somebody-elses")]
    mine, plan_job = (job.model_copy(update={"model": config}) for config in configs)
    assert pinned_as(mine, plan_job) == mine
