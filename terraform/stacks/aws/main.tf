provider "aws" {
  region = var.region

  # The provider takes a zone without capacity for something that passes: it would ask 25 times, for most of an hour,
  # whatever the timeouts say (github.com/hashicorp/terraform-provider-aws/issues/43193). Whoever applies this tries
  # again what may pass, and asks elsewhere for what doesn't.
  max_retries = 4
}

module "cluster" {
  source = "../../modules/aws-cluster"

  name         = var.name
  labels       = var.labels
  region       = var.region
  expires_at   = var.expires_at
  lifetime_s   = var.lifetime_s
  public_key   = var.public_key
  ssh_from     = var.ssh_from
  disk_gib     = var.disk_gib
  nodes        = var.nodes
  reservations = var.reservations
  cidr         = var.cidr
  peers        = var.peers
  identity     = var.identity
}
