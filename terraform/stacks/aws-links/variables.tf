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
  description = "Tags of every resource: run, owner and expiry. The networks to join are found by the run's."
  type        = map(string)
  nullable    = false

  validation {
    condition     = alltrue([for key in ["sailor-cloud-run", "sailor-cloud-owner", "sailor-cloud-expires"] : contains(keys(var.labels), key)])
    error_message = "The tags must name run, owner and expiry, or a sweep can't find what is left of a run."
  }
}

variable "regions" {
  description = "The two regions whose networks are joined; the first asks, the second accepts."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(distinct(var.regions)) == 2 && length(var.regions) == 2
    error_message = "A link joins two regions that differ."
  }
}

variable "ports" {
  description = "Ranges of TCP ports that nodes of a run open to each other, by what listens there: those of modules/placement."
  type = map(object({
    first = number
    last  = number
  }))
  nullable = false

  validation {
    condition     = alltrue([for range in var.ports : 1024 <= range.first && range.first <= range.last && range.last <= 65535])
    error_message = "A range must lie in 1024-65535, and its first port not after its last."
  }
}
