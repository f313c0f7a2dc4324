"""One run on both fake clouds with a real Terraform core: what is asked, refused, lost and kept when clouds meet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, apart_document, with_job
from factories.cloud_runs import INSTANCE, PROJECT, STOCKOUT, CloudRun, cloud_run, reached
from factories.storage_faults import Damage, harm
from factories.watchdogs import watchdog_of
from sailor_cloud.errors import ProvisionError, QuotaError, StockoutError
from sailor_cloud.model.job import AwsAccount, GcpAccount
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import provisioner
from sailor_cloud.provision.access.nodes import running_names
from sailor_cloud.provision.outcomes import Applied, Stockout, applied_or_raise
from sailor_cloud.provision.scopes import scopes_named
from sailor_cloud.run.state import fold
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.http_api import Answer, serving
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.object_store import ObjectStore
from sailor_cloud.testing.terraform.cloud import Failure

GCP, AWS = Provider("gcp"), Provider("aws")
GOOGLE, AMAZON = GCP_OFFERS[1], AWS_OFFERS[1]
_RULES = "L-0EA8095F"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[CloudRun]:
    """A run with the node n0 on Google Cloud and n1 on AWS."""
    with reached(GCP) as cloud, serve_ec2(cloud) as more, in_environment(more):
        document = apart_document(("n0", GOOGLE), ("n1", AMAZON), image=None)
        with cloud_run(GCP, tmp_path, document=document, cloud=cloud) as made:
            yield made


def _nodes(run: CloudRun) -> list[str]:
    found = [run.labels_of(kind, name) for kind in INSTANCE.values() for name in run.cloud.of_type(kind)]
    mine = [labels for labels in found if labels.get("sailor-cloud-run") == run.run.run_id]
    return sorted(labels["sailor-cloud-node"] for labels in mine)


def _lose(run: CloudRun, provider: Provider, node: str) -> None:
    kind = INSTANCE[provider]
    (name,) = (n for n in run.cloud.of_type(kind) if run.labels_of(kind, n).get("sailor-cloud-node") == node)
    run.cloud.delete(kind, name, why="preempted")


def _before(monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], None]) -> None:
    """Let something happen once, just before a step of an apply."""
    original, acted = getattr(provisioner._Apply, method), []

    def step(self: object, *arguments: Any) -> Any:
        if not acted:
            acted.append(True)
            act()
        return original(self, *arguments)

    monkeypatch.setattr(provisioner._Apply, method, step)


def _created(run: CloudRun, provider: Provider) -> int:
    return [(what, kind) for what, kind, _ in run.cloud.history].count(("created", INSTANCE[provider]))


def test_both_clouds_are_bought_on_and_the_port_of_each_is_open_to_the_other_s_node_alone(run: CloudRun) -> None:
    google, amazon = applied_or_raise(run.apply()).nodes
    (rule,) = (r for r in run.cloud.of_type("google_compute_firewall").values() if r["name"].endswith("-overlay"))
    assert rule["source_ranges"] == [f"{amazon.address}/32"]
    rules = run.cloud.of_type("aws_vpc_security_group_ingress_rule").values()
    assert [r["cidr_ipv4"] for r in rules if r["ip_protocol"] == "udp"] == [f"{google.address}/32"]
    run.assert_gone(run.destroy())


@pytest.mark.parametrize(("full", "offer", "left"), [(GCP, GOOGLE, "n1"), (AWS, AMAZON, "n0")], ids=["gcp", "aws"])
def test_a_stockout_on_one_cloud_leaves_what_the_other_has_given(
    full: Provider, offer: Any, left: str, run: CloudRun
) -> None:
    run.cloud.failures.append(Failure(type=INSTANCE[full], message=STOCKOUT[full]))
    outcome = run.apply()
    assert isinstance(outcome, Stockout)
    assert [refused.offer for refused in outcome.refused] == [offer.id]
    assert _nodes(run) == [left]


def test_a_node_that_is_lost_before_the_clouds_meet_is_not_made_again(
    run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name never stands for two nodes."""
    _before(monkeypatch, "_open_overlay_ports", lambda: _lose(run, AWS, "n1"))
    before = _created(run, AWS)
    with pytest.raises(ProvisionError, match="1 of 2 nodes do not run: n1"):
        run.apply()
    assert _created(run, AWS) == before + 1
    assert _nodes(run) == ["n0"]


