variable "project" {
  description = "Google Cloud project that is billed."
  type        = string
  nullable    = false
}

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
}

variable "expires_at" {
  description = "Time in RFC 3339 form, in UTC, at which every node ends itself."
  type        = string
  nullable    = false
}

variable "public_key" {
  description = "Public key, in OpenSSH form, of the only key that may log in."
  type        = string
  nullable    = false
}

variable "ssh_from" {
  description = "Addresses that may reach port 22, in CIDR form; null where nodes have no public address."
  type        = string
}

variable "image" {
  description = "Image of the boot disk, with NVIDIA drivers, as projects/PROJECT/global/images/family/FAMILY or a full image name."
  type        = string
  nullable    = false
}

variable "disk_gib" {
  description = "Size of every node's boot disk in GiB."
  type        = number
  nullable    = false
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
}

variable "network" {
  description = "Network that another root of the run made, by its self link; null makes one."
  type        = string
}

variable "subnet_cidr" {
  description = "Addresses of the nodes in this region, in CIDR form; regions of one run must not overlap."
  type        = string
  nullable    = false
}
