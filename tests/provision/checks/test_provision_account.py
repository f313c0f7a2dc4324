"""What the account is asked before anything is bought, credentials and permissions, and afterwards: its bill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import pytest
from botocore.stub import Stubber
from rich.console import Console, RenderableType

import sailor_cloud
from factories.cloud_plans import aws_document, gcp_document, with_job
from factories.cloud_runs import PROJECT
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.model.job import AwsAccount, Cloud, GcpAccount, NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.account import ProviderBill
from sailor_cloud.provision.bookkeeping import NODE, node_intent
from sailor_cloud.provision.checks.account_check import AccountCheck, check_account, check_credentials, fetch_bills
from sailor_cloud.provision.checks.before_buying import check_before_taking_over
from sailor_cloud.provision.providers.aws import account as aws_account
from sailor_cloud.provision.providers.gcp import account as gcp_account
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.report.run.cost_text import bill_report
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.http_api import Answer, Ask, serving
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.terraform.cloud import FakeCloud

# Later than any clock: botocore itself refuses credentials that have ended.
NOW = datetime(2099, 11, 21, 5, 0, tzinfo=UTC)
RUN = "tiny-20261121-051313-a1b2"
CALLER = "203.0.113.7/32"


def plain_text(report: RenderableType) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(report)
    return capture.get()


def checked(document: PlanDocument) -> AccountCheck:
    return check_account(replace(document, ttl_s=7200.0), now=NOW, ssh_from=CALLER)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any credentials."""
    monkeypatch.setenv("HOME", str(tmp_path))
    # Clients are kept for each environment, and with them the credentials of another test's home.
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


@pytest.fixture
def aws(home: Path) -> Iterator[FakeCloud]:
    cloud = FakeCloud()
    with serve_ec2(cloud) as variables, in_environment(variables):
        yield cloud


@pytest.fixture
def google() -> Iterator[FakeCloud]:
    cloud = FakeCloud()
    with serve_compute(cloud) as variables, in_environment(variables):
        yield cloud


def test_an_account_that_may_do_everything_says_nothing(aws: FakeCloud, google: FakeCloud) -> None:
    assert checked(aws_document()) == checked(gcp_document()) == AccountCheck(notes=(), missing=())


def test_missing_permissions_are_listed_in_the_cloud_s_words_with_the_next_step(aws: FakeCloud) -> None:
    aws.denied = {"ec2:TerminateInstances", "ec2:RunInstances", "s3:DeleteBucket"}
    found = checked(aws_document())
    assert found.missing == ("aws: ec2:RunInstances", "aws: ec2:TerminateInstances", "aws: s3:DeleteBucket")
    assert found.refusal().splitlines() == [
        "you lack permissions that the run needs; nothing was bought:",
        "  aws: ec2:RunInstances",
        "  aws: ec2:TerminateInstances",
        "  aws: s3:DeleteBucket",
        "docs/permissions.md has a role and a policy with all of them; --allow-missing-permissions buys anyway",
    ]


def test_only_a_caller_who_may_buy_nodes_continues_a_run_that_lacks_some(aws: FakeCloud, tmp_path: Path) -> None:
    aws.denied = {"ec2:TerminateInstances"}
    document, folder = aws_document(), RunFolder.create(RUN, root=tmp_path)

    def asked(*, allowed: bool = False) -> tuple[str, ...]:
        return check_before_taking_over(folder, document, now=NOW, expires_at=NOW, allowed=allowed)

    journal = Journal.of(folder, FixedClock(NOW))
    journal.append_all([node_intent(placed) for placed in placed_nodes(document)])
    with pytest.raises(CredentialsError, match=rf"run {RUN} was left as it is(.|\n)*aws: ec2:TerminateInstances"):
        asked()
    told = ("you lack permissions that the run may need: aws: ec2:TerminateInstances",)
    assert asked(allowed=True) == told
    for placed in placed_nodes(document):
        journal.append(Event.CREATED, resource=NODE, key=placed.node.id)
    assert asked() == told
    aws.denied = set()
    assert asked() == ()


