"""`up --dry-run`, and what `up` refuses before anybody is asked to pay."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import (
    AWS_OFFERS,
    GCP_OFFERS,
    OUTLIER_OFFER,
    apart_document,
    aws_document,
    cloud_document,
    gcp_document,
    with_job,
)
from factories.commands import sailor
from factories.documents import document
from factories.honest import honest
from sailor_cloud import network
from sailor_cloud.errors import DoubtfulPriceError, RequestError, StalePriceError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Confidence, Doubt, ListedPrice, Offer, ZoneConfidence
from sailor_cloud.model.plan import Pipeline
from sailor_cloud.provision.dry_run import checked_source
from sailor_cloud.provision.guards import (
    refuse_doubtful_prices,
    refuse_stale_offers,
    refuse_stale_prices,
    refuse_two_clouds,
    traffic_between_clouds,
    two_clouds_problem,
)
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.terraform.cloud import FakeCloud
from sailor_cloud.testing.terraform.provider import serve

TODAY = date(2026, 11, 21)
SSH_FROM = ("--ssh-from", "203.0.113.7/32")


def up(
    planned: PlanDocument, folder: Path, *options: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `up` on a plan with the catalog's prices, and the job in it."""
    planned = honest(planned)
    job, plan = folder / "job.yaml", folder / "plan.json"
    job.write_text(planned.job.model_dump_json())
    plan.write_text(planned.to_json())
    return sailor(
        "up",
        str(job),
        "--plan",
        str(plan),
        *options,
        home=folder / "home",
        environment={"PATH": os.environ["PATH"], **(environment or {})},
    )


def two_clouds(count: int) -> PlanDocument:
    offers = (*GCP_OFFERS, *AWS_OFFERS)
    return cloud_document(*((f"n{index}", offers[index % len(offers)]) for index in range(count)))


def aged(offer: Offer, days: int) -> Offer:
    day = TODAY - timedelta(days=days)
    return replace(offer, as_of_from=day, as_of_to=day, confidence=Confidence.MEDIUM)


def test_a_dry_run_of_64_nodes_on_two_clouds_takes_less_than_5_s_and_creates_nothing(tmp_path: Path) -> None:
    """In processor seconds, which a busy machine does not stretch; nothing is waited for."""
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = up(two_clouds(64), tmp_path, "--dry-run", *SSH_FROM)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime < 5.0
    assert done.stdout.count("google_compute_instance") + done.stdout.count("aws_instance") == 64
    assert "Terraform root gcp europe-west4" in done.stdout
    assert '"ssh_from": "203.0.113.7/32"' in done.stdout
    assert "us-central1-a -> use1-az4" in done.stdout
    assert not (tmp_path / "home" / "runs").exists()


def test_a_dry_run_as_json_is_one_document_with_a_price_for_every_node(tmp_path: Path) -> None:
    done = up(gcp_document(), tmp_path, "--dry-run", "--json", *SSH_FROM)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    resources = [resource for root in told["roots"] for resource in root["resources"]]
    priced = {resource["name"]: resource["usd_per_hour"] for resource in resources if resource["usd_per_hour"]}
    parts = [dict(resource["parts"]) for resource in resources if resource["usd_per_hour"]]
    offers = honest(gcp_document()).inputs.offers_by_id()
    bought = [offers[node["offer"]].usd_per_hour for node in told["document"]["plan"]["nodes"]]
    assert sorted(part["machine"] for part in parts) == sorted(bought)
    assert all(set(part) == {"machine", "disk", "address"} for part in parts)
    assert list(priced.values()) == pytest.approx([sum(part.values()) for part in parts])
    assert all(resource["type"] == "google_compute_instance" for resource in resources if resource["usd_per_hour"])
    assert {root["region"] for root in told["roots"]} == {"us-central1", "europe-west4"}
    assert told["document"]["plan"] == json.loads(honest(gcp_document()).to_json())["plan"]
    assert told["traffic_between_clouds"] == []
    assert "terraform_plan" not in told["roots"][0]


@pytest.mark.parametrize("planned", [gcp_document(), aws_document()], ids=["gcp", "aws"])
def test_terraforms_own_plan_names_every_resource_of_the_list(planned: PlanDocument, tmp_path: Path) -> None:
    cloud = FakeCloud()
    with serve(cloud) as attached:
        done = up(planned, tmp_path, "--dry-run", "--terraform-plan", "--json", *SSH_FROM, environment=attached)
    assert done.returncode == 0, done.stderr
    for root in json.loads(done.stdout)["roots"]:
        assert f"Plan: {len(root['resources'])} to add, 0 to change, 0 to destroy." in root["terraform_plan"]
    assert cloud.history == []
    assert not (tmp_path / "home" / "runs").exists()


def test_a_local_plan_is_planned_by_terraform_without_any_provider(tmp_path: Path) -> None:
    done = up(document(), tmp_path, "--dry-run", "--terraform-plan")
    assert done.returncode == 0, done.stderr
    assert "Plan: 2 to add" in done.stdout
    assert "0.0400" in done.stdout


