"""How a plan runs on a Slurm cluster: as one heterogeneous job, found again by its comment."""

from sailor_cloud.provision.providers.slurm.provider import PROVIDER as PROVIDER
