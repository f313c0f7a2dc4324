variable "run_id" {
  description = "Id of the run; every process of a node carries it as its tag SAILOR_CLOUD_RUN."
  type        = string
  nullable    = false
}

variable "python" {
  description = "Path of the Python interpreter that has sailor_cloud installed."
  type        = string
  nullable    = false
}

variable "public_key" {
  description = "Public key, in OpenSSH form, of the only key that may log in."
  type        = string
  nullable    = false
}

variable "expires_at" {
  description = "Time in RFC 3339 form at which every node shuts itself down."
  type        = string
  nullable    = false
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
}
