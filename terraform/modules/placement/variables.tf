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

variable "expires_at" {
  description = "Time in RFC 3339 form, in UTC, at which every node shuts itself down."
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

variable "disk_gib" {
  description = "Size of every node's boot disk in GiB."
  type        = number
  nullable    = false

  validation {
    condition     = var.disk_gib >= 50
    error_message = "Drivers, torch and a checkpoint need at least 50 GiB."
  }
}

variable "zone_pattern" {
  description = "Regular expression that the names of all zones match: zones of the region, as the cloud names them."
  type        = string
  nullable    = false

  validation {
    condition     = startswith(var.zone_pattern, "^") && endswith(var.zone_pattern, "$")
    error_message = "The pattern must say how a zone's name begins and ends, with ^ and $."
  }
}

variable "nodes" {
  description = "Nodes by id: zone, instance type, accelerators to attach, market, entry of capacity, whether it ends with that, most seconds to run, most USD per hour, whether nodes of this type may be placed close together, network cards that carry EFA, image, and type of the boot disk."
  type = map(object({
    zone              = string
    instance_type     = string
    accelerator_type  = string
    accelerator_count = number
    market            = string
    capacity          = string
    ends_with_it      = bool
    max_run_s         = number
    max_usd_per_hour  = number
    compact           = bool
    efa_cards         = list(number)
    image             = string
    boot_disk         = string
  }))
  nullable = false

  validation {
    condition     = length(var.nodes) > 0
    error_message = "A cluster needs at least one node."
  }

  validation {
    condition     = alltrue([for id in keys(var.nodes) : can(regex("^[a-z]([a-z0-9-]{0,46}[a-z0-9])?$", id))])
    error_message = "A node id must begin with a letter and hold at most 48 lower-case letters, digits and hyphens."
  }

  validation {
    condition     = alltrue([for node in var.nodes : node.max_usd_per_hour > 0 || !contains(["spot", "on-demand"], node.market)])
    error_message = "Every node on spot or on demand needs a price above 0, the most that it may cost per hour."
  }

  validation {
    condition     = alltrue([for node in var.nodes : contains(["reservation", "capacity-block"], node.market) == (node.capacity != null)])
    error_message = "A node names its capacity exactly if it is of a reservation or a capacity block."
  }

  validation {
    condition     = alltrue([for node in var.nodes : (node.accelerator_type == null) == (node.accelerator_count == 0)])
    error_message = "A node has a type of accelerators to attach exactly if it has a number of them."
  }

  validation {
    condition     = alltrue([for node in var.nodes : length(node.image) > 0])
    error_message = "Every node needs an image."
  }
}
