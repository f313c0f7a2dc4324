variable "project" {
  description = "Google Cloud project that is billed."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9:.-]{4,}[a-z0-9]$", var.project))
    error_message = "The project must be an id, such as my-project; a project's number or name is no id."
  }
}

variable "network" {
  description = "Network that another root of the run made, by its self link; null makes one."
  type        = string
}