def test_a_program_is_refused_what_the_command_line_refuses(aws: FakeCloud) -> None:
    aws.denied = {"ec2:TerminateInstances"}
    with (
        mock.patch("sailor_cloud.launch.start.run_document") as begun,
        pytest.raises(CredentialsError, match="aws: ec2:TerminateInstances"),
    ):
        sailor_cloud.up(aws_document(), mock.Mock(), clock=FixedClock(NOW), ssh_from=CALLER)
    assert not begun.called


@pytest.mark.parametrize(
    "right", ["ec2:CreateNatGateway", "lambda:CreateFunction", "s3:CreateBucket", "iam:CreateRole"]
)
def test_kinds_that_this_run_does_not_create_need_no_permission(aws: FakeCloud, right: str) -> None:
    aws.denied = {right}
    assert checked(with_job(aws_document(), to="/data/checkpoints")).missing == ()


def test_nat_and_the_watchdog_need_theirs(aws: FakeCloud) -> None:
    aws.denied = {"ec2:CreateNatGateway", "lambda:CreateFunction", "ssm:StartSession"}
    account = AwsAccount(watchdog=True)
    found = checked(with_job(aws_document(), network=NetworkAccess.PRIVATE, aws=account))
    assert found.missing == ("aws: ec2:CreateNatGateway", "aws: lambda:CreateFunction", "aws: ssm:StartSession")


def test_google_is_asked_for_the_project(google: FakeCloud) -> None:
    google.denied = {"compute.instances.delete", "cloudfunctions.functions.create"}
    assert checked(gcp_document()).missing == ("gcp: compute.instances.delete",)
    watched = with_job(gcp_document(), gcp=GcpAccount(project=PROJECT, watchdog=True))
    assert checked(watched).missing == ("gcp: cloudfunctions.functions.create", "gcp: compute.instances.delete")


def test_permissions_for_the_sweep_are_needed_even_for_kinds_that_the_run_does_not_create(
    aws: FakeCloud, google: FakeCloud
) -> None:
    aws.denied = {"ec2:DescribeNatGateways", "lambda:GetFunction"}
    google.denied = {"compute.routers.list", "cloudfunctions.functions.list"}
    assert checked(aws_document()).missing == ("aws: ec2:DescribeNatGateways", "aws: lambda:GetFunction")
    assert checked(gcp_document()).missing == ("gcp: cloudfunctions.functions.list", "gcp: compute.routers.list")
    assert checked(with_job(aws_document(), to="/data")).missing == ("aws: ec2:DescribeNatGateways",)
    assert checked(with_job(gcp_document(), to="/data")).missing == ("gcp: compute.routers.list",)


