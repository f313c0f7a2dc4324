terraform {
  required_version = ">= 1.5"
}

variable "cloud" {
  description = "Folder in which a machine is a file."
  type        = string
}

variable "name" {
  description = "First part of all names."
  type        = string
}

variable "labels" {
  description = "What every machine carries."
  type        = map(string)
}

variable "region" {
  description = "Region of the machines."
  type        = string
}

variable "nodes" {
  description = "Nodes by id."
  type        = map(object({ zone = string, instance_type = string, spot = bool }))
}

# A destroy-time provisioner may refer to nothing but its own resource, so the input holds all that either needs.
resource "terraform_data" "node" {
  for_each = var.nodes

  input = {
    file = "${var.cloud}/${var.name}-${each.key}.json"
    content = jsonencode({
      node   = each.key
      region = var.region
      zone   = each.value.zone
      labels = var.labels
    })
  }

  provisioner "local-exec" {
    command     = "test ! -e \"$(dirname \"$FILE\")/sold-out\" || { echo 'toyland is sold out' >&2; exit 1; }; printf %s \"$CONTENT\" > \"$FILE\""
    environment = { FILE = self.output.file, CONTENT = self.output.content }
  }

  provisioner "local-exec" {
    when        = destroy
    command     = "rm -f \"$FILE\""
    environment = { FILE = self.output.file }
  }
}
