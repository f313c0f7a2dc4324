variables {
  name       = "sc-0123456789"
  labels     = { sailor-cloud-run = "r", sailor-cloud-owner = "me", sailor-cloud-expires = "soon" }
  expires_at = "2026-11-21T06:00:00Z"
  public_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVzZWQgb25seSBieSBhIHRlc3QgcGxhbg=="
  ssh_from   = "203.0.113.7/32"
  disk_gib   = 100

  zone_pattern = "^us-central1-[a-z]$"

  nodes = {
    n0 = { zone = "us-central1-a", instance_type = "a2-highgpu-1g", accelerator_type = null, accelerator_count = 0, market = "spot", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 2, compact = true, efa_cards = [], image = "family", boot_disk = "pd-balanced" }
    n1 = { zone = "us-central1-a", instance_type = "a2-highgpu-1g", accelerator_type = null, accelerator_count = 0, market = "spot", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 2, compact = true, efa_cards = [], image = "family", boot_disk = "pd-balanced" }
    n2 = { zone = "us-central1-b", instance_type = "a2-highgpu-1g", accelerator_type = null, accelerator_count = 0, market = "spot", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 2, compact = true, efa_cards = [], image = "family", boot_disk = "pd-balanced" }
    n3 = { zone = "us-central1-b", instance_type = "n1-standard-8", accelerator_type = "nvidia-tesla-v100", accelerator_count = 2, market = "on-demand", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 5, compact = false, efa_cards = [], image = "family", boot_disk = "pd-balanced" }
    n4 = { zone = "us-central1-b", instance_type = "n1-standard-8", accelerator_type = "nvidia-tesla-v100", accelerator_count = 2, market = "on-demand", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 5, compact = false, efa_cards = [], image = "family", boot_disk = "pd-balanced" }
    n5 = { zone = "us-central1-b", instance_type = "a2-highgpu-8g", accelerator_type = null, accelerator_count = 0, market = "on-demand", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 30, compact = true, efa_cards = [], image = "family", boot_disk = "pd-balanced" }
  }
}

run "nodes_are_placed_in_their_zones" {
  command = plan

  assert {
    condition     = output.zones == toset(["us-central1-a", "us-central1-b"])
    error_message = "The zones must be those of the nodes."
  }

  assert {
    condition     = jsonencode(output.nodes_by_zone) == jsonencode({ us-central1-a = ["n0", "n1"], us-central1-b = ["n2", "n3", "n4", "n5"] })
    error_message = "Every node must stand in its own zone."
  }
}

run "nodes_of_one_type_in_one_zone_share_a_group_where_they_may" {
  command = plan

  assert {
    condition = jsonencode(output.groups) == jsonencode({
      us-central1-a--a2-highgpu-1g = { zone = "us-central1-a", nodes = ["n0", "n1"] }
      us-central1-b--a2-highgpu-1g = { zone = "us-central1-b", nodes = ["n2"] }
      us-central1-b--a2-highgpu-8g = { zone = "us-central1-b", nodes = ["n5"] }
    })
    error_message = "A group is for nodes of one type in one zone."
  }

  assert {
    condition     = output.group_of.n0 == output.group_of.n1 && output.group_of.n0 != output.group_of.n2 && !contains(keys(output.group_of), "n3")
    error_message = "Neighbours of one type share a group, and nodes that may not be placed compactly have none."
  }

  assert {
    condition     = length(output.efa_kinds) == 0
    error_message = "Without cards that carry EFA nothing has it."
  }
}

run "names_and_labels_follow_from_run_and_node" {
  command = plan

  assert {
    condition     = output.node_names.n3 == "sc-0123456789-n3" && output.node_labels.n3.sailor-cloud-node == "n3" && output.node_labels.n3.sailor-cloud-run == "r"
    error_message = "A node must be found by its name and by its labels."
  }
}

run "nodes_pin_the_ports_that_the_network_opens" {
  command = plan

  assert {
    condition     = strcontains(output.boot_script.n0, "ip_local_port_range = ${output.ports.collectives.first} ${output.ports.collectives.last}")
    error_message = "The kernel must choose ports from the range that is open among the nodes."
  }

  assert {
    condition     = output.ports.rendezvous.first == 29500 && output.ports.rendezvous.last == 29599
    error_message = "Generations use fresh ports in 29500-29599."
  }

  assert {
    condition     = !strcontains(output.boot_script.n0, "NCCL_NET") && !can(regex("curl|wget|apt|pip |http", output.boot_script.n0))
    error_message = "A node is told for each generation which network to use, and needs no download to start."
  }
}

