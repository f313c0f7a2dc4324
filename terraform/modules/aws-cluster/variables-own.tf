variable "lifetime_s" {
  description = "Seconds after its boot at which a node shuts itself down should its clock be wrong; null leaves it to expires_at alone."
  type        = number

  validation {
    condition     = var.lifetime_s == null ? true : var.lifetime_s > 0
    error_message = "The lifetime must be more than 0 s."
  }
}
