# The same in both roots of what outlives the nodes; what only one cloud has is in variables-own.tf.

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
  description = "Region of the run's bucket: that of the plan's first node."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+(-[a-z0-9]+)+$", var.region))
    error_message = "The region must be a name such as us-central1 or us-east-1."
  }
}

variable "bucket" {
  description = "Bucket for checkpoints and results: its name, and whether it is the run's own (made and deleted here) or one that the user named, which is only written to. Null where checkpoints go elsewhere."
  type = object({
    name = string
    own  = bool
  })

  validation {
    condition     = var.bucket == null ? true : can(regex("^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$", var.bucket.name))
    error_message = "A bucket's name has 3 to 63 lower-case letters, digits, dots, hyphens and underscores."
  }
}

variable "identity" {
  description = "What nodes act as, where the user has prepared it; null makes an identity that can do no more than a run needs."
  type        = string
}

variable "watchdog_at" {
  description = "Time in RFC 3339 form, in UTC, from which something in the account deletes everything of the run; null where nothing does."
  type        = string
  default     = null

  validation {
    condition     = var.watchdog_at == null ? true : can(formatdate("YYYY", var.watchdog_at))
    error_message = "The time must be in RFC 3339 form, such as 2026-11-21T06:00:00Z."
  }
}
