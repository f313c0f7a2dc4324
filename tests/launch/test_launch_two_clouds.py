"""One run over two fake clouds: local steps, a node that is lost, a controller that is killed, one receipt."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factories.crossings import one_pipeline_each, spot_offer
from factories.runs import read_lines
from factories.warm import COMMAND_LINE, warm
from sailor_cloud import catalog
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Provider
from sailor_cloud.testing.mock_cloud import MockCloud, in_environment, mock_clouds
from sailor_cloud.testing.network_programs import LOG

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clouds"), pytest.mark.timeout(900)]
STEPS, EVERY = 60, 10
PATIENCE_S = 400.0
_BUCKET = "kept-by-its-owner"
_NO_AMAZON = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
# Four blocks of width 64, embeddings of 256 tokens and 64 positions, and norms, in single precision.
_WEIGHTS_BYTES = 4 * (4 * (12 * 64 * 64 + 13 * 64) + 256 * 64 + 64 * 64 + 2 * 64)
JOB = """
name: two-clouds
model: {{model_type: gpt2, vocab_size: 256, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4,
        max_position_embeddings: 64}}
data: {{source: python-stdlib}}
training: {{global_batch_size: 16, sequence_length: 64, steps: {steps}, precision: fp32, learning_rate: 1.0e-3,
           sync_every: {every}}}
constraints: {{budget_usd: 60, deadline: 2h}}
resources:
  - provider: gcp
    zones: [us-central1-b]
    markets: [spot]
    accelerators: {{V100-16: 1}}
    instance_types: [n1-standard-8]
  - {{provider: aws, zones: [use1-az2], markets: [spot], accelerators: {{V100-16: 1}}, instance_types: [p3.2xlarge]}}
