variable "nodes" {
  description = "Nodes by id: zone, instance type, and whether nodes of this type may be placed close together."
  type = map(object({
    zone          = string
    instance_type = string
    compact       = bool
  }))
  nullable = false

  validation {
    condition     = length(var.nodes) > 0
    error_message = "A cluster needs at least one node."
  }

  validation {
    condition     = alltrue([for id in keys(var.nodes) : can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", id))])
    error_message = "A node id must begin with a letter and hold at most 32 lower-case letters, digits and hyphens."
  }
}
