variable "network" {
  description = "Network that another root of the run made, by its self link; null makes one."
  type        = string

  validation {
    condition     = var.network == null ? true : can(regex("projects/[^/]+/global/networks/[^/]+$", var.network))
    error_message = "The network must be a self link, such as projects/my-project/global/networks/my-network."
  }
}