cloud: {{gcp: {{project: {project}}}, owner: me@example.org, image: {image}}}
checkpoint: {{every: 1s, keep: 2, to: {checkpoints}}}
"""


@pytest.fixture
def clouds(tmp_path: Path) -> Iterator[tuple[MockCloud, ...]]:
    providers = (Provider("gcp"), Provider("aws"))
    with mock_clouds(providers, tmp_path / "mock") as both, in_environment(both[0].environment):
        yield both


def _plan(text: str) -> PlanDocument:
    """Return a plan with a pipeline on each cloud, half of each batch on either."""
    job, prices = parse_job(text), catalog.load()
    places = {"google": ("us-central1-b", "n1-standard-8"), "amazon": ("use1-az2", "p3.2xlarge")}
    offers = {name: spot_offer(prices, zone, kind, "V100-16") for name, (zone, kind) in places.items()}
    return one_pipeline_each(job, prices, offers)


class _Run:
    """`sailor-cloud` in processes of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **variables: str) -> None:
        self.processes.append(
            subprocess.Popen(
                [*warm(COMMAND_LINE), *arguments],
                env={**os.environ, "SAILOR_CLOUD_HOME": str(self.home), **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )

    @property
    def folder(self) -> Path:
        (folder,) = (self.home / "runs").iterdir()
        return folder

    def events(self, kind: str) -> list[dict[str, Any]]:
        file = self.folder / "logs" / "events.jsonl"
        return [event for event in read_lines(file) if event["event"] == kind]

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        until, process = time.monotonic() + PATIENCE_S, self.processes[-1]
        while time.monotonic() < until and process.poll() is None:
            if (self.home / "runs").is_dir() and any((self.home / "runs").iterdir()) and condition():
                return
            time.sleep(0.05)
        process.kill()
        raise AssertionError(f"never came to {what}:\n{process.communicate()[0]}")

    def end(self) -> tuple[int, str]:
        output, _ = self.processes[-1].communicate(timeout=PATIENCE_S)
        return self.processes[-1].returncode, output

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def _peers(cloud: MockCloud) -> set[str]:
    """Return the addresses to which a cloud's firewall opens the port of WireGuard."""
    if cloud.provider == "gcp":
        rules = [r for r in cloud.cloud.of_type("google_compute_firewall").values() if r["name"].endswith("-overlay")]
        return {address for rule in rules for address in rule["source_ranges"]}
    rules = cloud.cloud.of_type("aws_vpc_security_group_ingress_rule").values()
    return {rule["cidr_ipv4"] for rule in rules if rule["ip_protocol"] == "udp"}


def _address(cloud: MockCloud) -> str:
    (name,) = cloud.billed().values()
    if cloud.provider == "aws":
        return str(cloud.cloud.of_type("aws_instance")[name]["public_ip"])
    state = cloud.cloud.of_type("google_compute_instance")[name]
    return str(state["network_interface"][0]["access_config"][0]["nat_ip"])


@pytest.mark.parametrize("lost", [False, True], ids=["the controller is killed", "a node is lost, too"])
def test_a_run_over_two_clouds_trains_to_its_end(lost: bool, clouds: tuple[MockCloud, ...], tmp_path: Path) -> None:
    google, amazon = clouds
    text = JOB.format(
        steps=STEPS, every=EVERY, project=google.project, image=amazon.image, checkpoints=f"gs://{_BUCKET}/run"
    )
    google.cloud.create("google_storage_bucket", {"name": _BUCKET, "location": "US"}, {"project": google.project})
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "plan.json").write_text(_plan(text).to_json())
    run = _Run(tmp_path / "home")
    options = ("--yes", "--allow-stale", "--allow-doubtful", "--ssh-from", "203.0.113.7/32")
    run.start("up", str(tmp_path / "job.yaml"), "--plan", str(tmp_path / "plan.json"), *options)
    try:
        run.wait_for(lambda: bool(run.events("checkpoint")), "a checkpoint")
        assert (set(google.billed()), set(amazon.billed())) == ({"google"}, {"amazon"})
        assert _peers(google) == {f"{_address(amazon)}/32"}
        assert _peers(amazon) == {f"{_address(google)}/32"}
        for cloud in clouds:
            (node,) = cloud.billed()
            told = (cloud.folder_of(node) / LOG).read_text()
            assert told.count("wg set sailor0 peer") == 1
            assert "29500-29599, 32768-60999" in (cloud.folder_of(node) / "overlay/rules").read_text()
            assert (cloud.folder_of(node) / "overlay/key").stat().st_mode & 0o777 == 0o600
        if lost:
            amazon.preempt("amazon")
            run.wait_for(lambda: any(event["generation"] == 2 for event in run.events("step")), "another generation")
            assert _peers(google) == set(), "the port is closed again"
        run.processes[-1].kill()
        run.processes[-1].communicate()
        if not lost:
            run.start("resume", run.folder.name, **_NO_AMAZON)
            code, output = run.end()
            assert (code, output.partition(";")[0]) == (1, "error: no AWS credentials")
            assert (set(google.billed()), set(amazon.billed())) == ({"google"}, {"amazon"}), "both continue"
        run.start("resume", run.folder.name)
        code, output = run.end()
        assert code == 0, output
    finally:
        run.kill()
    steps = run.events("step")
    assert steps[-1]["step"] == STEPS
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
    assert all(cloud.billed() == {} and cloud.left_of(run.folder.name) == () for cloud in clouds)
    receipt = json.loads((run.folder / "receipt.json").read_text())
    assert receipt["outcome"] == "completed"
    assert any(f"step-{STEPS}/" in key for key in google.store.of(_BUCKET)), "both clouds' nodes wrote into one bucket"
    assert all(row["gone_at"] for row in receipt["resources"])
    assert {row["provider"] for row in receipt["resources"] if row["type"] == "node"} == {"gcp", "aws"}
    assert {row["provider"] for row in receipt["asked"]} >= {"gcp", "aws"}
    assert any("us-central1-b to use1-az2" in line["what"] for line in receipt["lines"] if line["kind"] == "egress")
    if not lost:
        assert {event["generation"] for event in steps} == {1}
        sent = [event["sent"]["amazon"] for event in run.events("traffic") if event["node"] == "google"]
        meetings = (sent[-1] - sent[0]) / _WEIGHTS_BYTES
        # Losses and norms are summed at every step, and weights at each meeting alone.
        assert STEPS / EVERY * 0.9 <= meetings <= STEPS / EVERY * 1.5
