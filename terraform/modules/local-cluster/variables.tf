variable "run_id" {
  description = "Id of the run; every process of a node carries it as its tag SAILOR_CLOUD_RUN."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$", var.run_id))
    error_message = "The run id must have 2 to 63 lower-case letters, digits and hyphens."
  }
}

variable "python" {
  description = "Path of the Python interpreter that has sailor_cloud installed."
  type        = string
  nullable    = false

  validation {
    condition     = startswith(var.python, "/")
    error_message = "The interpreter must be an absolute path, because Terraform starts it from a folder of its own."
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

variable "expires_at" {
  description = "Time in RFC 3339 form at which every node shuts itself down."
  type        = string
  nullable    = false

  validation {
    condition     = can(formatdate("YYYY", var.expires_at))
    error_message = "The expiry must be a time in RFC 3339 form, such as 2026-11-21T06:00:00Z."
  }
}

variable "nodes" {
  description = "Nodes by id: place in the order of the plan, zone, instance type, folder (the node's disk) and log file."
  type = map(object({
    index         = number
    zone          = string
    instance_type = string
    folder        = string
    log           = string
  }))
  nullable = false

  validation {
    condition     = length(distinct([for node in var.nodes : node.index])) == length(var.nodes)
    error_message = "Every node needs an index of its own, because its address comes from it."
  }

  validation {
    condition     = alltrue([for node in var.nodes : node.index >= 0 && node.index < 250])
    error_message = "The index of a node must lie between 0 and 249."
  }
}
