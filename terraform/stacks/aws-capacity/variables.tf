variable "name" {
  description = "Beginning of the name of every resource; the same run always has the same."
  type        = string
  nullable    = false
}

variable "labels" {
  description = "Tags of every resource: run, owner and expiry."
  type        = map(string)
  nullable    = false
}

variable "region" {
  description = "Region of all capacity of this root."
  type        = string
  nullable    = false
}

variable "expires_at" {
  description = "Time in RFC 3339 form, in UTC, at which every reservation shuts itself down."
  type        = string
  nullable    = false
}

variable "reservations" {
  description = "On-Demand Capacity Reservations by name: zone, instance type and number of nodes."
  type = map(object({
    zone          = string
    instance_type = string
    nodes         = number
  }))
  nullable = false
}

variable "blocks" {
  description = "Capacity Blocks by name: what they hold, when, for how much, and the id of the offering that is bought."
  type = map(object({
    zone          = string
    instance_type = string
    nodes         = number
    starts_at     = string
    ends_at       = string
    usd           = number
    offering      = string
  }))
  nullable = false
}
