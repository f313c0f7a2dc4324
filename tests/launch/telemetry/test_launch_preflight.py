from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from factories.documents import document
from sailor_cloud.launch.telemetry.preflight import measured_links, preflight_note
from sailor_cloud.model.document import LinkUse, PlanDocument
from sailor_runtime.training.preflight import driver_version

DEVICES = [{"rank": 0, "name": "A100", "torch": "2.13.0"}, {"rank": 1, "name": "V100", "torch": "2.13.0"}]


def planned(bytes_per_s: float) -> PlanDocument:
    link = LinkUse(
        src_zone="local-a",
        dst_zone="local-b",
        bytes_per_iteration=1.0,
        bandwidth_bytes_per_s=bytes_per_s,
        rtt_ms=1.0,
        usd_per_gb=0.01,
        measured=True,
        source="test",
        as_of=date(2026, 11, 1),
    )
    base = document()
    return replace(base, inputs=replace(base.inputs, links=(link,)))


def found(bytes_per_s: float, src: str = "n0", dst: str = "n1") -> dict[str, object]:
    return {"devices": DEVICES, "links": [{"src_node": src, "dst_node": dst, "bytes_per_s": bytes_per_s}]}


@pytest.mark.parametrize(("measured", "slow"), [(1.0e9, False), (0.71e9, False), (0.69e9, True)])
def test_a_link_more_than_thirty_per_cent_below_its_profile_is_reported(measured: float, slow: bool) -> None:
    note = preflight_note(planned(1.0e9), found(measured))
    assert "2 devices (A100, V100) compute and sum correctly" in note
    assert ("links far below the plan" in note) is slow
    assert ("local-a to local-b: 0.69 GB/s measured, 1.00 planned, 31 % less" in note) is slow


def test_links_that_the_plan_does_not_reckon_with_are_left_out() -> None:
    assert measured_links(planned(1.0e9), found(1.0, src="n1", dst="n0")) == ()


def test_the_driver_is_reported_where_there_is_one() -> None:
    devices = [{"rank": 0, "name": "Tesla V100", "torch": "2.13.0", "driver": "550.54.15"}]
    assert "1 devices (Tesla V100 with driver 550.54.15)" in preflight_note(
        planned(1.0e9), {"devices": devices, "links": []}
    )


def test_the_driver_is_read_from_its_own_file(tmp_path: Path) -> None:
    told = tmp_path / "version"
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC\n")
    assert driver_version(told) == "550.54.15"
    told.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
    assert driver_version(told) == "580.95.05"
    assert driver_version(tmp_path / "missing") is None
