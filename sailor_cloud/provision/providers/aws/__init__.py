"""Amazon Web Services."""

from sailor_cloud.provision.providers.aws.provider import Aws

PROVIDER = Aws()
