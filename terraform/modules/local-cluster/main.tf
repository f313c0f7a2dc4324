# A destroy-time provisioner may refer to nothing but its own resource, so the input holds all that either needs.
resource "terraform_data" "node" {
  for_each = var.nodes

  input = {
    python = var.python
    zone   = each.value.zone
    spec = jsonencode({
      run_id     = var.run_id
      node       = each.key
      index      = each.value.index
      folder     = each.value.folder
      log        = each.value.log
      public_key = var.public_key
      expires_at = var.expires_at
    })
  }

  # Another wish is another node, as with a VM: it is not changed in place.
  triggers_replace = [each.value.instance_type, each.value.folder, var.public_key, var.expires_at]

  provisioner "local-exec" {
    interpreter = [self.output.python, "-m", "sailor_cloud.provision.providers.local.vm"]
    command     = "start"
    environment = { SAILOR_CLOUD_VM = self.output.spec }
  }

  provisioner "local-exec" {
    when        = destroy
    interpreter = [self.output.python, "-m", "sailor_cloud.provision.providers.local.vm"]
    command     = "stop"
    environment = { SAILOR_CLOUD_VM = self.output.spec }
  }
}
