# Deletes everything of the run from within the project, in case nobody else has done it in time. It is made before any
# node and destroyed after all of them.

locals {
  watchdog         = var.watchdog_at == null ? toset([]) : toset(["own"])
  watchdog_name    = "${var.name}-watchdog"
  watchdog_account = one([for account in google_service_account.watchdog : account.email])
}

resource "google_service_account" "watchdog" {
  for_each = local.watchdog

  account_id   = local.watchdog_name
  display_name = "Watchdog of run ${var.labels["sailor-cloud-run"]}"
  description  = local.description
}

resource "google_project_iam_custom_role" "watchdog" {
  for_each = local.watchdog

  role_id     = replace(local.watchdog_name, "-", "_")
  title       = local.watchdog_name
  description = local.description

  permissions = [
    "cloudfunctions.functions.delete",
    "cloudscheduler.jobs.delete",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.firewalls.delete",
    "compute.firewalls.list",
    "compute.instances.delete",
    "compute.instances.list",
    "compute.networks.delete",
    "compute.networks.list",
    "compute.networks.updatePolicy",
    "compute.resourcePolicies.delete",
    "compute.resourcePolicies.list",
    "compute.routers.delete",
    "compute.routers.list",
    "compute.subnetworks.delete",
    "compute.subnetworks.list",
    "iam.roles.delete",
    "iam.serviceAccounts.delete",
    "iam.serviceAccounts.get",
    "run.routes.invoke",
  ]
}

# Ends by itself a week after it is needed: the function may not change who has rights in the project.
resource "google_project_iam_member" "watchdog" {
  for_each = local.watchdog

  project = var.project
  role    = google_project_iam_custom_role.watchdog[each.key].id
  member  = "serviceAccount:${local.watchdog_account}"

  condition {
    title      = local.watchdog_name
    expression = "request.time < timestamp(\"${timeadd(var.watchdog_at, "168h")}\")"
  }
}

# What a build of a function needs. By default Cloud Build acts as the default account of Compute Engine, which has no
# rights in new organizations (cloud.google.com/build/docs/cloud-build-service-account-updates). The roles are those of
# cloud.google.com/functions/docs/securing/build-custom-sa; none of them may delete anything.
resource "google_project_iam_member" "build" {
  for_each = length(local.watchdog) == 0 ? toset([]) : toset([
    "roles/artifactregistry.writer",
    "roles/logging.logWriter",
    "roles/storage.objectViewer",
  ])

  project = var.project
  role    = each.value
  member  = "serviceAccount:${local.watchdog_account}"

  condition {
    title      = "${local.watchdog_name}-build"
    expression = "request.time < timestamp(\"${var.watchdog_at}\")"
  }
}

# The function's code, in a bucket because Cloud Functions take it from nowhere else.
resource "google_storage_bucket" "watchdog" {
  for_each = local.watchdog

  name                        = local.watchdog_name
  location                    = var.region
  labels                      = var.labels
  force_destroy               = true
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  soft_delete_policy {
    retention_duration_seconds = 0
  }
}

resource "google_storage_bucket_object" "watchdog" {
  for_each = local.watchdog

  bucket = google_storage_bucket.watchdog[each.key].name
  name   = "watchdog.zip"
  source = "${path.module}/watchdog.zip"
}

# So that it can delete its own bucket, and the run's own one where that is empty.
resource "google_storage_bucket_iam_member" "watchdog" {
  for_each = length(local.watchdog) == 0 ? toset([]) : setunion([local.watchdog_name], local.own_bucket)

  bucket = each.value
  role   = "roles/storage.admin"
  member = "serviceAccount:${local.watchdog_account}"

  depends_on = [google_storage_bucket.run, google_storage_bucket.watchdog]
}

resource "google_cloudfunctions2_function" "watchdog" {
  for_each = local.watchdog

  name        = local.watchdog_name
  location    = var.region
  description = "Deletes one run of sailor-cloud once it is overdue"
  labels      = var.labels

  build_config {
    runtime         = "python312"
    entry_point     = "watchdog"
    service_account = google_service_account.watchdog[each.key].id

    source {
      storage_source {
        bucket = google_storage_bucket.watchdog[each.key].name
        object = google_storage_bucket_object.watchdog[each.key].name
      }
    }
  }

  service_config {
    available_memory               = "256Mi"
    timeout_seconds                = 1800
    max_instance_count             = 1
    ingress_settings               = "ALLOW_INTERNAL_ONLY"
    all_traffic_on_latest_revision = true
    service_account_email          = local.watchdog_account

    environment_variables = {
      RUN     = var.labels["sailor-cloud-run"]
      NAME    = var.name
      PROJECT = var.project
      REGION  = var.region
      DUE_AT  = var.watchdog_at
      BUCKET  = join("", local.own_bucket)
    }
  }

  depends_on = [
    google_project_iam_member.build,
    google_project_iam_member.watchdog,
    google_storage_bucket_iam_member.watchdog,
  ]
}

# Cloud Scheduler knows no first time: the function itself does nothing before it is due. To the function, calls of Cloud
# Scheduler in its own project are internal (cloud.google.com/run/docs/securing/ingress).
resource "google_cloud_scheduler_job" "watchdog" {
  for_each = local.watchdog

  name             = local.watchdog_name
  region           = var.region
  description      = local.description
  schedule         = "*/15 * * * *"
  time_zone        = "Etc/UTC"
  attempt_deadline = "1800s"

  http_target {
    http_method = "POST"
    uri         = google_cloudfunctions2_function.watchdog[each.key].service_config[0].uri

    oidc_token {
      service_account_email = local.watchdog_account
      audience              = google_cloudfunctions2_function.watchdog[each.key].service_config[0].uri
    }
  }
}
