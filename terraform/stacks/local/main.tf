module "cluster" {
  source = "../../modules/local-cluster"

  run_id     = var.run_id
  python     = var.python
  public_key = var.public_key
  expires_at = var.expires_at
  nodes      = var.nodes
}
