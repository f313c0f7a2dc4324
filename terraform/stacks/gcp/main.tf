provider "google" {
  project = var.project
  region  = var.region
}

module "cluster" {
  source = "../../modules/gcp-cluster"

  name         = var.name
  labels       = var.labels
  region       = var.region
  expires_at   = var.expires_at
  public_key   = var.public_key
  ssh_from     = var.ssh_from
  disk_gib     = var.disk_gib
  nodes        = var.nodes
  reservations = var.reservations
  cidr         = var.cidr
  peers        = var.peers
  identity     = var.identity
  network      = var.network
}
