"""Nodes of a Kubernetes cluster, from its inventory."""

from sailor_cloud.catalog.clusters import ClusterOffers

PROVIDER = ClusterOffers("kubernetes")
