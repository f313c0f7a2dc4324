variable "tunnel" {
  description = "Whether nodes are reached through a tunnel of Systems Manager, having no public address."
  type        = bool
  nullable    = false
}

variable "regions" {
  description = "Regions in which the run may come to have something, for the watchdog."
  type        = list(string)
  default     = []
  nullable    = false
}
