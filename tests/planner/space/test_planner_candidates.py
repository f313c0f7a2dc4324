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
