"""Nodes of a Kubernetes cluster, as its inventory describes them."""

from sailor_cloud.catalog.clusters import ClusterOffers

PROVIDER = ClusterOffers("kubernetes")
