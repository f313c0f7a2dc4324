variable "tunnel" {
  description = "Whether nodes are reached through a tunnel of Systems Manager, having no public address."
  type        = bool
  nullable    = false
}
