"""What an account may buy against what a job needs."""

from collections.abc import Iterator

import pytest
from moto import mock_aws

from factories.cloud_prices import google_world
from sailor_cloud.catalog import load
from sailor_cloud.catalog.account.quotas import QuotaStatus, load_rules
from sailor_cloud.catalog.quota_needs import Quotas, needs, read_quotas
from sailor_cloud.errors import CredentialsError
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.testing.aws.prices import AwsWorld, aws_world
from sailor_cloud.testing.google.prices import FakeGoogle, Fault

JOB = """
name: quotas
model: {preset: sailor-opt-350}
training: {global_batch_size: 8, sequence_length: 128}
resources:
"""
GCP = (
    JOB + "  - {provider: gcp, zones: [us-central1-a, us-central1-b], markets: [spot, on-demand], "
    "accelerators: {A100-40: 8, V100-16: 4}}\n"
)
AWS = JOB + "  - {provider: aws, zones: [use1-az1, use1-az6], markets: [spot], accelerators: {V100-16: 8}}\n"


def against(text: str) -> Quotas:
    catalog = load()
    return read_quotas(needs(parse_job(text), catalog, load_rules()))


def rows(text: str) -> dict[tuple[str, str], QuotaStatus]:
    return {(row.need.region, row.need.quota): row for row in against(text).rows}


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    world = google_world()
    world.region_quotas["us-central1"] = [
        {"metric": "NVIDIA_A100_GPUS", "limit": 16.0, "usage": 1.0},
        {"metric": "PREEMPTIBLE_NVIDIA_A100_GPUS", "limit": 16.0, "usage": 0.0},
        {"metric": "NVIDIA_V100_GPUS", "limit": 8.0, "usage": 0.0},
    ]
    world.project_quotas = [{"metric": "GPUS_ALL_REGIONS", "limit": 64.0, "usage": 0.0}]
    with FakeGoogle(world) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with aws_world(AwsWorld(quotas={"L-417A185B": 8.0, "L-7212CCBC": 64.0})) as world, mock_aws():
        yield world


def test_gcp_counts_devices_over_all_zones_of_a_region(google: FakeGoogle) -> None:
    found = rows(GCP)
    a100 = found["us-central1", "NVIDIA_A100_GPUS"]
    assert (a100.need.needed, a100.limit, a100.used, a100.enough) == (16.0, 16.0, 1.0, False)
    spot = found["us-central1", "PREEMPTIBLE_NVIDIA_A100_GPUS"]
    assert (spot.need.needed, spot.enough) == (16.0, True)
    whole = found["", "GPUS_ALL_REGIONS"]
    assert (whole.need.needed, whole.need.accelerators, whole.enough) == (24.0, ("A100-40", "V100-16"), True)


def test_a_quota_that_the_project_does_not_list_is_unknown_not_enough(google: FakeGoogle) -> None:
    row = rows(GCP)["us-central1", "PREEMPTIBLE_NVIDIA_V100_GPUS"]
    assert (row.limit, row.enough) == (None, None)


def test_aws_counts_vcpus_of_the_market_asked_for(aws: AwsWorld) -> None:
    (row,) = rows(AWS).values()
    assert row.need.quota == "L-7212CCBC"
    assert (row.need.needed, row.limit, row.used, row.enough) == (2 * 8 * 8.0, 64.0, None, False)


FAMILIES = [
    {
        "dimensions": {"gpu_family": "NVIDIA_H100", "region": "asia-southeast1"},
        "details": {"value": "16"},
        "applicableLocations": ["asia-southeast1"],
    },
    {
        "dimensions": {"gpu_family": "NVIDIA_H100"},
        "details": {},
        "applicableLocations": ["asia-southeast1", "us-east4"],
    },
    {"dimensions": {"gpu_family": "NVIDIA_H100_MEGA"}, "details": {}, "applicableLocations": ["asia-southeast1"]},
    {"details": {"value": "-1"}, "applicableLocations": ["us-central1"]},
]
H100 = (
    JOB + "  - {provider: gcp, zones: [asia-southeast1-b], markets: [on-demand, spot], accelerators: {H100-80: 8}}\n"
    "  - {provider: gcp, zones: [us-east4-a], markets: [on-demand], accelerators: {H100-80: 8}}\n"
)


def test_families_of_gpus_have_limits_of_their_own_which_count_their_machine_types_only(google: FakeGoogle) -> None:
    google.world.family_quotas = FAMILIES
    google.world.region_quotas |= {"asia-southeast1": [], "us-east4": []}
    found = rows(H100)
    assert found["asia-southeast1", "GPUS_PER_GPU_FAMILY:NVIDIA_H100"].limit == 16.0
    assert found["asia-southeast1", "GPUS_PER_GPU_FAMILY:NVIDIA_H100_MEGA"].enough is False
    assert found["us-east4", "GPUS_PER_GPU_FAMILY:NVIDIA_H100"].limit == 0.0
    assert {"PREEMPTIBLE_NVIDIA_H100_GPUS", "PREEMPTIBLE_NVIDIA_H100_MEGA_GPUS"} <= {quota for _, quota in found}


def test_without_the_cloud_quotas_api_the_limits_of_families_are_unknown(google: FakeGoogle) -> None:
    google.world.region_quotas["asia-southeast1"] = []
    google.faults = [Fault("/quotaInfos/", 403)]
    found = against(H100.partition("  - {provider: gcp, zones: [us-east4-a]")[0])
    assert ["Cloud Quotas API, cloudquotas.quotas.get" in fault for fault in found.missing] == [True]
    assert {row.limit for row in found.rows if row.need.quota.startswith("GPUS_PER_GPU_FAMILY")} == {None}


def test_unreadable_parts_are_named(google: FakeGoogle) -> None:
    google.faults = [Fault("/regions/us-central1", 400, times=9)]
    found = against(GCP)
    assert "quotas of us-central1" in found.missing[0]
    assert {row.enough for row in found.rows if row.need.region} == {None}


def test_an_aws_quota_that_the_account_lacks_is_named(aws: AwsWorld) -> None:
    aws.quotas.clear()
    assert "quota L-7212CCBC of us-east-1" in against(AWS).missing[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        # Flex-start takes the quotas of preemptible VMs; a reservation of Compute Engine is never bought by a run.
        (GCP.replace("spot, on-demand", "flex-start"), {"GPUS_ALL_REGIONS", "PREEMPTIBLE_NVIDIA_A100_GPUS"}),
        (GCP.replace("spot, on-demand", "reservation"), set()),
        (AWS.replace("spot", "reservation"), {"L-417A185B"}),
        (AWS.replace("spot", "capacity-block"), set()),
    ],
)
def test_capacity_that_a_run_buys_falls_under_the_quotas_that_its_cloud_counts_it_by(
    text: str, names: set[str]
) -> None:
    found = {need.quota for need in needs(parse_job(text.replace(", V100-16: 4", "")), load(), load_rules())}
    assert found == names


def test_a_local_job_falls_under_no_quota() -> None:
    text = JOB + "  - {provider: local, zones: [local-a], accelerators: {CPU-fast: 1}}\n"
    assert against(text) == Quotas(rows=(), missing=())


def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(CredentialsError, match="no Google Cloud credentials"):
        against(GCP)