run "a_node_keeps_its_group_when_it_is_the_last_of_its_kind" {
  command = plan

  variables {
    zone_pattern = "^[a-z0-9]+-az[0-9]+$"

    nodes = { n0 = { zone = "use1-az1", instance_type = "p4d.24xlarge", accelerator_type = null, accelerator_count = 0, market = "on-demand", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 25, compact = true, efa_cards = [0, 1, 2, 3], image = "ami-0", boot_disk = "gp3" } }
  }

  assert {
    condition     = output.group_of.n0 == "use1-az1--p4d-24xlarge"
    error_message = "Neighbours that go must not move who stays; names of resources must not hold dots."
  }

  assert {
    condition     = jsonencode(output.efa_kinds) == jsonencode({ use1-az1--p4d-24xlarge = { cards = [0, 1, 2, 3], zone = "use1-az1" } })
    error_message = "The kind must know its zone and cards."
  }
}

run "empty_cluster_is_refused" {
  command         = plan
  expect_failures = [var.nodes]

  variables {
    nodes = {}
  }
}

run "wrong_node_id_is_refused" {
  command         = plan
  expect_failures = [var.nodes]

  variables {
    nodes = { "0 n" = { zone = "use1-az1", instance_type = "p4d.24xlarge", accelerator_type = null, accelerator_count = 0, market = "spot", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 2, compact = true, efa_cards = [], image = "ami-0", boot_disk = "gp3" } }
  }
}

run "names_of_nodes_in_the_longest_zone_are_taken" {
  command = plan

  variables {
    zone_pattern = "^northamerica-northeast1-[a-z]$"

    nodes = { northamerica-northeast1-b-rtxpro6000-96-1023 = { zone = "northamerica-northeast1-b", instance_type = "g4-standard-48", accelerator_type = null, accelerator_count = 0, market = "spot", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 2, compact = false, efa_cards = [], image = "family", boot_disk = "pd-balanced" } }
  }

  assert {
    condition     = alltrue([for name in output.node_names : length(name) <= 63])
    error_message = "Clouds take names of 63 characters at most."
  }
}

run "a_node_without_a_price_is_refused" {
  command         = plan
  expect_failures = [var.nodes]

  variables {
    nodes = { n0 = { zone = "use1-az1", instance_type = "p4d.24xlarge", accelerator_type = null, accelerator_count = 0, market = "spot", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 0, compact = true, efa_cards = [], image = "ami-0", boot_disk = "gp3" } }
  }
}

run "accelerators_to_attach_need_a_number" {
  command         = plan
  expect_failures = [var.nodes]

  variables {
    nodes = { n0 = { zone = "us-central1-b", instance_type = "n1-standard-8", accelerator_type = "nvidia-tesla-v100", accelerator_count = 0, market = "spot", capacity = null, ends_with_it = false, max_run_s = null, max_usd_per_hour = 2, compact = false, efa_cards = [], image = "family", boot_disk = "pd-balanced" } }
  }
}

run "the_whole_internet_is_no_caller" {
  command         = plan
  expect_failures = [var.ssh_from]

  variables {
    ssh_from = "0.0.0.0/0"
  }
}

run "a_private_key_is_no_public_key" {
  command         = plan
  expect_failures = [var.public_key]

  variables {
    public_key = "-----BEGIN OPENSSH PRIVATE KEY-----"
  }
}

run "labels_must_lead_to_the_owner" {
  command         = plan
  expect_failures = [var.labels]

  variables {
    labels = { sailor-cloud-run = "r" }
  }
}

run "expiry_must_be_in_utc" {
  command         = plan
  expect_failures = [var.expires_at]

  variables {
    expires_at = "2026-11-21T06:00:30+01:00"
  }
}

run "a_name_begins_with_a_letter" {
  command         = plan
  expect_failures = [var.name]

  variables {
    name = "Sc"
  }
}

run "a_disk_holds_drivers_torch_and_a_checkpoint" {
  command         = plan
  expect_failures = [var.disk_gib]

  variables {
    disk_gib = 10
  }
}

run "a_zone_of_another_region_is_refused" {
  command         = plan
  expect_failures = [output.zones]

  variables {
    zone_pattern = "^europe-west4-[a-z]$"
  }
}
