locals {
  network = var.network == null ? google_compute_network.run["own"].self_link : var.network

  # Only instances and disks have labels on Google Cloud; everything else says here whose it is.
  description = join(" ", [for name, value in var.labels : "${name}=${value}"])
}

module "placement" {
  source = "../placement"

  nodes = { for id, node in var.nodes : id => { zone = node.zone, instance_type = node.instance_type, compact = node.compact } }
}

# Networks are global: the first root of a run makes one with its rules, roots in other regions use it.
resource "google_compute_network" "run" {
  for_each = var.network == null ? toset(["own"]) : toset([])

  name                    = "${var.name}-net"
  description             = local.description
  auto_create_subnetworks = false
  mtu                     = 8896
}

resource "google_compute_subnetwork" "nodes" {
  name                     = "${var.name}-${var.region}"
  description              = local.description
  region                   = var.region
  network                  = local.network
  ip_cidr_range            = var.subnet_cidr
  private_ip_google_access = true
}

resource "google_compute_firewall" "ssh" {
  for_each = google_compute_network.run

  name        = "${var.name}-ssh"
  description = local.description
  network     = each.value.self_link
  direction   = "INGRESS"
  # Without a public address SSH comes through Identity-Aware Proxy, which has this one range
  # (cloud.google.com/iap/docs/using-tcp-forwarding).
  source_ranges = [var.ssh_from == null ? "35.235.240.0/20" : var.ssh_from]
  target_tags   = [var.name]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_firewall" "training" {
  for_each = google_compute_network.run

  name        = "${var.name}-training"
  description = local.description
  network     = each.value.self_link
  direction   = "INGRESS"
  source_tags = [var.name]
  target_tags = [var.name]

  allow {
    protocol = "tcp"
    ports    = ["29500-29599"]
  }
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

resource "google_compute_instance" "node" {
  for_each = var.nodes

  name         = "${var.name}-${each.key}"
  zone         = each.value.zone
  machine_type = each.value.instance_type
  labels       = merge(var.labels, { sailor-cloud-node = each.key })
  tags         = [var.name]

  resource_policies = contains(keys(module.placement.group_of), each.key) ? [google_compute_resource_policy.compact[module.placement.group_of[each.key]].self_link] : null

  boot_disk {
    auto_delete = true

    initialize_params {
      image  = var.image
      size   = var.disk_gib
      type   = "pd-balanced"
      labels = var.labels
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
  # anew after a reboot, and changing it would replace the VM.
  scheduling {
    provisioning_model          = each.value.spot ? "SPOT" : "STANDARD"
    preemptible                 = each.value.spot
    automatic_restart           = false
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = "DELETE"
    termination_time            = var.expires_at
  }

  network_interface {
    subnetwork = google_compute_subnetwork.nodes.self_link
    nic_type   = "GVNIC"

    dynamic "access_config" {
      for_each = var.ssh_from == null ? [] : ["ephemeral"]

      content {
        network_tier = "PREMIUM"
      }
    }
  }

  # No service_account block: a node has no rights in the project.
  metadata = {
    ssh-keys               = "sailor:${var.public_key}"
    block-project-ssh-keys = "TRUE"
    enable-oslogin         = "FALSE"
    serial-port-enable     = "FALSE"
    install-nvidia-driver  = "True"
  }

  shielded_instance_config {
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  timeouts {
    create = "15m"
    delete = "15m"
  }

  depends_on = [google_compute_firewall.ssh, google_compute_firewall.training]
}
