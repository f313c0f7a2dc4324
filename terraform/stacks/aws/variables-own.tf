variable "terminate_role_arn" {
  description = "Role with which EventBridge Scheduler terminates every node at the expiry; null leaves it to the node's own timer."
  type        = string
}
