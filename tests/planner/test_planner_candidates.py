"""What a job's resources name but can't be bought is told with what can."""

from sailor_cloud import resources
from sailor_cloud.catalog import load
from sailor_cloud.model.document import Ground
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.planner.candidates import collect

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
    near = "no price is known; the nearest zone with one is europe-west4-a"
    assert reasons == [{near}, {near}, {"no price is known; no zone of gcp has one"}]
