"""Small worlds of cloud prices: two zones of us-central1 and one of us-west1, two regions of AWS."""

from sailor_cloud.testing.aws.prices import AwsWorld, SpotPrice, product
from sailor_cloud.testing.google.prices import GoogleWorld, machine_type, sku

CENTRAL = "us-central1"
WEST = "us-west1"
BOTH = (CENTRAL, WEST)


def google_world() -> GoogleWorld:
    """Parts at the prices that make a2-highgpu-1g 3.673385 and n1-standard-8 with one V100 2.859998 in us-central1."""
    n1 = [
        sku("N1 Predefined Instance Core running in Americas", 0.031611, regions=BOTH, group="N1Standard"),
        sku("N1 Predefined Instance Ram running in Americas", 0.004237, regions=BOTH, group="N1Standard"),
        sku("Spot Preemptible N1 Predefined Instance Core running in Americas", 0.0078, regions=BOTH, spot=True),
        sku("Spot Preemptible N1 Predefined Instance Ram running in Americas", 0.00105, regions=BOTH, spot=True),
    ]
    a2 = [
        sku("A2 Instance Core running in Americas", 0.031611, regions=BOTH),
        sku("A2 Instance Ram running in Americas", 0.004237, regions=BOTH),
        sku("Spot Preemptible A2 Instance Core running in Americas", 0.0126, regions=BOTH, spot=True),
        sku("Spot Preemptible A2 Instance Ram running in Americas", 0.0017, regions=BOTH, spot=True),
    ]
    gpus = [
        sku("Nvidia Tesla V100 GPU running in Americas", 2.48, regions=BOTH, group="GPU"),
        sku(
            "Nvidia Tesla V100 GPU attached to Spot Preemptible VMs running in Americas",
            1.1,
            regions=BOTH,
            spot=True,
            group="GPU",
        ),
        sku("Nvidia Tesla A100 GPU running in Americas", 2.933908, regions=BOTH, group="GPU"),
        sku(
            "Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas",
            1.5,
            regions=BOTH,
            spot=True,
            group="GPU",
        ),
    ]
    others = [
        sku("Custom Instance Core running in Americas", 0.0001, regions=BOTH),
        sku("Reserved Nvidia Tesla V100 GPU in Americas", 0.0002, regions=BOTH),
        sku("E2 Instance Core running in Americas", 0.02, regions=BOTH),
    ]
    machines = [
        machine_type("n1-standard-8", 8, 30),
        machine_type("a2-highgpu-1g", 12, 85, accelerator="nvidia-tesla-a100", count=1),
        machine_type("e2-standard-8", 8, 32),
    ]
    cards = [
        {"name": "nvidia-tesla-v100", "maximumCardsPerInstance": 8},
        {"name": "nvidia-tesla-a100", "maximumCardsPerInstance": 16},
    ]
    return GoogleWorld(
        skus=[*n1, *a2, *gpus, *others],
        machine_types={"us-central1-a": machines, "us-central1-b": machines[1:], "us-west1-b": machines[:1]},
        accelerator_types={"us-central1-a": cards, "us-central1-b": cards[1:], "us-west1-b": cards[:1]},
    )


def aws_market() -> AwsWorld:
    """p3.2xlarge in two zones of us-east-1 and p4d.24xlarge in us-west-2; moto's us-east-1a is zone id use1-az6."""
    return AwsWorld(
        products=[
            product("us-east-1", "p3.2xlarge", 3.06),
            product("us-east-1", "p3.8xlarge", 12.24),
            product("us-east-1", "p4d.24xlarge", 0.0),
            product("us-west-2", "p4d.24xlarge", 21.957642),
        ],
        offerings=[
            ("us-east-1", "p3.2xlarge", "use1-az6"),
            ("us-east-1", "p3.2xlarge", "use1-az1"),
            ("us-east-1", "p3.8xlarge", "use1-az6"),
            ("us-east-1", "p99.metal", "use1-az6"),
            ("us-east-1", "p3.2xlarge", "us-east-1-atl-1a"),
            ("us-west-2", "p4d.24xlarge", "usw2-az1"),
        ],
        spot=[
            SpotPrice("p3.2xlarge", "us-east-1a", "0.9500"),
            SpotPrice("p3.8xlarge", "us-east-1a", "3.7000"),
        ],
    )
