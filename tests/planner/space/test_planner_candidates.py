"""What a job's resources name but can't be bought is told with what can."""

from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog import load
from sailor_cloud.model.document import Ground
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.planner.space.candidates import collect

JOB = """
name: nowhere
model: {preset: sailor-opt-350}
training: {global_batch_size: 8, sequence_length: 128}
resources:
  - {provider: gcp, zones: [europe-west1-b], markets: [spot], accelerators: {A100-40: 8}, instance_types: %s}
"""


def test_a_zone_without_a_price_names_the_nearest_one_that_has_it() -> None:
    prices = load(resources.data_root())
    reasons = [
        {row.why for row in collect(parse_job(JOB % types), prices).rejected if row.ground is Ground.PRICE}
        for types in ("null", "[a2-highgpu-1g]", "[p4d.24xlarge]")
    ]
    near = "has no known price; the nearest zone with one is europe-west4-a"
    assert reasons == [{near}, {near}, {"has no known price; no zone of gcp has one"}]


def test_a_type_that_its_cloud_does_not_sell_in_a_market_is_left_out_whatever_its_price(tmp_path: Path) -> None:
    """Users' own price files may name it; the row of what the type needs says how it is sold."""
    text = (resources.data_root() / "pricing/offers/gcp.csv").read_text()
    (tmp_path / "offers").mkdir()
    priced = "gcp,us-central1,us-central1-b,a3-ultragpu-8g,H200-141,8,224,2952,on-demand,80,2026-11-24,2026-11-24"
    (tmp_path / "offers" / "gcp.csv").write_text(f"{text}{priced},karpenter-gcp@373e2baa,high,seen,no\n")
    wanted = JOB.replace("europe-west1-b", "us-central1-b").replace("A100-40: 8", "H200-141: 8")
    job = parse_job(wanted.replace("[spot]", "[spot, on-demand]") % "null")
    found = collect(job, load(pricing=tmp_path))
    assert {pool.offer.market.value for pool in found.pools} == {"spot"}
    (row,) = [row for row in found.rejected if row.market == "on-demand"]
    assert row.why.startswith("gcp sells it as spot only, or against a reservation (gcp-accelerator-optimized, 2026-")


ARM = """
name: arm
{what}
resources:
  - {{provider: aws, zones: [use1-az1], markets: [on-demand], accelerators: {{T4G-16: 2}}}}
"""
MODEL = """model: {preset: sailor-opt-350}
training: {global_batch_size: 8, sequence_length: 128, precision: fp32}"""


def test_arm_machines_whose_gpu_torch_is_not_built_for_are_bought_for_commands_only() -> None:
    prices = load(resources.data_root())
    found = collect(parse_job(ARM.format(what=MODEL)), prices)
    assert not found.pools
    assert {row.why for row in found.rejected if row.ground is Ground.TORCH} == {
        "has compute capability 7.5 and an Arm processor, for which torch is built for 8.0 and newer"
    }
    assert collect(parse_job(ARM.format(what="run: python train.py")), prices).pools
