"""How a plan runs on a Kubernetes cluster: as one JobSet, found again by its labels."""

from sailor_cloud.provision.providers.kubernetes.provider import PROVIDER as PROVIDER
