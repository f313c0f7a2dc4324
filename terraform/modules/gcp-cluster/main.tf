locals {
  network = var.network == null ? google_compute_network.run["own"].self_link : var.network
  private = var.ssh_from == null

  provisioning_models = { spot = "SPOT", flex-start = "FLEX_START" }

  # Only instances and disks have labels on Google Cloud; everything else says here whose it is.
  description = join(" ", [for name, value in var.labels : "${name}=${value}"])
}

module "placement" {
  source = "../placement"

  name         = var.name
  labels       = var.labels
  expires_at   = var.expires_at
  public_key   = var.public_key
  ssh_from     = var.ssh_from
  disk_gib     = var.disk_gib
  nodes        = var.nodes
  zone_pattern = "^${var.region}-[a-z]$"
}

resource "google_compute_resource_policy" "compact" {
  for_each = module.placement.groups

  name        = "${var.name}-${each.key}"
  description = local.description
  region      = var.region

  group_placement_policy {
    collocation = "COLLOCATED"
  }
}

# No network_performance_config: Tier_1 bandwidth is sold for N2, N2D, C2, C2D and C3 machines, none of which takes
# accelerators; those that do reach their full bandwidth with gVNIC alone
# (cloud.google.com/compute/docs/networking/configure-vm-with-high-bandwidth-configuration, looked up 2026-11-21).
resource "google_compute_instance" "node" {
  for_each = var.nodes

  name         = module.placement.node_names[each.key]
  zone         = each.value.zone
  machine_type = each.value.instance_type
  labels       = module.placement.node_labels[each.key]
  tags         = [var.name]

  resource_policies = contains(keys(module.placement.group_of), each.key) ? [google_compute_resource_policy.compact[module.placement.group_of[each.key]].self_link] : null

  boot_disk {
    auto_delete = true

    initialize_params {
      image  = each.value.image
      size   = var.disk_gib
      type   = each.value.boot_disk
      labels = var.labels

      # What every Hyperdisk has without more to pay; by default it is given more of both, and billed.
      provisioned_iops       = startswith(each.value.boot_disk, "hyperdisk") ? 3000 : null
      provisioned_throughput = startswith(each.value.boot_disk, "hyperdisk") ? 140 : null
    }
  }

  dynamic "guest_accelerator" {
    for_each = each.value.accelerator_type == null ? [] : [each.value.accelerator_type]

    content {
      type  = guest_accelerator.value
      count = each.value.accelerator_count
    }
  }

  # The provider deletes the VM at the expiry, whatever has become of the controller. max_run_duration would count
  # anew after a reboot, and changing it would replace the VM; only flex-start can't do without.
  scheduling {
    provisioning_model          = each.value.ends_with_it ? "RESERVATION_BOUND" : lookup(local.provisioning_models, each.value.market, "STANDARD")
    preemptible                 = each.value.market == "spot"
    automatic_restart           = false
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = "DELETE"
    termination_time            = each.value.max_run_s == null ? var.expires_at : null

    dynamic "max_run_duration" {
      for_each = each.value.max_run_s == null ? [] : [each.value.max_run_s]

      content {
        seconds = max_run_duration.value
      }
    }
  }

  # A node takes the reservation that it names and no other; flex-start VMs may take none.
  dynamic "reservation_affinity" {
    for_each = each.value.market == "flex-start" ? ["NO_RESERVATION"] : each.value.capacity == null ? [] : ["SPECIFIC_RESERVATION"]

    content {
      type = reservation_affinity.value

      dynamic "specific_reservation" {
        for_each = reservation_affinity.value == "SPECIFIC_RESERVATION" ? [var.reservations[each.value.capacity]] : []

        content {
          key    = "compute.googleapis.com/reservation-name"
          values = [specific_reservation.value]
        }
      }
    }
  }

  network_interface {
    subnetwork = google_compute_subnetwork.nodes.self_link
    nic_type   = "GVNIC"

    dynamic "access_config" {
      for_each = local.private ? [] : ["ephemeral"]

      content {
        network_tier = "PREMIUM"
      }
    }
  }

  # Without an identity there is no service account, so that a node has no rights in the project. With one, its rights
  # are those that the account has been granted, and of these only what concerns objects in buckets.
  dynamic "service_account" {
    for_each = var.identity == null ? [] : [var.identity]

    content {
      email  = service_account.value
      scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    }
  }

  metadata = {
    ssh-keys               = "sailor:${var.public_key}"
    block-project-ssh-keys = "TRUE"
    enable-oslogin         = "FALSE"
    serial-port-enable     = "FALSE"
    # The guest publishes its host keys here, where only the project can read them.
    enable-guest-attributes = "TRUE"
    install-nvidia-driver   = "True"
    startup-script          = module.placement.boot_script[each.key]
  }

  shielded_instance_config {
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  timeouts {
    # A VM with accelerators is there within two minutes or fails; what takes longer is a cloud that does not answer.
    create = "7m"
    delete = "15m"
  }

  lifecycle {
    # A VM that runs can't change its placement. A2 Ultra, A3 and A4 bring local SSDs that nobody asked for; a plan that
    # would take them away would replace the VM. So would another image, which a newer version may choose.
    ignore_changes = [resource_policies, scratch_disk, boot_disk[0].initialize_params[0].image]

    precondition {
      condition     = timecmp(var.expires_at, timeadd(plantimestamp(), "2880h")) <= 0
      error_message = "Compute Engine takes termination times up to 120 days ahead; ${var.expires_at} is later."
    }
  }

  depends_on = [google_compute_firewall.ssh, google_compute_firewall.training, google_compute_router_nat.run]
}
