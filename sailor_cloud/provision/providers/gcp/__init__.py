"""Google Cloud."""

from sailor_cloud.provision.providers.gcp.provider import Gcp

PROVIDER = Gcp()
