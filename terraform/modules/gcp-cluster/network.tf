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
  ip_cidr_range            = var.cidr
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
  source_ranges = [local.private ? "35.235.240.0/20" : var.ssh_from]
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
    ports    = [for range in module.placement.ports : "${range.first}-${range.last}"]
  }
}

# Between clouds all traffic goes through WireGuard, whose port only the nodes on the other one reach.
resource "google_compute_firewall" "overlay" {
  for_each = { for key, made in google_compute_network.run : key => made if length(var.peers) > 0 }

  name          = "${var.name}-overlay"
  description   = local.description
  network       = each.value.self_link
  direction     = "INGRESS"
  source_ranges = var.peers
  target_tags   = [var.name]

  allow {
    protocol = "udp"
    ports    = ["51820"]
  }
}

# Nodes without a public address reach package indexes through Cloud NAT, and buckets through Google's own network.
resource "google_compute_router" "run" {
  for_each = local.private ? toset(["own"]) : toset([])

  name        = "${var.name}-${var.region}"
  description = local.description
  region      = var.region
  network     = local.network
}

resource "google_compute_router_nat" "run" {
  for_each = google_compute_router.run

  name                               = "${var.name}-nat"
  router                             = each.value.name
  region                             = var.region
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "LIST_OF_SUBNETWORKS"

  subnetwork {
    name                    = google_compute_subnetwork.nodes.self_link
    source_ip_ranges_to_nat = ["ALL_IP_RANGES"]
  }
}
