output "bucket" {
  description = "URL of the bucket for checkpoints and results, or null."
  value       = var.bucket == null ? null : "gs://${var.bucket.name}"

  precondition {
    condition     = var.bucket == null ? true : !var.bucket.own || startswith(var.bucket.name, "${var.name}-")
    error_message = "The run's own bucket must begin with the run's name, so that nobody else's is ever emptied."
  }
}

output "identity" {
  description = "What nodes may act as, or null."
  value       = var.bucket == null ? var.identity : local.account
}