def test_a_caller_who_may_not_simulate_policies_is_warned_and_continues(
    aws: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call and its answer have the shapes of botocore's own model."""
    sts, iam = (boto3.client(name, region_name="us-east-1") for name in ("sts", "iam"))
    arn = "arn:aws:sts::123456789012:assumed-role/deployer/me"
    with Stubber(sts) as sts_stub, Stubber(iam) as iam_stub:
        sts_stub.add_response("get_caller_identity", {"Arn": arn, "Account": "123456789012", "UserId": "AROA:me"})
        iam_stub.add_client_error("get_role", "AccessDenied", "no")
        iam_stub.add_client_error(
            "simulate_principal_policy", "AccessDenied", "not authorized to perform: iam:SimulatePrincipalPolicy"
        )
        monkeypatch.setattr(aws_account, "boto_client", lambda region, service: {"sts": sts, "iam": iam}[service])
        found = checked(aws_document())
    assert found.missing == ()
    (note,) = found.notes
    assert note.startswith("the permissions on aws can't be checked beforehand: ")
    assert "iam:SimulatePrincipalPolicy" in note


def test_credentials_that_have_ended_are_refused_with_the_next_step(home: Path) -> None:
    with (
        serve_ec2(FakeCloud(), refused=True) as variables,
        in_environment(variables),
        pytest.raises(CredentialsError, match=r"AWS refuses the credentials: .*aws sso login"),
    ):
        checked(aws_document())


def before_search(*providers: str) -> list[str]:
    """Return what is told of the credentials for a job on some providers."""
    (entry,) = gcp_document().job.resources
    resources = tuple(entry.model_copy(update={"provider": Provider(name)}) for name in providers)
    told: list[str] = []
    check_credentials(gcp_document().job.model_copy(update={"resources": resources}), now=NOW, tell=told.append)
    return told


def test_before_a_search_credentials_that_are_taken_are_not_mentioned(aws: FakeCloud, google: FakeCloud) -> None:
    assert before_search("aws", "gcp", "local") == []


def test_before_a_search_refused_credentials_are_an_error(home: Path) -> None:
    with (
        serve_ec2(FakeCloud(), refused=True) as variables,
        in_environment(variables),
        pytest.raises(CredentialsError, match=r"AWS refuses the credentials: .*aws sso login"),
    ):
        before_search("aws")
    answer = Answer(status=401, body=b"{}")
    with (
        serving(lambda ask: answer) as url,
        in_environment(_google(url)),
        pytest.raises(CredentialsError, match=r"Google Cloud refuses the credentials: 401 .*gcloud auth"),
    ):
        before_search("gcp")


def test_before_a_search_a_cloud_that_a_plan_can_do_without_is_a_note(home: Path, google: FakeCloud) -> None:
    without = "no AWS credentials; run 'aws configure' or 'aws sso login', or set AWS_ACCESS_KEY_ID and "
    assert before_search("aws", "gcp") == [f"{without}AWS_SECRET_ACCESS_KEY; a plan with nodes there can't be bought"]
    with pytest.raises(CredentialsError, match="no AWS credentials"):
        before_search("aws")


def test_google_without_an_answer_is_reported_and_is_no_error() -> None:
    off = {"error": {"code": 403, "message": "Cloud Resource Manager API has not been used in project 1 before"}}
    answer = Answer(status=403, body=json.dumps(off).encode())
    with serving(lambda ask: answer) as url, in_environment(_google(url)):
        found = checked(gcp_document())
    assert found.missing == ()
    assert found.notes == (
        "the permissions on gcp can't be checked beforehand: "
        "Cloud Resource Manager API has not been used in project 1 before",
    )


def _google(url: str) -> dict[str, str]:
    names = ("COMPUTE", "CLOUDRESOURCEMANAGER", "BIGQUERY")
    return {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": url for name in names}


@pytest.mark.parametrize(
    ("expires", "told"),
    [
        ("2099-11-21T06:00:00Z", "expire at 2099-11-21 06:00 UTC, and the run may last until 2099-11-21 07:15 UTC"),
        ("", "expire at an unknown time"),
        ("2099-11-21T08:00:00+00:00", ""),
    ],
)
def test_session_credentials_that_end_before_the_run_are_reported(
    aws: FakeCloud, monkeypatch: pytest.MonkeyPatch, expires: str, told: str
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", expires)
    notes = " ".join(checked(aws_document()).notes)
    assert told in notes
    assert ("name a profile of SSO or of a role with AWS_PROFILE" in notes) == bool(told)


def test_session_credentials_that_have_ended_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2026-11-20T06:00:00Z")
    with pytest.raises(CredentialsError, match=r"of the environment expired at 2026-11-20 06:00 UTC; name a profile"):
        checked(aws_document())


def sso(home: Path, monkeypatch: pytest.MonkeyPatch, token: dict[str, str], *, session: bool) -> None:
    import hashlib

    start = "https://example.awsapps.com/start"
    config = f"sso_account_id = 1\nsso_role_name = r\nsso_region = us-east-1\nsso_start_url = {start}\n"
    named = f"[sso-session s]\nsso_region = us-east-1\nsso_start_url = {start}\n" if session else ""
    own = "sso_session = s\nsso_account_id = 1\nsso_role_name = r\n" if session else config
    (home / "config").write_text(f"[profile p]\n{own}{named}")
    cache = home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    key = hashlib.sha1(("s" if session else start).encode()).hexdigest()
    (cache / f"{key}.json").write_text(json.dumps({"accessToken": "t", "region": "us-east-1", **token}))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
    monkeypatch.setenv("AWS_PROFILE", "p")


def test_the_end_of_an_sso_login_is_reported_unless_it_is_renewed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sso(home, monkeypatch, {"expiresAt": "2026-11-21T06:00:00Z"}, session=False)
    end = aws_account.credentials_expiry()
    assert end is not None
    assert (end.expires_at, "aws sso login" in end.renewal_hint) == (datetime(2026, 11, 21, 6, tzinfo=UTC), True)


def test_a_login_with_an_sso_session_is_renewed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sso(home, monkeypatch, {"expiresAt": "2026-11-21T06:00:00Z", "refreshToken": "r"}, session=True)
    assert aws_account.credentials_expiry() is None


def test_a_role_that_is_assumed_is_renewed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = "[profile p]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\n"
    (home / "config").write_text(f"{role}[profile base]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
    monkeypatch.setenv("AWS_PROFILE", "p")
    assert aws_account.credentials_expiry() is None


def test_a_token_of_terraform_itself_is_reported(google: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "t")
    (note,) = checked(gcp_document()).notes
    assert "the credentials in GOOGLE_OAUTH_ACCESS_TOKEN expire at an unknown time" in note


def day(start: str, groups: dict[str, str], *, estimated: bool) -> dict[str, Any]:
    end = (date.fromisoformat(start) + timedelta(days=1)).isoformat()
    held = [{"Keys": [k], "Metrics": {"UnblendedCost": {"Amount": v, "Unit": "USD"}}} for k, v in groups.items()]
    return {"TimePeriod": {"Start": start, "End": end}, "Total": {}, "Groups": held, "Estimated": estimated}


@pytest.fixture
def explorer(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    """Cost Explorer's client; botocore checks every request and answer against its model of the service."""
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("ce", region_name="us-east-1", **keys)
    monkeypatch.setattr(aws_account, "boto_client", lambda region, service: client)
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


ASKED = {
    "TimePeriod": {"Start": "2026-11-21", "End": "2026-11-24"},
    "Granularity": "DAILY",
    "Metrics": ["UnblendedCost"],
    "Filter": {"Tags": {"Key": "sailor-cloud-run", "Values": [RUN]}},
    "GroupBy": [{"Type": "DIMENSION", "Key": "SERVICE"}],
}


def test_aws_bills_a_run_by_its_tag_over_all_pages(explorer: Stubber) -> None:
    first = day("2026-11-21", {"EC2 - Other": "0.25", "Amazon Elastic Compute Cloud - Compute": "3.5"}, estimated=False)
    second = day("2026-11-22", {"EC2 - Other": "0.5"}, estimated=True)
    last = day("2026-11-23", {}, estimated=True)
    explorer.add_response("get_cost_and_usage", {"ResultsByTime": [first], "NextPageToken": "2"}, ASKED)
    explorer.add_response("get_cost_and_usage", {"ResultsByTime": [second, last]}, {**ASKED, "NextPageToken": "2"})
    bill = aws_account.fetch_bill(RUN, date(2026, 11, 23))
    assert bill.lines == (("Amazon Elastic Compute Cloud - Compute", 3.5), ("EC2 - Other", 0.75))
    assert (bill.until, bill.final_until) == (datetime(2026, 11, 23, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC))
    told = plain_text(bill_report([replace(bill, ledger_usd=4.0)], spent_usd=6.5))
    assert "billed until 2026-11-23 00:00 UTC: 4.25 USD; ledger until then: 4.00 USD" in told
    assert "not billed yet: 2.50 USD of the ledger" in told
    assert "the provider may still change what was used after 2026-11-22 00:00 UTC" in told


@pytest.mark.parametrize(
    ("tags", "told"),
    [
        ([], "sailor-cloud-run is not an active cost allocation tag"),
        ([{"TagKey": "sailor-cloud-run", "Type": "UserDefined", "Status": "Inactive"}], "update-cost-allocation-tags"),
        ([{"TagKey": "sailor-cloud-run", "Type": "UserDefined", "Status": "Active"}], "look again tomorrow"),
    ],
)
def test_without_a_bill_it_is_said_what_the_account_must_switch_on(
    explorer: Stubber, tags: list[dict[str, str]], told: str
) -> None:
    explorer.add_response("get_cost_and_usage", {"ResultsByTime": [day("2026-11-21", {}, estimated=True)]}, ASKED)
    explorer.add_response("list_cost_allocation_tags", {"CostAllocationTags": tags}, {"TagKeys": ["sailor-cloud-run"]})
    assert told in plain_text(bill_report([aws_account.fetch_bill(RUN, date(2026, 11, 23))], spent_usd=1.0))


def test_an_account_whose_costs_nobody_may_see_says_what_it_takes(explorer: Stubber) -> None:
    explorer.add_client_error(
        "get_cost_and_usage", "AccessDeniedException", "User not enabled for cost explorer access"
    )
    with pytest.raises(ProvisionError, match=r"not enabled for cost explorer access.*needs ce:GetCostAndUsage"):
        aws_account.fetch_bill(RUN, date(2026, 11, 23))


TABLE = "my-billing.export.gcp_billing_export_v1_0123AB"


def row(*values: str) -> dict[str, Any]:
    return {"f": [{"v": value} for value in values]}


def billed_by_google(answers: list[dict[str, Any]], asked: list[Ask], *, status: int = 200) -> ProviderBill:
    """Return the bill where BigQuery gives these answers, in the form of its REST reference for jobs.query."""

    def answer(ask: Ask) -> Answer:
        asked.append(ask)
        return Answer(status=status, body=json.dumps(answers[len(asked) - 1]).encode())

    cloud = Cloud(gcp=GcpAccount(project=PROJECT, billing_export=TABLE))
    with serving(answer) as url, in_environment(_google(url)):
        return gcp_account.fetch_bill(RUN, cloud)


def test_google_bills_a_run_by_its_label_also_when_the_query_takes_a_while() -> None:
    job = {"projectId": PROJECT, "jobId": "j1", "location": "EU"}
    common = {"kind": "bigquery#queryResponse", "jobReference": job}
    first, second = (
        row("Compute Engine", "EUR", "3.25", "2026-11-21T07:00:00Z"),
        row("Cloud Storage", "EUR", "0.125", "2026-11-21T09:00:00Z"),
    )
    asked: list[Ask] = []
    answers: list[dict[str, Any]] = [
        {**common, "jobComplete": False},
        {**common, "jobComplete": True, "rows": [first], "totalRows": "2", "pageToken": "p2"},
        {**common, "jobComplete": True, "rows": [second], "totalRows": "2"},
    ]
    bill = billed_by_google(answers, asked)
    assert bill.lines == (("Compute Engine", 3.25), ("Cloud Storage", 0.125))
    assert (bill.currency, bill.until) == ("EUR", datetime(2026, 11, 21, 9, tzinfo=UTC))
    query = json.loads(asked[0].body)
    assert f"FROM `{TABLE}`" in query["query"]
    assert query["useLegacySql"] is False
    values = {p["name"]: p["parameterValue"]["value"] for p in query["queryParameters"]}
    assert values == {"key": "sailor-cloud-run", "run": RUN}
    assert [ask.path for ask in asked[1:]] == [
        f"/bigquery/v2/projects/{PROJECT}/queries/j1?location=EU",
        f"/bigquery/v2/projects/{PROJECT}/queries/j1?location=EU&pageToken=p2",
    ]
    told = plain_text(bill_report([bill], spent_usd=4.0))
    assert "billed until 2026-11-21 09:00 UTC: 3.38 EUR" in told
    assert "Cloud NAT and its addresses carry no labels and are not in it" in told


def test_an_export_that_is_not_named_is_asked_for() -> None:
    bill = gcp_account.fetch_bill(RUN, Cloud(gcp=GcpAccount(project=PROJECT)))
    told = plain_text(bill_report([bill], spent_usd=4.0))
    assert "name the table of the billing account's export to BigQuery as cloud.gcp.billing_export" in told


def test_an_export_that_cannot_be_read_says_why() -> None:
    refused = {"error": {"code": 404, "message": "Not found: Table my-billing:export.gcp_billing_export_v1_0123AB"}}
    with pytest.raises(ProvisionError, match=r"can't be read: Not found: Table .*bigquery\.jobs\.create on my-project"):
        billed_by_google([refused], [], status=404)


def test_only_clouds_have_a_bill() -> None:
    from sailor_cloud.provision import providers

    cloud = Cloud()
    assert providers.of(Provider("local")).fetch_bill(RUN, cloud, date(2026, 11, 23)) is None
    assert plain_text(bill_report([], spent_usd=1.0)) == "no cloud has a bill for this run\n"


def kept_books(root: Path) -> tuple[RunFolder, FixedClock]:
    """A run planned on Google Cloud alone that had to buy on AWS an hour later; three hours after it began."""
    folder, clock = RunFolder.create(RUN, root=root), FixedClock(datetime(2026, 11, 21, 8, tzinfo=UTC))
    folder.write_document(gcp_document())
    journal, ledger = Journal.of(folder, clock), Ledger.of(folder, clock)
    journal.append(Event.PROVISION_STARTED, gcp_projects=[PROJECT])
    journal.append(Event.PROVISION_STARTED, aws_regions=["us-east-1"])
    journal.append_all([node_intent(placed) for placed in placed_nodes(gcp_document())[:1]])
    amazon = placed_nodes(aws_document())[0]
    journal.append_all([replace(node_intent(amazon), key="n7")])
    nat = "aws-us-east-1/aws_nat_gateway.nat"
    where = {"provider": "aws", "region": "us-east-1", "stack": "aws"}
    journal.append(Event.CREATE_INTENDED, resource="aws_nat_gateway", key=nat, **where)
    common: dict[str, Any] = {"kind": CostKind.COMPUTE, "what": "x", "price_source": "list"}
    common["price_as_of"] = date(2026, 11, 1)
    began = clock.now() - timedelta(hours=3)
    ledger.open_item("node/n0", usd_per_hour=2.0, since=began, **common)
    ledger.open_item("node/n7", usd_per_hour=4.0, since=began + timedelta(hours=1), **common)
    ledger.open_item("node/n7/disk", usd_per_hour=0.5, since=began + timedelta(hours=1), **common)
    ledger.open_item(f"aws_nat_gateway/{nat}/nat", usd_per_hour=0.25, since=began + timedelta(hours=1), **common)
    return folder, clock


def bill_of(provider: str, until: datetime | None) -> ProviderBill:
    return ProviderBill(provider=provider, currency="USD", lines=(("machines", 5.0),), until=until)


def test_every_cloud_of_a_run_is_queried_for_its_bill_next_to_its_share_of_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clock = kept_books(tmp_path)
    until = clock.now() - timedelta(hours=1)
    monkeypatch.setattr(gcp_account, "fetch_bill", lambda run_id, cloud: bill_of("gcp", until))
    monkeypatch.setattr(aws_account, "fetch_bill", lambda run_id, today: bill_of("aws", until))
    bills = fetch_bills(folder, clock=clock)
    # Two hours at 2 USD; an hour of a node, its disk and a gateway at 4, 0.5 and 0.25 USD.
    assert [(bill.provider, bill.ledger_usd) for bill in bills] == [("aws", 4.75), ("gcp", 4.0)]
    # Until now 6 and 9.5 USD, of which 8.75 USD are in the bills' time.
    assert "not billed yet: 6.75 USD of the ledger" in plain_text(bill_report(bills, spent_usd=15.5))


def test_a_cloud_whose_bill_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run_id: str, today: date) -> ProviderBill:
        raise ProvisionError("Cost Explorer can't be asked")

    folder, clock = kept_books(tmp_path)
    monkeypatch.setattr(gcp_account, "fetch_bill", lambda run_id, cloud: bill_of("gcp", clock.now()))
    monkeypatch.setattr(aws_account, "fetch_bill", refuse)
    told = plain_text(bill_report(fetch_bills(folder, clock=clock), spent_usd=15.5))
    assert "aws has billed nothing that can be found: Cost Explorer can't be asked" in told
    assert "billed until 2026-11-21 08:00 UTC: 5.00 USD; ledger until then: 6.00 USD" in told
    assert "not billed yet: 9.50 USD of the ledger" in told
    monkeypatch.setattr(gcp_account, "fetch_bill", lambda run_id, cloud: refuse(run_id, date(2026, 11, 21)))
    with pytest.raises(ProvisionError, match="Cost Explorer can't be asked"):
        fetch_bills(folder, clock=clock)