def test_a_dry_run_needs_no_address_of_the_caller_and_says_what_else_the_job_lacks(tmp_path: Path) -> None:
    done = up(gcp_document(), tmp_path, "--dry-run")
    assert (done.returncode, '"ssh_from": "0.0.0.0/32"' in done.stdout) == (0, True), done.stderr
    done = up(with_job(gcp_document(), gcp=None), tmp_path, "--dry-run")
    assert done.returncode == 2
    assert "cloud.gcp.project: is missing" in done.stderr
    assert "--ssh-from" not in done.stderr
    alone = up(gcp_document(), tmp_path, "--terraform-plan")
    assert (alone.returncode, "belongs to --dry-run" in alone.stderr) == (2, True)


def test_a_plan_on_two_clouds_is_not_bought_and_the_traffic_is_priced(tmp_path: Path) -> None:
    done = up(two_clouds(5), tmp_path, "--yes", *SSH_FROM)
    assert done.returncode == 2
    assert "can't be bought" in done.stderr
    assert "use1-az6 -> europe-west4-a: 0." in done.stderr
    assert not (tmp_path / "home" / "runs").exists()


def test_traffic_between_clouds_is_what_both_payers_ask() -> None:
    prices = network.load()
    traffic = traffic_between_clouds(two_clouds(5), prices)
    assert len(traffic) == 2 * 3 * 2
    for pair in traffic:
        known = prices.egress(pair.src_zone, pair.dst_zone)
        assert pair.usd_per_gb == pytest.approx(sum(price.usd_per_gb for price in known))
        assert pair.usd_per_gb is not None
        assert pair.usd_per_gb > 0
        assert pair.source
        assert pair.as_of
    for planned in (gcp_document(), aws_document(), document()):
        refuse_two_clouds(planned, prices)


def apart(*, cut: bool = False, **changes: Any) -> PlanDocument:
    """Return a plan with a pipeline on each of two clouds, which exchange weights rarely; `cut`: with one on both."""
    document = apart_document(("n0", GCP_OFFERS[0]), ("n1", AWS_OFFERS[1]))
    job, plan = document.job, document.plan
    assert plan is not None
    training = job.training.model_copy(update={"sync_every": changes.get("sync_every", 50)})
    cloud = job.cloud.model_copy(update={"network": changes.get("network", NetworkAccess.PUBLIC_SSH)})
    checkpoint = job.checkpoint.model_copy(update={"to": changes.get("to", "gs://mine/run")})
    update = {"training": training, "cloud": cloud, "checkpoint": checkpoint, "run": changes.get("run")}
    if cut:
        (first,), (second,) = (pipeline.stages for pipeline in plan.pipelines)
        halves = (replace(first, end_layer=13), replace(second, first_layer=13))
        plan = replace(plan, pipelines=(Pipeline(id=0, microbatch_size=1, microbatches=2, stages=halves),))
    return replace(document, job=job.model_copy(update=update), plan=plan)


def test_two_clouds_that_exchange_weights_rarely_can_be_bought() -> None:
    refuse_two_clouds(apart(), network.load())
    assert two_clouds_problem(apart()) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sync_every": None}, "only with 'training: {sync_every: N}' clouds exchange weights, every N steps"),
        ({"network": NetworkAccess.PRIVATE}, "public addresses, and the job has 'network: private'"),
        ({"to": None}, "no bucket that nodes on both can write checkpoints to (checkpoint.to)"),
        ({"to": "/shared"}, "no bucket that nodes on both can write checkpoints to (checkpoint.to)"),
        ({"run": "torchrun train.py"}, "a command under 'run' gets nodes of one cloud"),
        ({"cut": True}, "pipeline 0 is cut between them"),
    ],
)
def test_the_reason_against_two_clouds_is_reported(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=re.escape(why)):
        refuse_two_clouds(apart(**changes), network.load())


def test_a_cloud_and_this_machine_have_no_network_in_common() -> None:
    local = document().inputs.offers[0]
    with pytest.raises(RequestError, match="which can't be bought: no network joins them"):
        refuse_two_clouds(cloud_document(("n0", GCP_OFFERS[0]), ("n1", local)), network.load())


def test_traffic_that_nobody_has_a_price_for_is_unknown_and_not_free() -> None:
    elsewhere = replace(GCP_OFFERS[0], zone="mars-north1-a", region="mars-north1")
    planned = cloud_document(("n0", elsewhere), ("n1", AWS_OFFERS[0]))
    with pytest.raises(RequestError, match="mars-north1-a -> use1-az4: unknown"):
        refuse_two_clouds(planned, network.load())


@pytest.mark.parametrize(("offer", "limit"), [(GCP_OFFERS[0], 7), (AWS_OFFERS[1], 90)], ids=["spot", "on-demand"])
def test_stale_prices_stop_up_on_a_cloud(offer: Offer, limit: int) -> None:
    refuse_stale_prices(cloud_document(("n0", aged(offer, limit))), TODAY)
    with pytest.raises(StalePriceError, match="prices refresh") as refused:
        refuse_stale_prices(cloud_document(("n0", aged(offer, limit + 1))), TODAY)
    assert f"{offer.id}: 1.50 USD/h" in str(refused.value)
    assert f"{limit + 1} days old" in str(refused.value)


