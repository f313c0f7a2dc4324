"""How fast bytes move between two places, and what moving them costs."""

from sailor_cloud.network.egress import EgressPrice, Payer
from sailor_cloud.network.link import Link
from sailor_cloud.network.network import Network, Place
from sailor_cloud.network.storage import load

__all__ = ["EgressPrice", "Link", "Network", "Payer", "Place", "load"]
