"""Plans on Google Cloud and AWS for tests of provisioning."""

from __future__ import annotations

from dataclasses import replace

from factories.documents import document, offer
from factories.plans import node
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Cloud, GcpAccount
from sailor_cloud.model.offer import Market, Offer, Provider
from sailor_cloud.model.plan import Pipeline, Stage


def cloud_offer(
    name: str, provider: Provider, zone: str, instance_type: str, accelerator: str, count: int, *, spot: bool = False
) -> Offer:
    aws_regions = {"use1": "us-east-1", "usw2": "us-west-2"}
    region = zone.rpartition("-")[0] if provider is Provider("gcp") else aws_regions[zone.partition("-")[0]]
    return replace(
        offer(name, accelerator, zone, usd_per_hour=1.5),
        provider=provider,
        region=region,
        instance_type=instance_type,
        accelerator_count=count,
        market=Market.SPOT if spot else Market.ON_DEMAND,
    )


GCP_OFFERS = (
    cloud_offer("a2", Provider("gcp"), "us-central1-a", "a2-highgpu-1g", "A100-40", 1, spot=True),
    cloud_offer("n1", Provider("gcp"), "us-central1-b", "n1-standard-8", "V100-16", 2),
    cloud_offer("g2", Provider("gcp"), "europe-west4-a", "g2-standard-8", "L4-24", 1),
)
AWS_OFFERS = (
    cloud_offer("p4d", Provider("aws"), "use1-az4", "p4d.24xlarge", "A100-40", 8, spot=True),
    cloud_offer("g4dn", Provider("aws"), "use1-az6", "g4dn.xlarge", "T4-16", 1),
)
# Its price is marked as an outlier.
OUTLIER_OFFER = cloud_offer("az1", Provider("aws"), "use1-az1", "p4d.24xlarge", "A100-40", 8, spot=True)
WEST_OFFER = cloud_offer("west", Provider("aws"), "usw2-az2", "g6.xlarge", "L4-24", 1)


def cloud_document(*bought: tuple[str, Offer], image: str | None = "ami-0123456789abcdef0") -> PlanDocument:
    """A document whose plan holds these nodes; its pipelines are those of the local one and don't use them."""
    planned = document()
    assert planned.plan is not None
    nodes = tuple(node(name, offer=chosen.id, devices=chosen.accelerator_count) for name, chosen in bought)
    offers = tuple({chosen.id: chosen for _, chosen in bought}.values())
    cloud = Cloud(gcp=GcpAccount(project="my-project"), owner="Me@example.org", image=image)
    return replace(
        planned,
        job=planned.job.model_copy(update={"cloud": cloud}),
        inputs=replace(planned.inputs, offers=offers),
        plan=replace(planned.plan, nodes=nodes),
    )


def gcp_document() -> PlanDocument:
    """Two A100 nodes close together, one V100 node with attached devices, one L4 node in another region."""
    a2, n1, g2 = GCP_OFFERS
    return cloud_document(("n0", a2), ("n1", a2), ("n2", n1), ("n3", g2), image=None)


def aws_document() -> PlanDocument:
    p4d, g4dn = AWS_OFFERS
    return cloud_document(("n0", p4d), ("n1", p4d), ("n2", g4dn))


def efa_document() -> PlanDocument:
    """Two p4d nodes in one zone, which can use EFA with each other."""
    return cloud_document(("n0", AWS_OFFERS[0]), ("n1", AWS_OFFERS[0]), image=None)


def two_regions_document() -> PlanDocument:
    """Nodes in two regions of AWS."""
    return cloud_document(("n0", AWS_OFFERS[1]), ("n1", WEST_OFFER), image=None)


def apart_document(*bought: tuple[str, Offer], image: str | None = "ami-0123456789abcdef0") -> PlanDocument:
    """A plan with a pipeline on each node; nodes may be on two clouds, which exchange weights every 50 steps."""
    planned = with_job(cloud_document(*bought, image=image), to="gs://mine/run")
    assert planned.plan is not None
    training = planned.job.training.model_copy(update={"sync_every": 50})
    pipelines = tuple(
        Pipeline(
            id=number,
            microbatch_size=1,
            microbatches=1,
            stages=(Stage(first_layer=0, end_layer=26, node=name, devices=(0,)),),
        )
        for number, (name, _) in enumerate(bought)
    )
    return replace(
        planned,
        job=planned.job.model_copy(update={"training": training}),
        plan=replace(planned.plan, pipelines=pipelines),
    )


def with_job(planned: PlanDocument, *, to: str | None = None, **cloud: object) -> PlanDocument:
    """The same plan for a job whose checkpoints go elsewhere, or with other settings under `cloud`."""
    job = planned.job
    changed = {
        "cloud": job.cloud.model_copy(update=cloud),
        "checkpoint": job.checkpoint.model_copy(update={"to": to}),
    }
    return replace(planned, job=job.model_copy(update=changed))
