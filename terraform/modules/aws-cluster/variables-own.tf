variable "lifetime_s" {
  description = "Seconds after its boot at which a node ends itself should its clock be wrong; null leaves it to expires_at alone."
  type        = number

  validation {
    condition     = var.lifetime_s == null ? true : var.lifetime_s > 0
    error_message = "The lifetime must be more than 0 s."
  }
}

variable "terminate_role_arn" {
  description = "Role with which EventBridge Scheduler terminates every node at the expiry; null leaves it to the node's own timer."
  type        = string

  validation {
    condition     = var.terminate_role_arn == null ? true : can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:role/", var.terminate_role_arn))
    error_message = "The role must be an ARN, such as arn:aws:iam::123456789012:role/sailor-cloud-terminate."
  }
}
