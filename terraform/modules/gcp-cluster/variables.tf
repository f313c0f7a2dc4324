# The same in every module and root of a cluster; what only one cloud has is in variables-own.tf. The placement module
# checks what does not depend on the cloud.

variable "name" {
  description = "Beginning of the name of every resource; the same run always has the same."
  type        = string
  nullable    = false
}

variable "labels" {
  description = "Labels or tags of every resource: run, owner and expiry."
  type        = map(string)
  nullable    = false
}

variable "region" {
  description = "Region of all nodes of this root."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z0-9]+)+$", var.region))
    error_message = "The region must be a name such as us-central1 or us-east-1."
  }
}

variable "expires_at" {
  description = "Time in RFC 3339 form, in UTC, at which every node shuts itself down."
  type        = string
  nullable    = false
}

variable "public_key" {
  description = "Public key, in OpenSSH form, of the only key that may log in."
  type        = string
  nullable    = false
}

variable "ssh_from" {
  description = "Addresses that may reach port 22, in CIDR form; null where nodes have no public address and go out through NAT."
  type        = string
}

variable "disk_gib" {
  description = "Size of every node's boot disk in GiB."
  type        = number
  nullable    = false
}

variable "nodes" {
  description = "Nodes by id: zone, instance type, accelerators to attach (type null where the instance type has them built in), the market that it is bought on, the entry of capacity that it belongs to (null for spot and on-demand) and whether it ends with that, the seconds that it may run where the market limits them, the most to pay per hour, whether nodes of this type may be placed close together, network cards that carry EFA, and the image of the boot disk."
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
}

variable "reservations" {
  description = "What entries of capacity are called by the cloud: the id of a reservation or block on AWS, the name of a reservation on Google Cloud."
  type        = map(string)
  nullable    = false

  validation {
    condition     = alltrue([for id in values(var.reservations) : length(id) > 0])
    error_message = "What the cloud calls a reservation or block must not be empty."
  }
}

variable "cidr" {
  description = "Addresses of the run's nodes in this region, in CIDR form with a prefix of 16; regions of one run must not overlap."
  type        = string
  nullable    = false

  validation {
    condition     = can(cidrhost(var.cidr, 0)) && endswith(var.cidr, "/16")
    error_message = "The addresses must be a range in CIDR form with a prefix of 16, such as 10.64.0.0/16."
  }
}

variable "identity" {
  description = "What nodes may act as: the e-mail of a service account, or the name of an instance profile; null gives them no rights at all."
  type        = string
}

variable "peers" {
  description = "Public addresses, in CIDR form, of the run's nodes on other clouds: they alone may reach the port of WireGuard."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for address in var.peers : can(cidrhost(address, 0)) && endswith(address, "/32")])
    error_message = "Every peer must be a single address in CIDR form, such as 203.0.113.7/32."
  }
}
