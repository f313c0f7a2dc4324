"""Nodes of a Slurm cluster, as its inventory describes them."""

from sailor_cloud.catalog.clusters import ClusterOffers

PROVIDER = ClusterOffers("slurm")
