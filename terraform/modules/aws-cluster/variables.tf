variable "name" {
  description = "Beginning of the name of every resource; the same run always has the same."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$", var.name))
    error_message = "The name must begin with a letter and hold at most 24 lower-case letters, digits and hyphens."
  }
}

variable "labels" {
  description = "Labels or tags of every resource: run, owner and expiry."
  type        = map(string)
  nullable    = false

  validation {
    condition     = alltrue([for key in ["sailor-cloud-run", "sailor-cloud-owner", "sailor-cloud-expires"] : contains(keys(var.labels), key)])
    error_message = "The labels must name run, owner and expiry, or a sweep can't find what is left of a run."
  }
}

variable "region" {
  description = "Region of all nodes of this root."
  type        = string
  nullable    = false
}

variable "expires_at" {
  description = "Time in RFC 3339 form, in UTC, at which every node ends itself."
  type        = string
  nullable    = false

  validation {
    condition     = can(formatdate("YYYY", var.expires_at)) && endswith(var.expires_at, "Z")
    error_message = "The expiry must be a time in RFC 3339 form and in UTC, such as 2026-11-21T06:00:00Z."
  }
}

variable "public_key" {
  description = "Public key, in OpenSSH form, of the only key that may log in."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^ssh-ed25519 [A-Za-z0-9+/=]+( [A-Za-z0-9@._-]+)?$", var.public_key))
    error_message = "The public key must be an ed25519 key in OpenSSH form."
  }
}

variable "ssh_from" {
  description = "Addresses that may reach port 22, in CIDR form; null where nodes have no public address."
  type        = string

  validation {
    condition     = var.ssh_from == null ? true : can(cidrhost(var.ssh_from, 0)) && var.ssh_from != "0.0.0.0/0"
    error_message = "SSH must come from a range in CIDR form that is not the whole internet, such as 203.0.113.7/32."
  }
}

variable "image" {
  description = "AMI of the boot disk, with NVIDIA drivers, in this region."
  type        = string
  nullable    = false
}

variable "disk_gib" {
  description = "Size of every node's boot disk in GiB."
  type        = number
  nullable    = false

  validation {
    condition     = var.disk_gib >= 50
    error_message = "Drivers, torch and a checkpoint need at least 50 GiB."
  }
}

variable "nodes" {
  description = "Nodes by id: zone, instance type, accelerators to attach (type null where the instance type has them built in), spot or on demand, the most to pay per hour, and whether nodes of this type may be placed close together."
  type = map(object({
    zone              = string
    instance_type     = string
    accelerator_type  = string
    accelerator_count = number
    spot              = bool
    max_usd_per_hour  = number
    compact           = bool
  }))
  nullable = false

  validation {
    condition     = alltrue([for node in var.nodes : can(regex("^[a-z]+[0-9]+-az[0-9]+$", node.zone))])
    error_message = "Zones are zone ids such as use1-az4, which mean the same in every account."
  }
}

variable "vpc_cidr" {
  description = "Addresses of the run's network in this region, in CIDR form with a prefix of 16; each zone gets a part."
  type        = string
  nullable    = false

  validation {
    condition     = can(cidrhost(var.vpc_cidr, 0)) && endswith(var.vpc_cidr, "/16")
    error_message = "The network must be a range in CIDR form with a prefix of 16, such as 10.64.0.0/16."
  }
}

variable "terminate_role_arn" {
  description = "Role with which EventBridge Scheduler terminates every node at the expiry; null leaves it to the node's own timer."
  type        = string
}