def test_stale_prices_of_all_that_a_job_may_buy_refuse_a_search() -> None:
    stale, fresh = aged(GCP_OFFERS[0], 8), aged(GCP_OFFERS[0], 7)
    for enough in ([stale, fresh], [stale, document().inputs.offers[0]], []):
        refuse_stale_offers(enough, TODAY)
    with pytest.raises(StalePriceError, match="all 2 offers that the job may buy have stale prices, the newest of 20"):
        refuse_stale_offers([stale, stale], TODAY)


def test_allow_stale_passes_stale_prices_but_nothing_else(tmp_path: Path) -> None:
    # The shipped prices have this size for the region alone.
    old = replace(aged(AWS_OFFERS[1], 4000), instance_type="g4dn.2xlarge", zone_confidence=ZoneConfidence.UNCHECKED)
    planned = cloud_document(("n0", old), ("n1", old))
    refused = up(planned, tmp_path, "--yes", *SSH_FROM)
    assert (refused.returncode, "--allow-stale" in refused.stderr) == (1, True)
    # Nobody is logged in here, and no metadata server is asked who this machine is.
    nobody = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    allowed = up(planned, tmp_path, "--yes", "--allow-stale", *SSH_FROM, environment=nobody)
    assert (allowed.returncode, "--allow-stale" in allowed.stderr) == (1, False)
    assert "note: no source has seen aws sell g4dn.2xlarge in use1-az6, and it can't be asked" in allowed.stderr
    assert "error: no AWS credentials; run 'aws configure'" in allowed.stderr


def doubted(offer: Offer) -> Offer:
    listed = ListedPrice(usd_per_hour=0.5, source="mine", doubts=(Doubt.LOW_CONFIDENCE,), counted_from=None)
    return replace(offer, listed=listed)


def test_doubtful_prices_stop_up_on_a_cloud() -> None:
    refuse_doubtful_prices(gcp_document())
    with pytest.raises(DoubtfulPriceError, match="1 of the plan's 2 offers") as refused:
        refuse_doubtful_prices(cloud_document(("n0", doubted(GCP_OFFERS[0])), ("n1", GCP_OFFERS[1])))
    told = "a2-highgpu-1g spot in us-central1-a is listed at 0.500 USD/h (mine), of low confidence"
    assert told in str(refused.value)
    assert "prices refresh" in str(refused.value)


def test_a_missing_address_stale_and_doubtful_prices_are_reported_together(tmp_path: Path) -> None:
    planned = cloud_document(("n0", OUTLIER_OFFER), ("n1", AWS_OFFERS[0]))
    refused = up(planned, tmp_path, "--yes")
    assert refused.returncode == 2
    for told in ("--ssh-from: is missing", "--allow-stale", "--allow-doubtful"):
        assert told in refused.stderr
    refused = up(planned, tmp_path, "--yes", *SSH_FROM)
    assert refused.returncode == 1
    assert "--allow-stale" in refused.stderr
    assert "--allow-doubtful" in refused.stderr


def test_allow_doubtful_passes_doubtful_prices_but_no_stale_ones(tmp_path: Path) -> None:
    planned = cloud_document(("n0", OUTLIER_OFFER), ("n1", AWS_OFFERS[0]))
    refused = up(planned, tmp_path, "--yes", "--allow-stale", *SSH_FROM)
    assert (refused.returncode, "--allow-doubtful" in refused.stderr) == (1, True)
    stale = up(planned, tmp_path, "--yes", "--allow-doubtful", *SSH_FROM)
    assert (stale.returncode, "--allow-stale" in stale.stderr) == (1, True)


@pytest.mark.parametrize("wrong", ["home", "203.0.113.7/8", "0.0.0.0/0", "::1/128"])
def test_ssh_is_let_in_from_an_address_only(wrong: str) -> None:
    with pytest.raises(RequestError, match="--ssh-from"):
        checked_source(wrong)


def test_a_bare_address_represents_only_itself() -> None:
    assert (checked_source("203.0.113.7"), checked_source(None)) == ("203.0.113.7/32", None)


def test_nothing_is_bought_where_a_permission_is_missing_unless_the_user_says_so(tmp_path: Path) -> None:
    cloud = FakeCloud()
    cloud.denied = {"ec2:DeleteVpc"}
    anyway = ("--allow-stale", "--allow-doubtful", *SSH_FROM)
    with serve_ec2(cloud) as variables:
        done = up(aws_document(), tmp_path, "--yes", *anyway, environment=variables)
        asked = up(aws_document(), tmp_path, "--allow-missing-permissions", *anyway, environment=variables)
    assert done.returncode == 1
    assert "you lack permissions that the run needs; nothing was bought:\n  aws: ec2:DeleteVpc\n" in done.stderr
    assert "Traceback" not in done.stderr
    # It went on to ask whether to buy, which needs a terminal.
    assert "there is no terminal to ask on" in asked.stderr
    assert cloud.resources == {}
    assert not (tmp_path / "home" / "runs").exists()
