"""What an account has reserved, from stand-ins of both clouds' APIs: neither is proven against a real account."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from moto import mock_aws

from factories.cloud_prices import google_world
from sailor_cloud.catalog.account.reservations import Reservation, ReservationKind, Reservations, read_reservations
from sailor_cloud.cli.inputs.quota import _print_reserved
from sailor_cloud.model.offer import Provider
from sailor_cloud.report.console import result_console
from sailor_cloud.testing.google.prices import FakeGoogle, Fault
from sailor_cloud.testing.moto_server import Gaps, moto_gaps

AWS, GCP = Provider("aws"), Provider("gcp")
START, END = datetime(2026, 12, 1, 11, 30, tzinfo=UTC), datetime(2026, 12, 3, 11, 30, tzinfo=UTC)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gaps]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws(), moto_gaps() as gaps:
        yield gaps


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    with FakeGoogle(google_world()) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def row(identity: str, **more: object) -> dict[str, object]:
    return {
        "CapacityReservationId": identity,
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-east-1a",
        "AvailabilityZoneId": "use1-az6",
        "TotalInstanceCount": 4,
        "AvailableInstanceCount": 3,
        "State": "active",
        "InstanceMatchCriteria": "open",
        "ReservationType": "default",
        **more,
    }


def test_aws_lists_present_and_future_reservations_and_capacity_blocks(aws: Gaps) -> None:
    aws.capacity_reservations["us-east-1"] = [
        row("cr-open"),
        row("cr-old", State="expired"),
        row(
            "cr-block",
            ReservationType="capacity-block",
            InstanceMatchCriteria="targeted",
            State="scheduled",
            StartDate=START,
            EndDate=END,
        ),
    ]
    block, open_to_all = read_reservations([(AWS, "us-east-1"), (AWS, "us-east-1")]).rows
    assert (open_to_all.id, open_to_all.zone, open_to_all.free, open_to_all.count) == ("cr-open", "use1-az6", 3, 4)
    assert open_to_all.taken_unasked
    assert (block.kind, block.starts_at, block.ends_at) == (ReservationKind.CAPACITY_BLOCK, START, END)
    assert not block.taken_unasked


def test_gcp_lists_specific_reservations_of_the_requested_regions(google: FakeGoogle) -> None:
    machine = {
        "machineType": "n1-standard-8",
        "guestAccelerators": [{"acceleratorType": "nvidia-tesla-v100", "acceleratorCount": 1}],
    }
    held = {"count": "4", "inUseCount": "1", "instanceProperties": machine}
    google.world.reservations["us-central1-a"] = [
        {"name": "ours", "status": "READY", "specificReservation": held, "specificReservationRequired": True},
        {"name": "aggregate", "status": "READY"},
    ]
    (found,) = read_reservations([(GCP, "us-central1"), (GCP, "")]).rows
    assert (found.id, found.zone, found.free, found.count, found.state) == ("ours", "us-central1-a", 3, 4, "ready")
    assert found.instance_type == "n1-standard-8 + 1 nvidia-tesla-v100"
    assert not found.taken_unasked
    assert read_reservations([(GCP, "europe-west4")]).rows == ()


def test_a_refusal_is_named_and_stops_nothing(google: FakeGoogle) -> None:
    google.faults = [Fault("/aggregated/reservations", 403, times=9)]
    found = read_reservations([(GCP, "us-central1")])
    assert found.rows == ()
    assert "refused to read reservations" in found.missing[0]


def test_reserved_capacity_is_shown_with_its_end_and_what_uses_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    block = Reservation(
        provider=AWS,
        region="us-east-1",
        zone="use1-az6",
        id="cr-block",
        kind=ReservationKind.CAPACITY_BLOCK,
        instance_type="p5.48xlarge",
        count=2,
        free=2,
        state="scheduled",
        starts_at=START,
        ends_at=END,
        taken_unasked=False,
    )
    _print_reserved(Reservations(rows=(block,), missing=()), result_console())
    output = capsys.readouterr().out
    assert "2026-12-01 11:30" in output
    assert "2026-12-03 11:30" in output
    assert "is used only where the job's capacity file names it" in output
