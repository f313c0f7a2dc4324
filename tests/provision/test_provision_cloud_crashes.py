"""Accidents on both fake clouds: whatever happens to the controller, the next `down` leaves nothing behind."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from factories.cloud_plans import gcp_document, two_regions_document, with_job
from factories.cloud_runs import INSTANCE, PROJECT, THROTTLED, CloudRun, cloud_run, reached, small_document, waited
from factories.crashing_controller import Crasher, crasher
from factories.local_runs import CLOCK, expiry, wait_until
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import AwsAccount, GcpAccount, NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import processes, providers
from sailor_cloud.provision.cleanup import teardown
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.provision.providers.gcp.member_sweep import MEMBER
from sailor_cloud.provision.rendering.root import root_of, roots
from sailor_cloud.provision.terraform.binary import TerraformBinary
from sailor_cloud.provision.terraform.progress import Interrupt, Progress, ProvisionInterrupted, Step
from sailor_cloud.run.folder import resource_name
from sailor_cloud.run.journal import Event
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.testing.terraform.cloud import Failure

REGION = {Provider("gcp"): "us-central1", Provider("aws"): "us-east-1"}
CLOUDS = pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")], ids=str)


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudRun]:
    with cloud_run(Provider(request.param), tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def controller() -> Iterator[Crasher]:
    with crasher() as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("half", [0, 1])
@CLOUDS
def test_a_controller_killed_at_any_point_of_its_journal_leaves_nothing_after_down(
    provider: Provider, half: int, controller: Crasher, tmp_path: Path
) -> None:
    """Every second point in each half, up to one that none reaches; Terraform itself outlives the controller."""
    killed = []
    with reached(provider) as cloud:
        before = dict(cloud.resources)
        for point in range(1 + half, 1000, 2):
            with cloud_run(provider, tmp_path / str(point), cloud=cloud) as run:
                died = controller.run(run.run.folder.path, point=point, expires_at=expiry(3600.0).isoformat())
                if died:
                    killed.append(run.journal().entries()[-1].event)
                run.assert_gone(run.destroy())
            if not died:
                break
        assert dict(cloud.resources) == before
    # Both halves together see every event; each sees something of both directions.
    assert len(killed) >= 6
    assert {Event.CREATED, Event.PROVISION_STARTED if half == 0 else Event.CREATE_INTENDED} <= set(killed)


@pytest.mark.slow
@CLOUDS
def test_a_terraform_that_was_killed_with_its_controller_leaves_nothing_after_down(
    provider: Provider, controller: Crasher, tmp_path: Path
) -> None:
    """Terraform saves its state now and then only, so the state lacks what was created last."""
    with reached(provider) as cloud:
        for point in (3, 5, 7):
            with cloud_run(provider, tmp_path / str(point), cloud=cloud) as run:
                expires_at = expiry(3600.0).isoformat()
                assert controller.run(run.run.folder.path, point=point, expires_at=expires_at, with_terraform=True)
                run.assert_gone(run.destroy())


@CLOUDS
def test_an_apply_after_a_killed_terraform_buys_nothing_twice(
    provider: Provider, controller: Crasher, tmp_path: Path
) -> None:
    with reached(provider) as cloud, cloud_run(provider, tmp_path, cloud=cloud) as run:
        controller.run(run.run.folder.path, point=6, expires_at=run.expires_at.isoformat(), with_terraform=True)
        assert [node.id for node in applied_or_raise(run.apply()).nodes] == run.nodes() == ["n0", "n1"]
        run.assert_gone(run.destroy())


@CLOUDS
def test_lost_states_are_replaced_by_tags_and_the_users_bucket_stays_unchanged(
    provider: Provider, tmp_path: Path
) -> None:
    to = "gs://their-bucket/runs" if provider is Provider("gcp") else "s3://their-bucket/runs"
    with cloud_run(provider, tmp_path, document=with_job(small_document(provider), to=to)) as run:
        theirs = {"bucket": "their-bucket", "role": "roles/storage.objectUser", "member": "user:them@example.org"}
        right = run.cloud.create(MEMBER, theirs, {"project": PROJECT})["id"]
        applied_or_raise(run.apply())
        assert len(run.cloud.of_type(MEMBER)) == (2 if provider is Provider("gcp") else 1)
        for root in roots(run.run.folder):
            root.state_file.unlink()
        destroyed = run.destroy()
        run.assert_gone(destroyed)
        assert set(run.cloud.of_type(MEMBER)) == {right}
        rights = [(row.confirmed_by, row.gone_at is not None) for row in destroyed.resources if row.type == MEMBER]
        assert rights == ([("sweep by tag", True)] if provider is Provider("gcp") else [])


def test_an_unreadable_state_is_reported_and_recovered_from_tags(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    _state(run).write_text("{ not a state")
    destroyed = run.destroy()
    assert any("Unsupported state file format" in problem for problem in destroyed.problems)
    run.assert_gone(destroyed)


@CLOUDS
def test_lost_states_are_replaced_by_adoption_which_is_idempotent(provider: Provider, tmp_path: Path) -> None:
    """With everything that the HCL can make: a bucket, identities, NAT, two regions, links, a watchdog."""
    with cloud_run(provider, tmp_path, document=_everything(provider)) as run:
        first = applied_or_raise(run.apply())
        before = {key: state for key, state in run.cloud.resources.items() if key not in run.foreign}
        for root in roots(run.run.folder):
            root.state_file.unlink()
        for _ in range(2):
            assert applied_or_raise(run.apply()).nodes == first.nodes
            assert run.cloud.resources.keys() - run.foreign == before.keys()
        destroyed = run.destroy()
        assert destroyed.problems == ()
        run.assert_gone(destroyed)


@CLOUDS
def test_everything_is_found_by_tag_where_every_state_is_lost(provider: Provider, tmp_path: Path) -> None:
    """Buckets with what is in them and identities too; what others called alike is not touched.

    Parts of the watchdog that no look asks for are not confirmed, however often they are asked about.
    """
    with cloud_run(provider, tmp_path, document=_everything(provider)) as run:
        foreign = _namesakes(run)
        applied_or_raise(run.apply())
        for root in roots(run.run.folder):
            root.state_file.unlink()
        run.destroy()
        destroyed = run.destroy()
        unsure = [row for row in destroyed.resources if row.gone_at is None]
        assert {row.type for row in unsure} == providers.of(provider).unsearchable_kinds
        assert not any(row.found for row in unsure)
        assert not destroyed.clean
        assert run.cloud.owned_by(run.run.run_id) == ()
        assert foreign | run.foreign <= run.cloud.resources.keys()
        kinds = {row.type for row in destroyed.resources}
        assert kinds >= providers.of(provider).non_compute_kinds


def _everything(provider: Provider) -> PlanDocument:
    if provider is Provider("gcp"):
        watched = GcpAccount(project=PROJECT, watchdog=True)
        return with_job(gcp_document(), network=NetworkAccess.PRIVATE, gcp=watched)
    account = AwsAccount(watchdog=True)
    return with_job(two_regions_document(), network=NetworkAccess.PRIVATE, aws=account)


def _namesakes(run: CloudRun) -> set[tuple[str, str]]:
    """Make what is called like the run's own, and has no tag of a run or that of another one."""
    before = set(run.cloud.resources)
    name, other = resource_name(run.run.run_id, "theirs"), {"sailor-cloud-run": "another-20261121-000000-ffff"}
    if run.provider is Provider("gcp"):
        run.cloud.create("google_storage_bucket", {"name": name, "labels": other}, {"project": PROJECT})
        run.cloud.create("google_service_account", {"account_id": name, "description": ""}, {"project": PROJECT})
    else:
        config = {"region": "us-east-1"}
        run.cloud.create("aws_s3_bucket", {"bucket": name, "tags": {}}, config)
        run.cloud.create("aws_iam_role", {"name": name, "tags": other}, config)
    return set(run.cloud.resources) - before


