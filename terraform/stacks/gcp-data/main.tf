provider "google" {
  project = var.project
  region  = var.region
}

locals {
  description = join(" ", [for name, value in var.labels : "${name}=${value}"])
  own_bucket  = try(var.bucket.own, false) ? toset([var.bucket.name]) : toset([])
  own_account = var.bucket != null && var.identity == null ? toset(["own"]) : toset([])
  account     = var.identity != null ? var.identity : one([for account in google_service_account.node : account.email])
}

# The run's own bucket. `force_destroy` empties it on destroy, so this root is destroyed last, and only after the
# results were fetched. What is deleted in it is deleted at once, and not billed for another week.
resource "google_storage_bucket" "run" {
  for_each = local.own_bucket

  name                        = each.value
  location                    = var.region
  labels                      = var.labels
  force_destroy               = true
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  soft_delete_policy {
    retention_duration_seconds = 0
  }

  # Nothing expires by itself: a bucket that is kept holds somebody's results.
  lifecycle_rule {
    condition {
      age = 1
    }

    action {
      type = "AbortIncompleteMultipartUpload"
    }
  }
}

resource "google_service_account" "node" {
  for_each = local.own_account

  account_id   = "${var.name}-node"
  display_name = "Nodes of run ${var.labels["sailor-cloud-run"]}"
  description  = local.description
}

# The one right that nodes have: objects of this one bucket. Adds a member to a bucket that the user named, and takes
# nobody else's rights away. An account that the user has prepared for such a bucket needs nothing from here.
resource "google_storage_bucket_iam_member" "node" {
  for_each = length(local.own_bucket) + length(local.own_account) > 0 ? toset([var.bucket.name]) : toset([])

  bucket = each.value
  role   = "roles/storage.objectUser"
  member = "serviceAccount:${local.account}"

  depends_on = [google_storage_bucket.run]
}
