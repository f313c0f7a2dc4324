variable "lifetime_s" {
  description = "Seconds after its boot at which a node ends itself should its clock be wrong; null leaves it to expires_at alone."
  type        = number
}

variable "terminate_role_arn" {
  description = "Role with which EventBridge Scheduler terminates every node at the expiry; null leaves it to the node's own timer."
  type        = string
}