def test_a_stale_lock_does_not_stop_the_teardown(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    lock = {"ID": "3f1f1c4e-0000-4000-8000-000000000000", "Operation": "OperationTypeApply", "Who": "gone", "Path": ""}
    _state(run).with_name(".terraform.tfstate.lock.info").write_text(json.dumps(lock))
    destroyed = run.destroy()
    assert destroyed.problems == ()
    run.assert_gone(destroyed)


def test_without_any_terraform_everything_goes_by_tag(run: CloudRun, monkeypatch: pytest.MonkeyPatch) -> None:
    applied_or_raise(run.apply())

    def none() -> TerraformBinary:
        raise ProvisionError("there is no terraform")

    monkeypatch.setattr(teardown, "find_terraform", none)
    destroyed = run.destroy()
    assert destroyed.problems == ("there is no terraform; what it had created is removed by tag",)
    run.assert_gone(destroyed)


def test_an_interrupt_lets_terraform_finish_what_it_has_begun(run: CloudRun) -> None:
    run.cloud.latency_s = 1.0
    interrupt = Interrupt()

    def ask(progress: Progress) -> None:
        if progress.resource == INSTANCE[run.provider] and progress.step is Step.STARTED:
            interrupt.request()

    with pytest.raises(ProvisionInterrupted):
        run.apply(interrupt=interrupt, on_progress=ask)
    begun = run.nodes()
    assert begun
    assert all(f'"index_key": "{node}"' in _state(run).read_text() for node in begun)
    run.assert_gone(run.destroy())


def test_a_second_ctrl_c_leaves_terraform_to_finish_and_the_run_to_the_next_teardown(run: CloudRun) -> None:
    run.cloud.latency_s = 1.0
    pressed = threading.Event()
    main = threading.main_thread()

    def press() -> None:
        wait_until(lambda: _creating(run), "an instance is being created")
        assert main.ident is not None
        for _ in range(2):
            signal.pthread_kill(main.ident, signal.SIGINT)
        pressed.set()

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises((KeyboardInterrupt, ProvisionInterrupted)):
        run.apply()
    pressing.join()
    assert pressed.is_set()
    run.assert_gone(run.destroy())
    assert processes.terraform_of(run.run.run_id) == ()


def test_errors_while_deleting_are_waited_out_or_reported_and_do_not_stop_the_rest(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    overloaded = Failure(type=INSTANCE[run.provider], message=THROTTLED[run.provider], operation="delete", times=3)
    run.cloud.failures.append(overloaded)
    pause = waited()
    destroyed = run.destroy(pause=pause)
    assert pause.seconds
    run.assert_gone(destroyed)


def test_a_failed_deletion_is_reported_and_succeeds_at_the_next_try(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    stubborn = "aws_key_pair" if run.provider is Provider("aws") else "google_compute_firewall"
    run.cloud.failures.append(Failure(type=stubborn, message="api error Blocked: no", operation="delete"))
    destroyed = run.destroy()
    assert run.nodes() == []
    assert not destroyed.clean
    assert stubborn in {found.type for found in destroyed.remaining}
    assert Ledger.of(run.run.folder, CLOCK).usd_per_hour() == 0
    run.cloud.failures.clear()
    run.assert_gone(run.destroy())


@CLOUDS
def test_the_watchdog_stays_while_nodes_can_not_be_deleted(provider: Provider, tmp_path: Path) -> None:
    account = GcpAccount(project=PROJECT, watchdog=True) if provider is Provider("gcp") else AwsAccount(watchdog=True)
    document = with_job(small_document(provider), **{provider: account})
    function = {Provider("gcp"): "google_cloudfunctions2_function", Provider("aws"): "aws_lambda_function"}[provider]
    with cloud_run(provider, tmp_path, document=document) as run:
        applied_or_raise(run.apply())
        failure = Failure(type=INSTANCE[provider], message="api error Blocked: no", operation="delete")
        run.cloud.failures.append(failure)
        destroyed = run.destroy()
        assert not destroyed.clean
        assert run.nodes() == ["n0", "n1"]
        assert len(run.cloud.of_type(function)) == 1
        run.cloud.failures.clear()
        run.assert_gone(run.destroy())


def test_a_cloud_that_can_not_be_asked_is_no_proof_that_anything_is_gone(
    run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied_or_raise(run.apply())
    with monkeypatch.context() as away:
        for name in ("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "AWS_ENDPOINT_URL_EC2"):
            away.setenv(name, "http://127.0.0.1:9")
        away.setenv("AWS_MAX_ATTEMPTS", "1")
        destroyed = run.destroy()
    assert run.nodes() == []
    assert not destroyed.clean
    assert destroyed.problems
    run.assert_gone(run.destroy())


def _state(run: CloudRun) -> Path:
    return root_of(run.run.folder, run.provider, REGION[run.provider]).state_file


def _creating(run: CloudRun) -> bool:
    created = {kind for verb, kind, _ in run.cloud.history if verb == "created"}
    parts = {Provider("gcp"): "google_compute_subnetwork", Provider("aws"): "aws_route_table_association"}
    return parts[run.provider] in created