def test_a_node_lost_while_clouds_are_joined_and_unavailable_is_a_stockout(
    run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost_and_sold_out() -> None:
        _lose(run, AWS, "n1")
        run.cloud.failures.append(Failure(type=INSTANCE[AWS], message=STOCKOUT[AWS]))

    _before(monkeypatch, "_refuse_missing", lost_and_sold_out)
    outcome = run.apply()
    with pytest.raises(StockoutError, match=r"no 1 x g4dn\.xlarge") as caught:
        applied_or_raise(outcome)
    assert caught.value.offers == (AMAZON.id,)
    assert _nodes(run) == ["n0"]


def test_a_rule_that_a_cloud_refuses_is_reported_and_nobody_s_node_is_blamed(run: CloudRun) -> None:
    refusal = (
        "api error RulesPerSecurityGroupLimitExceeded: The maximum number of rules per security group has been reached."
    )
    rule = "aws_vpc_security_group_ingress_rule"
    run.cloud.failures.append(Failure(type=rule, message=refusal, where={"ip_protocol": "udp"}))
    with pytest.raises(ProvisionError, match=r"the clouds can't be joined: .*RulesPerSecurityGroupLimitExceeded"):
        run.apply()
    assert _nodes(run) == ["n0", "n1"]
    run.assert_gone(run.destroy())


def test_a_node_without_a_public_address_is_not_let_in(run: CloudRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a provider knows no public address it tells the private one, which is another machine's on the internet."""
    instances = provisioner.instances
    monkeypatch.setattr(
        provisioner,
        "instances",
        lambda *about: tuple(
            replace(found, address=found.private_address) if found.node == "n1" else found
            for found in instances(*about)
        ),
    )
    with pytest.raises(ProvisionError, match="the clouds can't be joined: n1 have no public address"):
        run.apply()
    rules = [r for r in run.cloud.of_type("google_compute_firewall").values() if r["name"].endswith("-overlay")]
    assert not any(rule["source_ranges"] for rule in rules)


def test_nodes_that_a_security_group_can_not_let_in_are_not_bought_later_either(run: CloudRun) -> None:
    run.cloud.quotas[_RULES] = 5.0
    assert isinstance(run.apply(), Applied)
    more = apart_document(("n0", GOOGLE), ("n1", AMAZON), ("n2", GOOGLE), image=None)
    with pytest.raises(QuotaError, match="a security group in us-east-1 may let 1 of them in") as caught:
        run.apply(more)
    assert caught.value.offers == (GOOGLE.id,)
    assert _nodes(run) == ["n0", "n1"]
    assert all(row.key != "n2" for row in fold(run.journal().entries()).resources)
    assert isinstance(run.apply(), Applied), "what the run has is not asked about again"
    run.cloud.quotas[_RULES] = 6.0
    assert isinstance(run.apply(more), Applied)


@pytest.mark.parametrize(
    "missing",
    [
        {"AWS_ENDPOINT_URL_EC2": "http://127.0.0.1:9", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
    ],
    ids=["its API is silent", "no credentials"],
)
def test_a_run_is_not_called_gone_while_one_cloud_does_not_answer(missing: dict[str, str], run: CloudRun) -> None:
    applied_or_raise(run.apply())
    with in_environment(missing):
        with pytest.raises(ProvisionError, match=f"can't ask which nodes of run {run.run.run_id} exist"):
            running_names(run.run.folder)
        destroyed = run.destroy()
        assert not destroyed.clean
        assert any("aws" in problem for problem in destroyed.problems), destroyed.problems
        assert "n0" not in _nodes(run), "the other cloud's nodes go anyway"
    run.assert_gone(run.destroy())


@pytest.mark.parametrize("lost", [("terraform",), ("terraform", "ledger.jsonl"), ("terraform/aws-us-east-1",)])
def test_a_cloud_that_no_record_names_is_not_called_empty_because_the_other_one_is(
    lost: tuple[str, ...], run: CloudRun
) -> None:
    applied_or_raise(run.apply())
    for name in ("plan.json", "journal.jsonl", *lost):
        harm(run.run.folder.path / name, Damage.MISSING)
    project, region = scopes_named("project", ["my-project"]), scopes_named("region", ["us-east-1"])
    first = run.destroy(also=project)
    assert _nodes(run) == ["n1"]
    assert not first.clean
    (doubt,) = [place.problem for place in first.asked if not place.place]
    assert doubt.endswith("nothing says that the run has nothing on aws; --region names where to look there")
    assert not run.destroy(also=project).clean
    run.assert_gone(run.destroy(also=project | region))


def test_charged_resources_are_not_gone_because_another_region_is_empty(run: CloudRun) -> None:
    """Nothing but the ledger knows of the node on AWS any more."""
    applied_or_raise(run.apply())
    for name in ("plan.json", "journal.jsonl", "terraform"):
        harm(run.run.folder.path / name, Damage.MISSING)
    wrong = scopes_named("project", ["my-project"]) | scopes_named("region", ["us-west-2"])
    first = run.destroy(also=wrong)
    assert _nodes(run) == ["n1"]
    doubt = "the ledger charges for node n1, which is in none of the searched places; --project or --region name others"
    assert not first.clean
    assert doubt in [place.problem for place in first.asked]
    run.assert_gone(run.destroy(also=wrong | scopes_named("region", ["us-east-1"])))


def test_each_cloud_has_a_watchdog_of_its_own_and_googles_leaves_nothing_of_the_tunnel_there(run: CloudRun) -> None:
    accounts = {"gcp": GcpAccount(project=PROJECT, watchdog=True), "aws": AwsAccount(watchdog=True)}
    applied_or_raise(run.apply(with_job(run.document, to="gs://mine/run", **accounts)))
    (amazons,) = run.cloud.of_type("aws_lambda_function").values()
    assert amazons["environment"][0]["variables"]["REGIONS"] == "us-east-1"
    (googles,) = run.cloud.of_type("google_cloudfunctions2_function").values()
    own = {**googles["service_config"][0]["environment_variables"], "DUE_AT": "2026-01-01T00:00:00Z"}
    token = Answer(status=200, body=json.dumps({"access_token": "t", "expires_in": 3599}).encode())
    with (
        serve_compute(run.cloud, store=ObjectStore()) as variables,
        serving(lambda ask: token) as metadata,
        in_environment({**variables, **own, "GCE_METADATA_HOST": metadata.removeprefix("http://")}),
    ):
        told = watchdog_of("gcp-data").watchdog(None)
        assert told == (f"everything of {run.run.run_id} is deleted\n", 200)
    assert {kind.partition("_")[0] for kind, _ in run.cloud.owned_by(run.run.run_id)} == {"aws"}
    run.assert_gone(run.destroy())
