"""Nodes of a Slurm cluster, from its inventory."""

from sailor_cloud.catalog.clusters import ClusterOffers

PROVIDER = ClusterOffers("slurm")
